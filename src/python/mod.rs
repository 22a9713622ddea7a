//! The `_core` module: a list and conversions. What things do is decided in the layers below.

mod awaitable;
mod buffer;
mod channel;
mod drain;
mod endpoint;
mod engine;
mod errors;
mod exports;
mod fds;
mod gate;
mod interpreter;
mod lamps;
mod names;
mod offer;
mod option;
mod polling;
mod rdma;
mod read;
mod reservation;
mod setup;
mod sockdiag;
mod status;
mod view;
mod watch;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::wire::clc::Diagnosis;

/// The native core of smcfast.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use super::channel::Channel;
    #[pymodule_export]
    use super::drain::Drain;
    #[pymodule_export]
    use super::endpoint::Endpoint;
    #[pymodule_export]
    use super::engine::{Engine, is_ready};
    #[pymodule_export]
    use super::gate::close;
    #[pymodule_export]
    use super::lamps::Lamps;
    #[pymodule_export]
    use super::offer::RdmaOffer;
    #[pymodule_export]
    use super::option::{TcpOption, install_option, remove_option};
    #[pymodule_export]
    use super::rdma::rdma_devices;
    #[pymodule_export]
    use super::read::Read;
    #[pymodule_export]
    use super::reservation::Reservation;
    #[pymodule_export]
    use super::setup::{ClientSetup, ServerSetup};
    #[pymodule_export]
    use super::sockdiag::SockDiag;
    #[pymodule_export]
    use super::status::{Status, StatusRow, read_status};
    #[pymodule_export]
    use super::view::View;

    /// The version of the rendezvous protocol.
    #[pymodule_export]
    const PROTOCOL_VERSION: u16 = crate::wire::rendezvous::VERSION;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::require_main(module.py())?;
        super::names::make(module.py());
        let close = module.getattr("_close_gate")?;
        module
            .py()
            .import("atexit")?
            .call_method1("register", (close,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DIAGNOSES", diagnoses(module.py())?)
    }
}

/// Every diagnosis code of CLC Declines, in ascending order: code -> (name, text).
fn diagnoses(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let named = |diagnosis: &Diagnosis| {
        let name = diagnosis.name()?.to_lowercase();
        Some((diagnosis.0, (name, diagnosis.text())))
    };
    Diagnosis::ALL.iter().filter_map(named).into_py_dict(py)
}
