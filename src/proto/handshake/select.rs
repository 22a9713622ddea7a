//! How a server finds the best of what a client offers.

use crate::wire::clc::{
    Diagnosis, Eid, Gid, Ism, NativeIsm, OfferV2, Proposal, Release, RoceV2, SmcDV2, Version,
};

use super::agreed::{Device, Limits};
use super::local::Local;
use crate::proto::error::PeerIncompatible;

/// What the server has chosen, before it has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) version: Version,
    pub(super) release: Option<Release>,
    pub(super) eid: Option<Eid>,
    pub(super) limits: Option<Limits>,
    pub(super) own: Device,
    pub(super) client: Device,
}

/// The first way that both sides can go, SMC-D before SMC-R and version 2 before version 1. If there is none, the first
/// obstacle counts, in the order of kernel 6.12.
pub(super) fn select(local: &Local, proposal: &Proposal) -> Result<Choice, PeerIncompatible> {
    let v2 = proposal.offer.v2();
    let (v1, stranger) = match proposal.offer.v1() {
        Some(v1) if !local.subnets.meet(&v1.prefixes) => {
            (None, Some(obstacle(Diagnosis::PREFIX_MISMATCH)))
        }
        v1 => (v1, None),
    };
    let ways = [
        v2.and_then(|v2| v2.paths.d().map(|d| d_v2(local, v2, d))),
        stranger,
        v1.and_then(|v1| v1.paths.d().map(|&device| d_v1(local, device))),
        v2.and_then(|v2| v2.paths.r().map(|r| r_v2(local, v2, r))),
        v1.and_then(|v1| v1.paths.r().map(|&gid| r_v1(local, gid))),
    ];
    let mut first = None;
    for way in ways.into_iter().flatten() {
        match way {
            Ok(choice) => return Ok(choice),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(PeerIncompatible {
        diagnosis: Diagnosis::NO_SMC_DEVICE,
    }))
}

fn obstacle<T>(diagnosis: Diagnosis) -> Result<T, PeerIncompatible> {
    Err(PeerIncompatible { diagnosis })
}

fn d_v2(local: &Local, offer: &OfferV2, d: &SmcDV2) -> Result<Choice, PeerIncompatible> {
    let Some(own) = local.smc_d.as_ref().filter(|own| !own.devices.is_empty()) else {
        return obstacle(Diagnosis::NO_ISM_V2);
    };
    if offer.eids.is_empty() && d.seid.is_none() {
        return obstacle(Diagnosis::NO_UEID);
    }
    let devices = |client: &Ism| Some((local.ism(client.chid())?, *client));
    let Some((device, client)) = d.devices.iter().find_map(devices) else {
        return obstacle(Diagnosis::NO_SMC_D_V2_DEVICE);
    };
    let seid = d.seid.filter(|seid| own.seid == Some(*seid));
    let Some(eid) = common_eid(local, offer).or(seid) else {
        return obstacle(Diagnosis::NO_SEID);
    };
    Ok(Choice {
        version: Version::V2,
        release: Some(offer.release.min(local.release)),
        eid: Some(eid),
        limits: None,
        own: Device::D(device),
        client: Device::D(client),
    })
}

fn r_v2(local: &Local, offer: &OfferV2, r: &RoceV2) -> Result<Choice, PeerIncompatible> {
    if offer.eids.is_empty() {
        return obstacle(Diagnosis::NO_UEID);
    }
    let Some((own, gid)) = local.smc_r.and_then(|own| Some((own, own.v2?))) else {
        return obstacle(Diagnosis::NO_SMC_R_DEVICE);
    };
    // Kernel 6.12 has no other code for strange enterprise ids.
    let Some(eid) = common_eid(local, offer) else {
        return obstacle(Diagnosis::NO_SMC_DEVICE);
    };
    if r.gid.to_ipv4().is_none() {
        return obstacle(Diagnosis::NO_SMC_R_DEVICE);
    }
    let release = offer.release.min(local.release);
    Ok(Choice {
        version: Version::V2,
        release: Some(release),
        eid: Some(eid),
        limits: if release > Release::V2_0 {
            Some(limits(own.limits, r)?)
        } else {
            None
        },
        own: Device::R(gid),
        client: Device::R(r.gid),
    })
}

fn d_v1(local: &Local, client: NativeIsm) -> Result<Choice, PeerIncompatible> {
    let own = local.smc_d.as_ref().and_then(|d| d.native);
    match (own.and_then(native), native(client)) {
        (Some(own), Some(client)) => Ok(first_version(Device::D(own), Device::D(client))),
        _ => obstacle(Diagnosis::NO_SMC_D_DEVICE),
    }
}

fn r_v1(local: &Local, client: Gid) -> Result<Choice, PeerIncompatible> {
    match local.smc_r.and_then(|r| r.v1) {
        Some(own) => Ok(first_version(Device::R(own), Device::R(client))),
        None => obstacle(Diagnosis::NO_SMC_R_DEVICE),
    }
}

fn first_version(own: Device, client: Device) -> Choice {
    Choice {
        version: Version::V1,
        release: None,
        eid: None,
        limits: None,
        own,
        client,
    }
}

fn native(device: NativeIsm) -> Option<Ism> {
    Ism::native(device.gid, device.chid)
}

/// The first of the client's, which are in the order of its preference.
fn common_eid(local: &Local, offer: &OfferV2) -> Option<Eid> {
    offer
        .eids
        .iter()
        .find(|eid| local.eids.contains(eid))
        .copied()
}

/// The lesser limits of both sides, if a link group may be limited so far.
fn limits(own: Limits, client: &RoceV2) -> Result<Limits, PeerIncompatible> {
    let max_connections = own.max_connections.min(client.max_connections);
    let max_links = own.max_links.min(client.max_links);
    if max_connections < Limits::MIN_CONNECTIONS {
        return obstacle(Diagnosis::MAX_CONNECTIONS);
    }
    if max_links < Limits::MIN_LINKS {
        return obstacle(Diagnosis::MAX_LINKS);
    }
    Ok(Limits {
        max_connections,
        max_links,
    })
}
