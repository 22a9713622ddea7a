//! What an end has to offer in a handshake.

use std::sync::Arc;

use super::host_name;
use crate::driver::engine::Engine;
use crate::driver::rdma::{Port, Side};
use crate::proto::handshake::{Limits, Local, LocalR, Subnets};
use crate::wire::clc::{Eid, Few, Gid, Ipv4Prefix, Version};

/// Connections of a link group over RDMA at most, as kernel 6.12 has them.
const CONNECTIONS_MAX: u8 = 255;

/// The ways that an end can go.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// SMC-D: memory that both map.
    pub memory: bool,
    /// SMC-R, where there is a device for the connection.
    pub rdma: Option<RdmaOffer>,
}

/// The device of one connection.
#[derive(Debug, Clone)]
pub struct RdmaOffer {
    /// For version 1: a RoCEv1 address, or what the configuration allows in its place.
    pub v1: Option<Arc<Port>>,
    /// For version 2: a RoCEv2 address that is IPv4-mapped.
    pub v2: Option<Arc<Port>>,
    /// Enterprise ids, the best first; none stands for that of smcfast itself.
    pub eids: Few<Eid, 8>,
    /// Links that a server may be asked for, 1 or 2. A server itself answers 1, whatever a client asks for: one that is granted
    /// a second link waits for it, for seconds, and none is made here.
    pub max_links: u8,
    /// The subnets of the connection's interface.
    pub subnets: Subnets,
}

impl Offer {
    /// Memory alone.
    pub fn memory() -> Self {
        Self {
            memory: true,
            rdma: None,
        }
    }

    /// This offer of `engine`, for a handshake in the role `side`.
    pub(super) fn local(&self, engine: &Engine, side: Side) -> Local {
        let mut local = Local::same_host(engine.id(), host_name());
        if !self.memory {
            local.smc_d = None;
        }
        if let Some(rdma) = &self.rdma {
            local.peer_id = engine.peer_id();
            local.smc_r = rdma.local(side);
            local.subnets = rdma.subnets.clone();
            if !rdma.eids.is_empty() {
                local.eids = rdma.eids.clone();
            }
        }
        local
    }
}

impl RdmaOffer {
    fn local(&self, side: Side) -> Option<LocalR> {
        let mac = self.v2.as_ref().or(self.v1.as_ref())?.own().mac;
        let gid = |port: &Arc<Port>| port.own().gid;
        Some(LocalR {
            mac,
            v1: self.v1.as_ref().map(gid),
            v2: self.v2.as_ref().map(gid),
            limits: Limits {
                max_connections: CONNECTIONS_MAX,
                max_links: match side {
                    Side::Client => self.max_links,
                    Side::Server => Limits::MIN_LINKS,
                },
            },
        })
    }

    /// The port for a group of `version`.
    pub(super) fn port(&self, version: Version) -> Option<&Arc<Port>> {
        match version {
            Version::V1 => self.v1.as_ref(),
            Version::V2 => self.v2.as_ref(),
        }
    }

    /// Whether `peer` is reached without a router. What is no IPv4 address is in the connection's own subnet by the rules of
    /// version 1.
    pub(super) fn is_direct(&self, peer: Gid) -> bool {
        let Some(address) = peer.to_ipv4() else {
            return true;
        };
        let subnets = &self.subnets.ipv4;
        subnets.is_empty()
            || subnets
                .iter()
                .any(|subnet| Ipv4Prefix::new(address, subnet.len()) == Some(*subnet))
    }
}
