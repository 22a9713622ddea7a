//! The status page for Python: conversions of `driver::status`.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList};

use super::fds::adopt;
use super::gate::detached;
use crate::driver::status::{self, Foreign, Place, Snapshot, Unreadable};
use crate::wire::status::{Head, Kind, Path, Role, Row, State, TOTALS};

/// (host, port, scope) with a host of 4 or 16 bytes.
pub(super) type Address = (Vec<u8>, u16, u32);

/// The page in which this process shows its connections. Made once; a forked child makes its own.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct Status(Arc<status::Status>);

#[pymethods]
impl Status {
    /// OSError when there is no memory even for counters that nobody else sees.
    #[new]
    fn new(pid: u32) -> PyResult<Self> {
        let status = status::Status::new(pid, env!("CARGO_PKG_VERSION"))?;
        Ok(Self(Arc::new(status)))
    }

    /// Whether this process made the page; false in a forked child.
    #[getter]
    fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    /// Whether others can see the page.
    #[getter]
    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// A new descriptor of the page, for reading only; the caller closes it. OSError when there is none to be had.
    fn open(&self) -> PyResult<RawFd> {
        Ok(self.0.reopen()?.into_raw_fd())
    }

    /// The page can be had at the name with this number.
    fn set_id(&self, id: u64) {
        self.0.set_id(id);
    }

    /// One more stream on a path.
    fn count_stream(&self, path: &str) -> PyResult<()> {
        self.0.count_stream(named_path(path)?);
        Ok(())
    }

    /// One more connection that can only be TCP, for the reason `code`: a stream, or refused if `forbidden`.
    fn count_fallback(&self, code: u32, forbidden: bool) {
        self.0.count_fallback(code, forbidden);
    }

    /// One more connection that its handshake has spoiled.
    fn count_failure(&self, code: u32) {
        self.0.count_failure(code);
    }

    /// A row for a connection over a socket; `code` is the reason if its path is TCP.
    fn show_socket(
        &self,
        path: &str,
        role: &str,
        local: Option<Address>,
        remote: Option<Address>,
        code: u32,
    ) -> PyResult<StatusRow> {
        let row = Row {
            local: address(local)?,
            remote: address(remote)?,
            fallback: code,
            opened: status::now(),
            ..Row::new(
                Kind::Connection,
                named_role(role)?,
                named_path(path)?,
                State::Active,
            )
        };
        Ok(StatusRow(Mutex::new(Some(self.0.place(&row)))))
    }

    /// A row for a listener; `path` is the best that it offers.
    fn show_listener(&self, path: &str, local: Option<Address>) -> PyResult<StatusRow> {
        let row = Row {
            local: address(local)?,
            opened: status::now(),
            ..Row::new(
                Kind::Listener,
                Role::Server,
                named_path(path)?,
                State::Listen,
            )
        };
        Ok(StatusRow(Mutex::new(Some(self.0.place(&row)))))
    }

    /// The head of the page, with open connections in its totals.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        head(py, &self.0.totals().map_err(unreadable)?)
    }

    /// The page as `read_status` returns it.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot(py, &self.0.read().map_err(unreadable)?)
    }
}

impl Status {
    pub(super) fn driver(&self) -> &Arc<status::Status> {
        &self.0
    }
}

/// A row of the page; it is free again when this is closed or dropped.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct StatusRow(Mutex<Option<Place>>);

#[pymethods]
impl StatusRow {
    /// Frees the row.
    fn close(&self) {
        // The only thing done under the lock is this.
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
    }
}

