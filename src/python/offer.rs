//! The RDMA device of a connection, for Python.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::engine::Engine;
use super::errors::{from_system, inherited};
use super::gate::detached;
use crate::driver::rdma::{OwnPort, Port};
use crate::driver::setup::{self, moment};
use crate::proto::handshake::Subnets;
use crate::wire::clc::{Eid, Few, Gid, Ipv4Prefix, Ipv6Prefix, Mac};

/// A GID and its place in the table of its port.
type Place = (u8, [u8; 16]);

/// What an end of a connection has for SMC-R: ports that the engine has opened, and what is told of them.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct RdmaOffer(setup::RdmaOffer);

#[pymethods]
impl RdmaOffer {
    /// Opens `port` of `device` unless the engine has it open, with the GIDs `v1` and `v2` for either version of CLC, each with
    /// its place in the port's table; `test_after` seconds without a message a link is tested (0: never). `ipv4` and `ipv6` are
    /// the subnets of the connection's interface with their lengths, `ueids` the enterprise ids (none stands for smcfast's own).
    ///
    /// OSError when the device or libibverbs cannot be used; ValueError for names and numbers that cannot be; RuntimeError in a
    /// forked child.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one call with names, from one place"
    )]
    #[pyo3(signature = (engine, *, device, port, mac, v1, v2, ueids, max_links, test_after, ipv4, ipv6))]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, Engine>,
        device: &str,
        port: u8,
        mac: [u8; 6],
        v1: Option<Place>,
        v2: Option<Place>,
        ueids: Vec<String>,
        max_links: u8,
        test_after: f64,
        ipv4: Vec<([u8; 4], u8)>,
        ipv6: Vec<([u8; 16], u8)>,
    ) -> PyResult<Self> {
        let engine = Arc::clone(&engine.get().driver);
        if !engine.is_ours() {
            return Err(inherited());
        }
        let own = |(gid_index, gid)| OwnPort {
            device: device.to_owned(),
            port,
            gid_index,
            gid: Gid(gid),
            mac: Mac(mac),
            test_after: Some(moment(test_after)).filter(|after| *after > Duration::ZERO),
        };
        let (v1, v2) = (v1.map(own), v2.map(own));
        let open = |own: Option<OwnPort>| own.map(|own| engine.port(&own)).transpose();
        let opened: std::io::Result<_> = detached(py, || Ok((open(v1)?, open(v2)?)));
        let (v1, v2): (Option<Arc<Port>>, _) = opened.map_err(|error| from_system(&error))?;
        Ok(Self(setup::RdmaOffer {
            v1,
            v2,
            eids: eids(&ueids)?,
            max_links: max_links.max(1),
            subnets: subnets(&ipv4, &ipv6)?,
        }))
    }
}

impl RdmaOffer {
    /// It, for a set-up.
    pub(super) fn offer(&self) -> setup::RdmaOffer {
        self.0.clone()
    }
}

fn eids(names: &[String]) -> PyResult<Few<Eid, 8>> {
    let eids = names
        .iter()
        .map(|name| Eid::new(name))
        .collect::<Option<Vec<_>>>();
    eids.and_then(Few::new)
        .ok_or_else(|| PyValueError::new_err(format!("ueids: {names:?}: not 8 enterprise ids")))
}

fn subnets(ipv4: &[([u8; 4], u8)], ipv6: &[([u8; 16], u8)]) -> PyResult<Subnets> {
    let ipv4 = ipv4
        .iter()
        .map(|&(address, len)| Ipv4Prefix::new(Ipv4Addr::from(address), len));
    let ipv6 = ipv6
        .iter()
        .map(|&(address, len)| Ipv6Prefix::new(Ipv6Addr::from(address), len));
    let (ipv4, ipv6) = (ipv4.collect::<Option<_>>(), ipv6.collect::<Option<_>>());
    let (Some(ipv4), Some(ipv6)) = (ipv4, ipv6) else {
        return Err(PyValueError::new_err("a subnet is longer than an address"));
    };
    Ok(Subnets { ipv4, ipv6 })
}
