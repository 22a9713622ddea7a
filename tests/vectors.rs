//! Every vector decodes to the fields it states and encodes back to the same bytes; bad ones are refused.
//!
//! `tests/vectors/clc.json` was captured between two Linux 6.12 kernels or between one and a user-space program;
//! `clc_v1.json` are the examples of smc-clc's documentation; `examples.json` pins what `tshark.rs` compares.

#[path = "wire_support/examples.rs"]
mod examples;
mod wire_support;

use serde_json::{Map, Value, json};
use smcfast::wire::clc::{
    Accept, Confirm, Decline, FirstContact, Message, Offer, OfferV1, OfferV2, Paths, Proposal,
    Reply, SmcR, Version,
};
use smcfast::wire::tcpopt;
use wire_support::{clc_vectors, hex, vectors};

type Fields = Map<String, Value>;

/// What a vector states about the form of the message, not its values: held by the equality of bytes.
const FORM: [&str; 8] = [
    "eyecatcher",
    "length",
    "flag_byte",
    "iparea_offset",
    "v2_ext_offset",
    "v2ext_abs_offset",
    "fce_vendor",
    "trailer",
];

#[test]
fn clc_vectors_decode_to_their_fields_and_encode_to_their_bytes() {
    let mut seen = 0;
    for vector in clc_vectors()
        .iter()
        .filter(|vector| !vector.name.starts_with("bad_"))
    {
        let name = &vector.name;
        let message =
            Message::decode(&vector.bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let fields = fields(&message);
        for (key, stated) in vector.decoded.as_object().unwrap() {
            if !FORM.contains(&key.as_str()) {
                assert_eq!(fields.get(key), Some(stated), "{name}: {key}");
            }
        }
        assert_eq!(hex(&message.encode()), hex(&vector.bytes), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 27);
}

#[test]
fn messages_that_tshark_has_read_keep_their_bytes() {
    let pinned = vectors("examples.json");
    let examples = examples::examples();
    assert_eq!(pinned.len(), examples.len());
    for (pinned, (name, message)) in pinned.iter().zip(examples) {
        assert_eq!(
            (pinned.name.as_str(), hex(&pinned.bytes)),
            (name, hex(&message.encode()))
        );
        assert_eq!(Message::decode(&pinned.bytes), Ok(message), "{name}");
    }
}

#[test]
fn bad_vectors_are_refused_and_the_field_is_named() {
    let refused: Vec<_> = clc_vectors()
        .iter()
        .filter(|vector| vector.name.starts_with("bad_"))
        .map(|vector| {
            (
                vector.name.clone(),
                Message::decode(&vector.bytes).unwrap_err().to_string(),
            )
        })
        .collect();
    let expected = [(
        "bad_decline_version2_length28_rejected",
        "CLC Decline: length: 28, expected 44",
    )];
    assert_eq!(
        refused,
        expected.map(|(name, error)| (name.to_owned(), error.to_owned()))
    );
}

#[test]
fn options_of_captured_syns_have_the_option_where_they_state() {
    let vectors = vectors("tcpopt.json");
    assert_eq!(vectors.len(), 2);
    for vector in vectors {
        let at = vector.decoded["smc_option_at"].as_u64().unwrap() as usize;
        assert_eq!(tcpopt::find(&vector.bytes), Some(at), "{}", vector.name);
        let mut options = vector.bytes[..at - 2].to_vec();
        assert!(tcpopt::append(&mut options));
        assert_eq!(options, vector.bytes, "{}", vector.name);
    }
}

fn fields(message: &Message) -> Fields {
    let version = json!(message.version() as u8);
    let (mut fields, kind) = match message {
        Message::Proposal(proposal) => (proposal_fields(proposal), "Proposal"),
        Message::Accept(accept) => (accept_fields(accept), "Accept"),
        Message::Confirm(confirm) => (confirm_fields(confirm), "Confirm"),
        Message::Decline(decline) => (decline_fields(decline), "Decline"),
    };
    fields.insert("version".into(), version);
    fields.insert("type".into(), kind.into());
    fields
}

fn of(value: Value) -> Fields {
    value.as_object().unwrap().clone()
}

fn proposal_fields(proposal: &Proposal) -> Fields {
    let mut fields = of(json!({
        "peer_id": proposal.peer_id.to_string(),
        "v1_mac": proposal.mac.to_string(),
        "v1_gid": "00".repeat(16),
        "ism_gid": "0x0",
        "ism_chid": 0,
        "typev1": 2,
        "typev2_or_fc": if proposal.offer.version() == Version::V1 { 0 } else { 2 },
    }));
    if let Some(v1) = proposal.offer.v1() {
        fields.append(&mut offer_v1_fields(v1));
    }
    if let Some(v2) = proposal.offer.v2() {
        fields.append(&mut offer_v2_fields(v2));
    }
    assert_eq!(
        matches!(proposal.offer, Offer::V1(_)),
        proposal.offer.version() == Version::V1
    );
    fields
}

fn code<R, D>(paths: &Paths<R, D>) -> u8 {
    match paths {
        Paths::R(_) => 0,
        Paths::D(_) => 1,
        Paths::Both(..) => 3,
    }
}

fn offer_v1_fields(v1: &OfferV1) -> Fields {
    let (ipv4, ipv6) = (v1.prefixes.ipv4, v1.prefixes.ipv6.iter());
    let mut fields = of(json!({
        "typev1": code(&v1.paths),
        "ipv4_prefix": format!("{}/{}", ipv4.address(), ipv4.len()),
        "ipv6_prefixes": ipv6.map(|prefix| format!("{}/{}", prefix.address(), prefix.len())).collect::<Vec<_>>(),
    }));
    if let Some(gid) = v1.paths.r() {
        fields.insert("v1_gid".into(), hex(&gid.0).into());
    }
    if let Some(ism) = v1.paths.d() {
        fields.append(&mut of(
            json!({"ism_gid": format!("{:#x}", ism.gid), "ism_chid": ism.chid}),
        ));
    }
    fields
}

fn offer_v2_fields(v2: &OfferV2) -> Fields {
    let r = v2
        .paths
        .r()
        .expect("all captured proposals of version 2 offer SMC-R");
    let seid = v2.paths.d().and_then(|d| d.seid);
    of(json!({
        "typev2_or_fc": code(&v2.paths),
        "eid_cnt": v2.eids.len(),
        "eids": v2.eids.iter().map(|eid| str::from_utf8(eid.as_bytes()).unwrap()).collect::<Vec<_>>(),
        "release": v2.release.number(),
        "feature_mask": v2.features.bits(),
        "roce_gid": r.gid.to_string(),
        "max_conns": r.max_connections,
        "max_links": r.max_links,
        "ism_gid_cnt": v2.paths.d().map_or(0, |d| d.devices.len()),
        "seid": u8::from(seid.is_some()),
        "smcd_v2_ext_offset": 0,
    }))
}

fn accept_fields(accept: &Accept) -> Fields {
    let mut fields = reply_fields(accept);
    if let Accept::RV2 {
        first_contact: Some(terms),
        ..
    } = accept
    {
        fields.append(&mut contact_fields(terms));
    }
    fields
}

fn confirm_fields(confirm: &Confirm) -> Fields {
    let mut fields = reply_fields(confirm);
    if let Confirm::RV2 {
        first_contact: Some(contact),
        ..
    } = confirm
    {
        fields.append(&mut contact_fields(&contact.terms));
        fields.append(&mut of(json!({
            "gid_cnt": contact.gids.len(),
            "gids": contact.gids.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })));
    }
    fields
}

fn reply_fields<X>(reply: &Reply<X>) -> Fields {
    let mut fields = match reply {
        Reply::RV1 { end, .. } => smc_r_fields(end),
        Reply::RV2 { end, eid, .. } => {
            let mut fields = smc_r_fields(end);
            fields.insert("eid".into(), str::from_utf8(eid.as_bytes()).unwrap().into());
            fields
        }
        Reply::DV1 { .. } | Reply::DV2 { .. } => panic!("there is no captured vector of SMC-D"),
    };
    fields.insert("first_contact".into(), reply.is_first_contact().into());
    fields.insert(
        "typev2_or_fc".into(),
        if reply.is_first_contact() {
            2.into()
        } else {
            0.into()
        },
    );
    fields
}

fn smc_r_fields(end: &SmcR) -> Fields {
    of(json!({
        "typev1": 0,
        "peer_id": end.peer_id.to_string(),
        "gid": end.gid.to_string(),
        "mac": end.mac.to_string(),
        "qpn": end.qp_number.get(),
        "rkey": format!("{:#x}", end.rkey),
        "rmbe_idx": end.rmbe_index.get(),
        "alert_token": end.alert_token.get(),
        "rmbe_size_code": end.size.code(),
        "qp_mtu_code": end.mtu.code(),
        "rmb_vaddr": format!("{:#x}", end.rmb_address),
        "psn": format!("{:#x}", end.psn.get()),
    }))
}

fn contact_fields(terms: &FirstContact) -> Fields {
    let v2_1 = terms
        .v2_1
        .expect("all captured first contacts have release 1");
    of(json!({
        "fce_v2_direct": u8::from(terms.direct),
        "fce_os": terms.os.code(),
        "fce_release": terms.release().number(),
        "fce_hostname": str::from_utf8(terms.host_name.as_bytes()).unwrap(),
        "fce_max_conns": v2_1.max_connections,
        "fce_max_links": v2_1.max_links,
        "fce_feature_mask": v2_1.features.bits(),
    }))
}

fn decline_fields(decline: &Decline) -> Fields {
    let diagnosis = |code: u32| format!("{code:#010x}");
    let mut fields = of(json!({
        "typev1": 0,
        "typev2_or_fc": if decline.out_of_sync { 2 } else { 0 },
        "peer_id": decline.peer_id.to_string(),
        "diagnosis": diagnosis(decline.diagnosis.0),
        "os_type": decline.os.code(),
        "out_of_sync": decline.out_of_sync,
    }));
    if let Some(more) = decline.more {
        fields.insert(
            "diag_v2".into(),
            more.map(|code| diagnosis(code.0)).to_vec().into(),
        );
    }
    fields
}
