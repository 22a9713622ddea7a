//! What one side has to offer, as plain values.

use crate::wire::EngineId;
use crate::wire::clc::{
    Eid, Features, Few, FirstContact, Gid, HostName, Ipv4Prefix, Ipv6Prefix, Ism, IsmList, Mac,
    NativeIsm, Offer, OfferV1, OfferV2, Os, Paths, PeerId, Prefixes, Proposal, Release, RoceV2,
    SmcDV2, Version,
};

use super::agreed::Limits;

/// The channel of the emulated ISM device that every engine on a host shares.
pub const SAME_HOST_CHID: u16 = 0xff53;

/// The enterprise id of engines that were given none, and of the device that they share.
const SAME_HOST_EID: &str = "SMCFAST";

/// One side: who it is, and what it has. Without any device every handshake ends in a Decline.
#[derive(Debug, Clone)]
pub struct Local {
    /// Names the instance. Processes that share a RoCE GID need different ones: a kernel server takes those with the
    /// same for one.
    pub peer_id: PeerId,
    /// Told to the peer at first contact.
    pub host_name: HostName,
    /// Enterprise ids, the best first. SMC-Rv2 needs one that both sides have.
    pub eids: Few<Eid, 8>,
    /// The greatest release of version 2.
    pub release: Release,
    /// Devices for SMC-D.
    pub smc_d: Option<LocalD>,
    /// Devices for SMC-R.
    pub smc_r: Option<LocalR>,
    /// The subnets of the interface that the TCP connection uses, for version 1.
    pub subnets: Subnets,
}

/// Devices for SMC-D.
#[derive(Debug, Clone, Default)]
pub struct LocalD {
    /// The device for version 1, which has to be native.
    pub native: Option<NativeIsm>,
    /// The devices for version 2, native and emulated.
    pub devices: IsmList,
    /// The enterprise id of the system, if the hardware has given it one.
    pub seid: Option<Eid>,
}

/// Devices for SMC-R.
#[derive(Debug, Clone, Copy)]
pub struct LocalR {
    /// The MAC of the port.
    pub mac: Mac,
    /// The RoCEv1 GID, for version 1.
    pub v1: Option<Gid>,
    /// The RoCEv2 GID, for version 2: an IPv4-mapped address.
    pub v2: Option<Gid>,
    /// The greatest limits of a link group.
    pub limits: Limits,
}

/// The subnets of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subnets {
    /// IPv4, that of the TCP connection first.
    pub ipv4: Vec<Ipv4Prefix>,
    /// IPv6; a Proposal has room for eight.
    pub ipv6: Vec<Ipv6Prefix>,
}

impl Local {
    /// A side that only has other engines on the same host to talk to. Whatever enterprise ids it is given besides, they meet
    /// by that of the system: this is the device's.
    #[must_use]
    pub fn same_host(engine: EngineId, host_name: &str) -> Self {
        let [peer_id @ .., _, _, _, _, _, _, _, _] = engine.0;
        let device = Ism::emulated(engine.gid(), engine.gid_extension(), SAME_HOST_CHID);
        let devices = IsmList::new(device.into_iter().collect()).unwrap_or_default();
        let eid = Eid::new(SAME_HOST_EID);
        Self {
            peer_id: PeerId(peer_id),
            host_name: HostName::from_lossy(host_name),
            eids: eid.map(Few::one).unwrap_or_default(),
            release: Release::V2_1,
            smc_d: Some(LocalD {
                devices,
                seid: eid,
                ..LocalD::default()
            }),
            smc_r: None,
            subnets: Subnets::default(),
        }
    }

    /// The Proposal of everything there is; none if there is nothing.
    pub(super) fn proposal(&self) -> Option<Proposal> {
        let offer = match (self.offer_v1(), self.offer_v2()) {
            (Some(v1), Some(v2)) => Offer::Both(v1, v2),
            (None, Some(v2)) => Offer::V2(v2),
            (Some(v1), None) => Offer::V1(v1),
            (None, None) => return None,
        };
        let mac = self.smc_r.map(|r| r.mac).unwrap_or_default();
        Some(Proposal {
            peer_id: self.peer_id,
            mac,
            offer,
        })
    }

    /// The version of a Decline that comes instead of a Proposal (kernel 6.12).
    pub(super) fn first_decline_version(&self) -> Version {
        let has_ism_v2 = self.smc_d.as_ref().is_some_and(|d| !d.devices.is_empty());
        if has_ism_v2 { Version::V2 } else { Version::V1 }
    }

    /// What is told at first contact, without the terms.
    pub(super) fn first_contact(&self, direct: bool) -> FirstContact {
        FirstContact {
            direct,
            os: Os::LINUX,
            host_name: self.host_name,
            v2_1: None,
        }
    }

    fn offer_v1(&self) -> Option<OfferV1> {
        let r = self.smc_r.and_then(|r| r.v1);
        let d = self.smc_d.as_ref().and_then(|d| d.native);
        Some(OfferV1 {
            paths: both(r, d)?,
            prefixes: self.subnets.prefixes()?,
        })
    }

    fn offer_v2(&self) -> Option<OfferV2> {
        let has_eid = !self.eids.is_empty();
        let r = self.smc_r.filter(|_| has_eid).and_then(|r| {
            let Limits {
                max_connections,
                max_links,
            } = r.limits;
            Some(RoceV2 {
                gid: r.v2?,
                max_connections,
                max_links,
            })
        });
        let d = self
            .smc_d
            .as_ref()
            .filter(|d| !d.devices.is_empty() && (has_eid || d.seid.is_some()));
        let d = d.map(|d| SmcDV2 {
            seid: d.seid,
            devices: d.devices.clone(),
        });
        Some(OfferV2 {
            paths: both(r, d)?,
            eids: self.eids.clone(),
            release: self.release,
            features: Features::EMULATED_ISM,
        })
    }

    /// The own device of version 2 on the channel `chid`.
    pub(super) fn ism(&self, chid: u16) -> Option<Ism> {
        self.smc_d
            .as_ref()?
            .devices
            .iter()
            .find(|own| own.chid() == chid)
            .copied()
    }
}

fn both<R, D>(r: Option<R>, d: Option<D>) -> Option<Paths<R, D>> {
    match (r, d) {
        (Some(r), Some(d)) => Some(Paths::Both(r, d)),
        (Some(r), None) => Some(Paths::R(r)),
        (None, Some(d)) => Some(Paths::D(d)),
        (None, None) => None,
    }
}

impl Subnets {
    /// The prefix area of a Proposal: the IPv4 subnet of the connection, or the IPv6 prefixes of its interface.
    fn prefixes(&self) -> Option<Prefixes> {
        if let Some(&ipv4) = self.ipv4.first() {
            return Some(Prefixes::ipv4(ipv4));
        }
        let ipv6 = Few::new(self.ipv6.iter().take(8).copied().collect())?;
        (!ipv6.is_empty()).then_some(Prefixes {
            ipv4: Ipv4Prefix::ZERO,
            ipv6,
        })
    }

    /// Whether a client with these prefixes is in one of the subnets: the same prefix with the same length. If it
    /// tells IPv6 prefixes, only they count (kernel 6.12).
    #[must_use]
    pub fn meet(&self, offered: &Prefixes) -> bool {
        if offered.ipv6.is_empty() {
            self.ipv4.contains(&offered.ipv4)
        } else {
            offered.ipv6.iter().any(|prefix| self.ipv6.contains(prefix))
        }
    }
}
