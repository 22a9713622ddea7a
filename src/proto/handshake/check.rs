//! What each side checks in the answer of the other.

use super::agreed::{Agreed, Device, Limits, PeerEnd};
use super::select::Choice;
use crate::proto::error::PeerIncompatible;
use crate::wire::clc::{
    Accept, Confirm, Diagnosis, FirstContact, Ism, Offer, OfferV2, Release, Reply, RoceV2, V21,
};

/// Whether `accept` is an answer to `offer`.
pub(super) fn check_accept(offer: &Offer, accept: &Accept) -> Result<Agreed, PeerIncompatible> {
    let mismatch = PeerIncompatible {
        diagnosis: Diagnosis::MODE_MISMATCH,
    };
    let v1 = offer.v1().ok_or(mismatch);
    let v2 = offer.v2().ok_or(mismatch);
    let mut agreed = Agreed {
        version: accept.version(),
        path: PeerEnd::of(accept).path(),
        first_contact: accept.is_first_contact(),
        release: None,
        eid: None,
        limits: None,
    };
    match accept {
        Reply::RV1 { .. } => drop(v1?.paths.r().ok_or(mismatch)?),
        Reply::DV1 { .. } => drop(v1?.paths.d().ok_or(mismatch)?),
        Reply::RV2 {
            eid, first_contact, ..
        } => {
            let (v2, r) = (v2?, v2?.paths.r().ok_or(mismatch)?);
            PeerIncompatible::unless(v2.eids.contains(eid), Diagnosis::MODE_MISMATCH)?;
            agreed.eid = Some(*eid);
            agreed.release = first_contact
                .map(|contact| check_release(v2, &contact))
                .transpose()?;
            let terms = first_contact.and_then(|contact| contact.v2_1);
            agreed.limits = terms.map(|terms| check_limits(r, &terms)).transpose()?;
        }
        Reply::DV2 {
            device,
            eid,
            first_contact,
            ..
        } => {
            let (v2, d) = (v2?, v2?.paths.d().ok_or(mismatch)?);
            let mut channels = d.devices.iter().map(Ism::chid);
            PeerIncompatible::unless(
                channels.any(|chid| chid == device.chid()),
                Diagnosis::NO_SMC_D_V2_DEVICE,
            )?;
            PeerIncompatible::unless(
                v2.eids.contains(eid) || d.seid == Some(*eid),
                Diagnosis::MODE_MISMATCH,
            )?;
            agreed.eid = Some(*eid);
            agreed.release = first_contact
                .map(|contact| check_release(v2, &contact))
                .transpose()?;
        }
    }
    Ok(agreed)
}

fn check_release(offer: &OfferV2, contact: &FirstContact) -> Result<Release, PeerIncompatible> {
    let release = contact.release();
    PeerIncompatible::unless(release <= offer.release, Diagnosis::RELEASE)?;
    Ok(release)
}

/// The server may lower the limits, within reason, and not raise them.
fn check_limits(offer: &RoceV2, terms: &V21) -> Result<Limits, PeerIncompatible> {
    let &V21 {
        max_connections,
        max_links,
        ..
    } = terms;
    let connections = Limits::MIN_CONNECTIONS..=offer.max_connections;
    PeerIncompatible::unless(
        connections.contains(&max_connections),
        Diagnosis::MAX_CONNECTIONS,
    )?;
    let links = Limits::MIN_LINKS..=offer.max_links;
    PeerIncompatible::unless(links.contains(&max_links), Diagnosis::MAX_LINKS)?;
    Ok(Limits {
        max_connections,
        max_links,
    })
}

/// Whether `confirm` repeats what `accept` says.
///
/// Kernel 6.12 checks release and limits. Enterprise id and SMC-D device are checked here too: a client that names
/// another device than it has proposed would be given memory that was meant for somebody else. The flag of first
/// contact is left alone in version 1, where RFC 7609 has it in the Accept only.
pub(super) fn check_confirm(
    accept: &Accept,
    choice: &Choice,
    confirm: &Confirm,
) -> Result<Agreed, PeerIncompatible> {
    let unless = |same| PeerIncompatible::unless(same, Diagnosis::MODE_MISMATCH);
    match (accept, confirm) {
        (Reply::RV1 { .. }, Reply::RV1 { .. }) => {}
        (Reply::DV1 { .. }, Reply::DV1 { gid, .. }) => {
            unless(matches!(choice.client, Device::D(client) if client.gid() == *gid))?;
        }
        (
            Reply::RV2 {
                eid,
                first_contact: terms,
                ..
            },
            Reply::RV2 {
                eid: same,
                first_contact: contact,
                ..
            },
        ) => {
            unless(eid == same)?;
            check_terms(
                terms.as_ref(),
                contact.as_ref().map(|contact| &contact.terms),
            )?;
        }
        (
            Reply::DV2 {
                eid,
                first_contact: terms,
                ..
            },
            Reply::DV2 {
                eid: same,
                first_contact: contact,
                device,
                ..
            },
        ) => {
            unless(eid == same && choice.client == Device::D(*device))?;
            check_terms(terms.as_ref(), contact.as_ref())?;
        }
        _ => unless(false)?,
    }
    let first_contact = accept.is_first_contact();
    Ok(Agreed {
        version: choice.version,
        path: choice.own.path(),
        first_contact,
        release: choice.release.filter(|_| first_contact),
        eid: choice.eid,
        limits: choice.limits.filter(|_| first_contact),
    })
}

fn check_terms(
    said: Option<&FirstContact>,
    repeated: Option<&FirstContact>,
) -> Result<(), PeerIncompatible> {
    let (Some(said), Some(repeated)) = (said, repeated) else {
        return PeerIncompatible::unless(
            said.is_none() && repeated.is_none(),
            Diagnosis::MODE_MISMATCH,
        );
    };
    PeerIncompatible::unless(said.release() == repeated.release(), Diagnosis::RELEASE)?;
    let Some((said, repeated)) = said.v2_1.zip(repeated.v2_1) else {
        return Ok(());
    };
    PeerIncompatible::unless(
        said.max_connections == repeated.max_connections,
        Diagnosis::MAX_CONNECTIONS,
    )?;
    PeerIncompatible::unless(said.max_links == repeated.max_links, Diagnosis::MAX_LINKS)
}