/// The page of another process, in the file behind `fd`, which is taken over.
///
/// ValueError when it is none, of another version, or breaks the rules.
#[pyfunction]
pub(super) fn read_status(py: Python<'_>, fd: RawFd) -> PyResult<Bound<'_, PyDict>> {
    let fd = adopt(fd).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let read = detached(py, || Foreign::open(&fd)?.read());
    snapshot(py, &read.map_err(unreadable)?)
}

fn unreadable(error: Unreadable) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn named_path(name: &str) -> PyResult<Path> {
    named(Path::ALL, name, Path::name)
}

fn named_role(name: &str) -> PyResult<Role> {
    named(Role::ALL, name, Role::name)
}

fn named<T: Copy>(all: &[T], name: &str, called: fn(T) -> &'static str) -> PyResult<T> {
    all.iter()
        .copied()
        .find(|one| called(*one) == name)
        .ok_or_else(|| PyValueError::new_err(format!("{name:?} is not known")))
}

pub(super) fn address(address: Option<Address>) -> PyResult<Option<SocketAddr>> {
    let Some((host, port, scope)) = address else {
        return Ok(None);
    };
    let host = <[u8; 4]>::try_from(&host[..])
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(&host[..]).map(IpAddr::from))
        .map_err(|_| PyValueError::new_err("a host has 4 or 16 bytes"))?;
    Ok(Some(match host {
        IpAddr::V4(_) => SocketAddr::new(host, port),
        IpAddr::V6(host) => SocketAddrV6::new(host, port, 0, scope).into(),
    }))
}

fn head<'py>(py: Python<'py>, head: &Head) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let paths = Path::ALL.iter().map(|path| path.name()).zip(head.paths);
    dict.set_item("id", head.id)?;
    dict.set_item("pid", head.pid)?;
    dict.set_item("begun_us", head.begun)?;
    dict.set_item("package", &head.package)?;
    dict.set_item("hidden", head.hidden)?;
    dict.set_item(
        "totals",
        TOTALS.into_iter().zip(head.totals).into_py_dict(py)?,
    )?;
    dict.set_item("paths", paths.into_py_dict(py)?)?;
    dict.set_item("forbidden", head.forbidden)?;
    dict.set_item("failed", head.failed)?;
    dict.set_item("other", head.other)?;
    dict.set_item("reasons", head.reasons.iter().copied().into_py_dict(py)?)?;
    Ok(dict)
}

fn snapshot<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let dict = head(py, &snapshot.head)?;
    let rows = PyList::empty(py);
    for one in &snapshot.rows {
        rows.append(row(py, one)?)?;
    }
    dict.set_item("rows", rows)?;
    dict.set_item("unsettled", snapshot.unsettled)?;
    Ok(dict)
}

fn row<'py>(py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("kind", row.kind.name())?;
    dict.set_item("role", row.role.name())?;
    dict.set_item("path", row.path.name())?;
    dict.set_item("state", row.state.name())?;
    dict.set_item("local", row.local.map(pair))?;
    dict.set_item("remote", row.remote.map(pair))?;
    dict.set_item("fallback", row.fallback)?;
    dict.set_item("link_group", row.link_group)?;
    dict.set_item("engine", PyBytes::new(py, &row.engine.0))?;
    dict.set_item("own_size", row.own_size.map_or(0, |size| size.bytes()))?;
    dict.set_item("peer_size", row.peer_size.map_or(0, |size| size.bytes()))?;
    dict.set_item("opened_us", row.opened)?;
    for (name, value) in [
        ("sent", row.sent),
        ("acknowledged", row.acknowledged),
        ("received", row.received),
        ("read", row.read),
        ("writes", row.writes),
        ("reads", row.reads),
        ("backlog", row.backlog),
        ("wakeups_sent", row.wakeups_sent),
        ("wakeups_received", row.wakeups_received),
        ("spins", row.spins),
        ("stalls_sent", row.stalls_sent),
        ("stalls_received", row.stalls_received),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// Host and port, the scope behind a % as Python writes it.
fn pair(address: SocketAddr) -> (String, u16) {
    match address {
        SocketAddr::V6(six) if six.scope_id() != 0 => {
            (format!("{}%{}", six.ip(), six.scope_id()), six.port())
        }
        _ => (address.ip().to_string(), address.port()),
    }
}
