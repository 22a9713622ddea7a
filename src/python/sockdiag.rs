//! Socket look-ups for Python.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::errors::from_system;
use super::gate::locked;
use crate::fabric::sockdiag::{self, Address};

/// SockDiag()
/// --
///
/// A netlink socket that asks the kernel for TCP sockets. OSError: EMFILE and its kin, or what a sandbox says.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct SockDiag(Mutex<sockdiag::SockDiag>);

#[pymethods]
impl SockDiag {
    #[new]
    fn new() -> PyResult<Self> {
        let diag = sockdiag::SockDiag::new().map_err(|error| from_system(&error))?;
        Ok(Self(Mutex::new(diag)))
    }

    /// (state, uid, inode, cookie) of the TCP socket with these addresses, None when there is none.
    ///
    /// Hosts are 4 or 16 bytes, else ValueError; `scope` is the interface of a link-local address. OSError: refused.
    fn ask(
        &self,
        py: Python<'_>,
        own: &[u8],
        own_port: u16,
        peer: &[u8],
        peer_port: u16,
        scope: u32,
    ) -> PyResult<Option<(u8, u32, u32, u64)>> {
        let (own, peer) = (
            address(own, own_port, scope)?,
            address(peer, peer_port, scope)?,
        );
        let mut diag = locked(py, &self.0);
        let found = diag.ask(own, peer).map_err(|error| from_system(&error))?;
        Ok(found.map(|entry| (entry.state, entry.uid, entry.inode, entry.cookie)))
    }
}

fn address(host: &[u8], port: u16, scope: u32) -> PyResult<Address> {
    let host = if let Ok(bytes) = <[u8; 4]>::try_from(host) {
        Ipv4Addr::from(bytes).into()
    } else if let Ok(bytes) = <[u8; 16]>::try_from(host) {
        Ipv6Addr::from(bytes).into()
    } else {
        return Err(PyValueError::new_err("a host has 4 or 16 bytes"));
    };
    Ok(Address { host, port, scope })
}
