//! The TCP option for Python.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use super::errors::from_system;
use super::fds;
use super::gate::{detached, locked};
use crate::bpf::cgroup::{self, Which};
use crate::bpf::{Error, Marks, Program, State, installed};

/// The program that puts the option into SYN and SYN/ACK of sockets that are marked.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct TcpOption(Mutex<Source>);

enum Source {
    /// Attached by this process, and for as long as it or a child of it lives.
    Own(Program),
    /// Installed by an administrator.
    Joined(Marks),
}

#[pymethods]
impl TcpOption {
    /// Attaches a program of this process's own to its cgroup. OSError: EPERM without CAP_BPF and CAP_NET_ADMIN.
    #[staticmethod]
    fn attach(py: Python<'_>) -> PyResult<Self> {
        let program = detached(py, || Program::attach(cgroup::open(Which::Own)?));
        Ok(Self(Mutex::new(Source::Own(program.map_err(failed)?))))
    }

    /// Uses the program that is installed in `directory`. OSError: ENOENT, EACCES, EPERM.
    #[staticmethod]
    fn join(directory: PathBuf) -> PyResult<Self> {
        let marks = Marks::open(&directory.join(installed::MARKS)).map_err(failed)?;
        Ok(Self(Mutex::new(Source::Joined(marks))))
    }

    /// Lets the socket `fd` take part; before it connects or listens.
    fn mark(&self, py: Python<'_>, fd: RawFd) -> PyResult<()> {
        let mut source = locked(py, &self.0);
        let marks = match &mut *source {
            Source::Own(program) => program.marks_mut(),
            Source::Joined(marks) => marks,
        };
        let marked =
            fds::with(fd, |fd| Ok(marks.mark(&fd))).map_err(|error| from_system(&error))?;
        marked.map_err(failed)
    }

    /// What became of the option on the socket `fd`: "wanted", "taken up", "announced", "silent", "no room", "unfit",
    /// "no syn", or None for a socket that takes no part.
    fn state(&self, py: Python<'_>, fd: RawFd) -> PyResult<Option<&'static str>> {
        let source = locked(py, &self.0);
        let marks = match &*source {
            Source::Own(program) => program.marks(),
            Source::Joined(marks) => marks,
        };
        let state =
            fds::with(fd, |fd| Ok(marks.state(&fd))).map_err(|error| from_system(&error))?;
        Ok(state.map_err(failed)?.map(State::name))
    }
}

/// Installs the program in a BPF file system at `directory`, for root and perhaps a `group`. OSError: EEXIST, EPERM.
#[pyfunction]
pub(super) fn install_option(
    py: Python<'_>,
    directory: PathBuf,
    group: Option<u32>,
) -> PyResult<()> {
    detached(py, || installed::install(&directory, group)).map_err(failed)
}

/// Removes what `install_option` has made; False when there is nothing. OSError.
#[pyfunction]
pub(super) fn remove_option(py: Python<'_>, directory: PathBuf) -> PyResult<bool> {
    detached(py, || installed::remove(&directory)).map_err(failed)
}

/// OSError with the system's number, as it is caught by, and what was being done.
#[cold]
fn failed(error: Error) -> PyErr {
    PyOSError::new_err((error.number(), error.to_string()))
}
