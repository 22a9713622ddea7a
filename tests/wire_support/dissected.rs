//! What tshark 4.0 should find in a message: the names of its fields and their values as it prints them.
//!
//! Its dissector is older than release 1 and emulated devices: their fields it shows as reserved bytes, under
//! [`RESERVED`].

use smcfast::wire::clc::*;

/// The field of bytes without a meaning; a message has many.
pub(crate) const RESERVED: &str = "smc.reserved";

/// Fields in any order; a name that occurs again is a further value.
pub(crate) type Dissected = Vec<(&'static str, String)>;

pub(crate) fn dissected(message: &Message, length: usize) -> Dissected {
    let mut found = match message {
        Message::Proposal(message) => proposal(message),
        Message::Accept(message) => reply(message, &ACCEPT),
        Message::Confirm(message) => reply(message, &CONFIRM),
        Message::Decline(message) => decline(message),
    };
    if let Message::Confirm(Confirm::RV2 {
        first_contact: Some(contact),
        ..
    }) = message
    {
        found.extend(contact_fields(&contact.terms, true, &CONFIRM));
        found.push((
            "smc.confirm.gid.list.entry_count",
            contact.gids.len().to_string(),
        ));
        found.extend(
            contact
                .gids
                .iter()
                .map(|gid| ("smc.confirm.gid.list.entry", gid.to_string())),
        );
    }
    if let Message::Accept(Accept::RV2 {
        first_contact: Some(terms),
        ..
    }) = message
    {
        found.extend(contact_fields(terms, true, &ACCEPT));
    }
    found.push(("smc.clc_msg", (message.kind() as u8).to_string()));
    found.push(("smc.length", length.to_string()));
    found
}

fn word(value: u64) -> String {
    format!("{value:#018x}")
}

fn half(value: u32) -> String {
    format!("{value:#010x}")
}

fn chid(value: u16) -> String {
    format!("{value:#06x}")
}

fn id(peer: PeerId) -> String {
    format!("0x{peer}")
}

fn colons(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}

fn eid(eid: &Eid) -> String {
    format!("{:32}", eid.name())
}

fn code<R, D>(paths: Option<&Paths<R, D>>) -> String {
    match paths {
        Some(Paths::R(_)) => "0",
        Some(Paths::D(_)) => "1",
        None => "2",
        Some(Paths::Both(..)) => "3",
    }
    .into()
}

fn proposal(message: &Proposal) -> Dissected {
    let (v1, v2) = (message.offer.v1(), message.offer.v2());
    let r1 = v1.and_then(|v1| v1.paths.r());
    let r2 = v2.and_then(|v2| v2.paths.r());
    let mut found = vec![
        (
            "smc.proposal.smc.version",
            (message.offer.version() as u8).to_string(),
        ),
        ("smc.proposal.smc.type", code(v1.map(|v1| &v1.paths))),
    ];
    if r1.is_some() || r2.is_some() {
        found.push(("smc.proposal.sender.client.peer.id", id(message.peer_id)));
    } else {
        found.push((RESERVED, colons(&message.peer_id.0)));
    }
    match r1 {
        Some(gid) => {
            found.push(("smc.proposal.client.preferred.gid", gid.to_string()));
            found.push(("smc.proposal.client.preferred.mac", message.mac.to_string()));
        }
        None => found.push((RESERVED, colons(&[&[0; 16], &message.mac.0[..]].concat()))),
    }
    found.extend(area(message));
    found.extend(v1.map(offer_v1).unwrap_or_default());
    found.extend(v2.map(offer_v2).unwrap_or_default());
    found
}

fn area(message: &Proposal) -> Dissected {
    let (v1, v2) = (message.offer.v1(), message.offer.v2());
    let d1 = v1.and_then(|v1| v1.paths.d());
    let mut found = vec![];
    if d1.is_some() || v2.is_some_and(|v2| v2.paths.d().is_some()) {
        let device = d1.copied().unwrap_or_default();
        found.push(("smc.proposal.ism.gid", word(device.gid)));
        if message.offer.version() == Version::V2 {
            found.push(("smc.proposal.smc.chid", chid(device.chid)));
        } else {
            found.push((RESERVED, colons(&device.chid.to_be_bytes())));
        }
    }
    if message.offer.version() == Version::V2 {
        let prefixes = v1.map_or(0, |v1| 8 + 17 * v1.prefixes.ipv6.len() as u16);
        found.push((
            "smc.proposal.smcv2_ext_offset",
            chid(if v2.is_some() { 28 + prefixes } else { 0 }),
        ));
        found.push(("smc.proposal.smcv2.type", code(v2.map(|v2| &v2.paths))));
    }
    found
}

fn offer_v1(v1: &OfferV1) -> Dissected {
    let prefixes = &v1.prefixes;
    let bits = "smc.outgoing.interface.subnet.mask.number.of.significant.bits";
    let mut found = vec![
        ("smc.proposal.smcv1_subnet_ext_offset", chid(40)),
        (
            "smc.outgoing.interface.subnet.mask",
            prefixes.ipv4.address().to_string(),
        ),
        (bits, prefixes.ipv4.len().to_string()),
        (
            "smc.proposal.ipv6.prefix.count",
            prefixes.ipv6.len().to_string(),
        ),
    ];
    for prefix in prefixes.ipv6.iter() {
        found.push((
            "smc.proposal.ipv6.prefix.value",
            prefix.address().to_string(),
        ));
        found.push(("smc.proposal.ipv6.prefix.length", prefix.len().to_string()));
    }
    found
}

fn offer_v2(v2: &OfferV2) -> Dissected {
    let (r, d) = (v2.paths.r(), v2.paths.d());
    let entries = d.map_or(0, |d| {
        d.devices
            .iter()
            .map(|device| 1 + usize::from(device.is_emulated()))
            .sum()
    });
    let limits = r.map_or([0, 0], |r| [r.max_connections, r.max_links]);
    let features = v2.features.bits().to_be_bytes();
    let seid = d.and_then(|d| d.seid.as_ref());
    let mut found = vec![
        ("smc.proposal.eid.count", v2.eids.len().to_string()),
        ("smc.proposal.ismv2_gid_count", entries.to_string()),
        (
            "smc.proposal.smc.version.relnum",
            v2.release.number().to_string(),
        ),
        (
            "smc.proposal.smc.seid",
            u8::from(seid.is_some()).to_string(),
        ),
        (
            "smc.proposal.smcdv2_ext_offset",
            chid(if d.is_some() {
                32 + 32 * v2.eids.len() as u16
            } else {
                0
            }),
        ),
    ];
    let v2_1 = [&limits[..], &features, &[0; 12]].concat();
    match r {
        Some(r) => {
            found.push((RESERVED, colons(&v2_1)));
            found.push((
                "smc.proposal.rocev2.gid.ipv4",
                r.gid.to_ipv4().unwrap().to_string(),
            ));
        }
        None => found.push((RESERVED, colons(&v2_1))),
    }
    found.extend(v2.eids.iter().map(|name| ("smc.proposal.eid", eid(name))));
    if let Some(d) = d {
        found.push(("smc.proposal.system.eid", seid.map_or(String::new(), eid)));
        found.extend(d.devices.iter().flat_map(device));
    }
    found
}

fn device(device: &Ism) -> Dissected {
    let entry = |gid| {
        [
            ("smc.proposal.ism.gid", word(gid)),
            ("smc.proposal.smc.chid", chid(device.chid())),
        ]
    };
    let mut found = entry(device.gid()).to_vec();
    if device.is_emulated() {
        found.extend(entry(device.extension()));
    }
    found
}

/// How the dissector calls the fields of an Accept or a Confirm.
struct Names {
    first_contact_r: &'static str,
    first_contact_d: &'static str,
    peer_id: &'static str,
    gid: &'static str,
    mac: &'static str,
    qp_number: &'static str,
    rkey: &'static str,
    index: &'static str,
    token: &'static str,
    size: &'static str,
    mtu: &'static str,
    address: &'static str,
    psn: &'static str,
    ism_gid: &'static str,
    dmb_token: &'static str,
    dmbe_index: &'static str,
    dmb_size: &'static str,
    link_id: &'static str,
    chid: &'static str,
    eid: &'static str,
    os: &'static str,
    release: &'static str,
    host_name: &'static str,
}

const ACCEPT: Names = Names {
    first_contact_r: "smc.proposal.first.contact",
    first_contact_d: "smc.accept.first.contact",
    peer_id: "smc.accept.sender.server.peer.id",
    gid: "smc.accept.server.preferred.gid",
    mac: "smc.accept.server.preferred.mac",
    qp_number: "smc.accept.server.qp.number",
    rkey: "smc.accept.server.rmb.rkey",
    index: "smc.accept.server.tcp.conn.index",
    token: "smc.accept.server.rmb.element.alert.token",
    size: "smc.accept.rmb.buffer.size",
    mtu: "smc.accept.qp.mtu.value",
    address: "smc.accept.server.rmb.virtual.address",
    psn: "smc.accept.initial.psn",
    ism_gid: "smc.accept.sender.server.ism.gid",
    dmb_token: "smc.accept.dmb.token",
    dmbe_index: "smc.accept.dmbe.conn.index",
    dmb_size: "smc.accept.dmbe.buffer.size",
    link_id: "smc.accept.server.linkid",
    chid: "smc.accept.smc.chid",
    eid: "smc.accept.eid",
    os: "smc.accept.os.type",
    release: "smc.accept.smc.version.relnum",
    host_name: "smc.accept.peer.host.name",
};

const CONFIRM: Names = Names {
    first_contact_r: "smc.confirm.first.contact",
    first_contact_d: "smc.confirm.first.contact",
    peer_id: "smc.confirm.sender.client.peer.id",
    gid: "smc.client.gid",
    mac: "smc.confirm.client.mac",
    qp_number: "smc.confirm.client.qp.number",
    rkey: "smc.confirm.client.rmb.rkey",
    index: "smc.confirm.client.tcp.conn.index",
    token: "smc.client.rmb.element.alert.token",
    size: "smc.confirm.rmb.buffer.size",
    mtu: "smc.confirm.qp.mtu.value",
    address: "smc.client.rmb.virtual.address",
    psn: "smc.initial.psn",
    ism_gid: "smc.confirm.sender.client.ism.gid",
    dmb_token: "smc.confirm.dmb.token",
    dmbe_index: "smc.confirm.dmbe.conn.index",
    dmb_size: "smc.confirm.dmbe.buffer.size",
    link_id: "smc.confirm.client.linkid",
    chid: "smc.confirm.smc.chid",
    eid: "smc.confirm.eid",
    os: "smc.confirm.os.type",
    release: "smc.confirm.smc.version.relnum",
    host_name: "smc.confirm.peer.host.name",
};

fn reply<X>(message: &Reply<X>, names: &Names) -> Dissected {
    let mut found = match message {
        Reply::RV1 { end, .. } => smc_r(end, names),
        Reply::RV2 { end, eid: name, .. } => {
            let mut found = smc_r(end, names);
            found.push((names.eid, eid(name)));
            found
        }
        Reply::DV1 { gid, end, .. } => smc_d(*gid, end, names),
        Reply::DV2 {
            device,
            end,
            eid: name,
            first_contact,
        } => {
            let mut found = smc_d(device.gid(), end, names);
            found.push((names.chid, chid(device.chid())));
            found.push((names.eid, eid(name)));
            found.push((RESERVED, colons(&device.extension().to_be_bytes())));
            found.extend(
                first_contact
                    .iter()
                    .flat_map(|terms| contact_fields(terms, false, names)),
            );
            found
        }
    };
    let smc_r = matches!(message, Reply::RV1 { .. } | Reply::RV2 { .. });
    let first_contact = if smc_r {
        names.first_contact_r
    } else {
        names.first_contact_d
    };
    found.push((
        first_contact,
        u8::from(message.is_first_contact()).to_string(),
    ));
    found.push((
        "smc.proposal.smc.version",
        (message.version() as u8).to_string(),
    ));
    found
}

fn smc_r(end: &SmcR, names: &Names) -> Dissected {
    vec![
        (names.peer_id, id(end.peer_id)),
        (names.gid, end.gid.to_string()),
        (names.mac, end.mac.to_string()),
        (names.qp_number, format!("{:#08x}", end.qp_number.get())),
        (names.rkey, half(end.rkey)),
        (names.index, end.rmbe_index.to_string()),
        (names.token, half(end.alert_token.get())),
        (names.size, end.size.code().to_string()),
        (names.mtu, end.mtu.code().to_string()),
        (names.address, word(end.rmb_address)),
        (names.psn, format!("{:#08x}", end.psn.get())),
    ]
}

fn smc_d(gid: u64, end: &SmcD, names: &Names) -> Dissected {
    vec![
        (names.ism_gid, word(gid)),
        (names.dmb_token, word(end.token)),
        (names.dmbe_index, end.dmbe_index.to_string()),
        (names.dmb_size, end.size.code().to_string()),
        (names.link_id, half(end.link_id)),
    ]
}

fn contact_fields(terms: &FirstContact, smc_r: bool, names: &Names) -> Dissected {
    let mut found = vec![
        (names.os, terms.os.code().to_string()),
        (names.release, terms.release().number().to_string()),
        (
            names.host_name,
            format!("{:32}", terms.host_name.text().unwrap()),
        ),
    ];
    if smc_r {
        found.push(("smc.accept.v2_lg.type", u8::from(terms.direct).to_string()));
    } else {
        found.push((RESERVED, if terms.direct { "80" } else { "00" }.into()));
    }
    // The dissector leaves these out of a Confirm for SMC-D.
    let shown = smc_r || names.eid == ACCEPT.eid;
    if let Some(v2_1) = terms.v2_1.filter(|_| shown) {
        let [high, low] = v2_1.features.bits().to_be_bytes();
        let limits = [v2_1.max_connections, v2_1.max_links, high, low];
        found.push((RESERVED, colons(&[&limits[..], &[0; 12]].concat())));
    }
    found
}

fn decline(message: &Decline) -> Dissected {
    let mut found = vec![
        (
            "smc.decline.smc.version",
            (message.version() as u8).to_string(),
        ),
        (
            "smc.decline.osync",
            u8::from(message.out_of_sync).to_string(),
        ),
        ("smc.sender.peer.id", id(message.peer_id)),
        ("smc.peer.diag.info", half(message.diagnosis.0)),
    ];
    if let Some(more) = message.more {
        found.push(("smc.decline.os.type", message.os.code().to_string()));
        found.extend(more.map(|diagnosis| ("smc.peer.diag.info", half(diagnosis.0))));
    }
    found
}
