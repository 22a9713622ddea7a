//! What libibverbs shows, for Python: for tools.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::gate::detached;
use crate::fabric::verbs::{self, Listed, ListedPort};

/// What the system's libibverbs shows: {"library": path, "devices": [device]}. A device is {"name", "ports"}, or {"name", "reason"}
/// where it cannot be opened; a port {"number", "state", "mtu", "longest", "gids"}; a GID {"index", "gid", "kind", "netdev"}. Opens
/// each device for a moment. OSError, whose text is the reason: there is no library, or no device.
#[pyfunction]
pub(super) fn rdma_devices(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = || Ok::<_, verbs::Unavailable>((verbs::library_path()?, verbs::devices()?));
    let (library, devices) = detached(py, found).map_err(|unavailable| {
        PyOSError::new_err((unavailable.errno(), unavailable.to_string()))
    })?;
    let devices: Vec<_> = devices
        .iter()
        .map(|one| device(py, one))
        .collect::<PyResult<_>>()?;
    let result = PyDict::new(py);
    result.set_item("library", library)?;
    result.set_item("devices", devices)?;
    Ok(result)
}

fn device<'py>(py: Python<'py>, listed: &Listed) -> PyResult<Bound<'py, PyDict>> {
    let device = PyDict::new(py);
    device.set_item("name", &listed.name)?;
    match &listed.ports {
        Ok(ports) => {
            let ports = ports.iter().map(|one| port(py, one));
            device.set_item("ports", ports.collect::<PyResult<Vec<_>>>()?)?;
        }
        Err(unavailable) => device.set_item("reason", unavailable.to_string())?,
    }
    Ok(device)
}

fn port<'py>(py: Python<'py>, listed: &ListedPort) -> PyResult<Bound<'py, PyDict>> {
    let gid = |listed: &verbs::ListedGid| {
        let gid = PyDict::new(py);
        gid.set_item("index", listed.index)?;
        gid.set_item("gid", PyBytes::new(py, &listed.gid))?;
        gid.set_item("kind", &listed.kind)?;
        gid.set_item("netdev", &listed.netdev)?;
        Ok(gid)
    };
    let port = PyDict::new(py);
    port.set_item("number", listed.number)?;
    port.set_item("state", listed.state)?;
    port.set_item("mtu", listed.mtu)?;
    port.set_item("longest", listed.longest)?;
    let gids = listed.gids.iter().map(gid);
    port.set_item("gids", gids.collect::<PyResult<Vec<_>>>()?)?;
    Ok(port)
}
