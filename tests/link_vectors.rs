//! What kernels and a user-space program sent each other on queue pairs decodes to the fields it states, and encodes back
//! to the same bytes.
//!
//! `tests/vectors/llc.json` and `cdc.json` state their fields; `captured.json` is every SEND of two captures between
//! Linux 6.12 kernels, one with one link and one with two, retransmissions left out; `link_examples.json` pins what
//! `tshark_links.rs` compares.

#[path = "wire_support/link_examples.rs"]
mod link_examples;
mod wire_support;

use std::collections::HashMap;
use std::num::NonZeroU32;

use serde_json::{Map, Value, json};
use smcfast::wire::Received;
use smcfast::wire::cdc::{Cursor, ProducerFlags, RdmaCdc, Sequence, StateFlags};
use smcfast::wire::clc::{Gid, Mac, Mtu, U24, Version};
use smcfast::wire::llc::{
    AddLink, ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, DeletedV2, Doomed, Key, KeyTurn,
    Kind, Limits, Message, NewLink, NoEyecatcher, OtherKeys, ReqAddLink, TestLink, Turn,
};
use wire_support::{Vector, hex, vectors};

type Fields = Map<String, Value>;

/// What a vector states about the form of the message, not its values: held by the equality of bytes.
const FORM: [&str; 5] = ["type_byte", "length_LE16", "flags", "type", "len"];

fn of(value: Value) -> Fields {
    value.as_object().unwrap().clone()
}

/// Decodes, compares what is stated, and encodes.
fn check(vector: &Vector, decode: impl Fn(&[u8]) -> (Fields, Vec<u8>)) {
    let (fields, again) = decode(&vector.bytes);
    for (key, stated) in vector.decoded.as_object().unwrap() {
        if !FORM.contains(&key.as_str()) {
            assert_eq!(fields.get(key), Some(stated), "{}: {key}", vector.name);
        }
    }
    assert_eq!(hex(&again), hex(&vector.bytes), "{}", vector.name);
}

#[test]
fn llc_vectors_decode_to_their_fields_and_encode_to_their_bytes() {
    let vectors = vectors("llc.json");
    for vector in &vectors {
        check(vector, |bytes| {
            let message =
                Message::decode(bytes).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
            assert_eq!(Received::decode(bytes), Ok(Received::Llc(message.clone())));
            (llc_fields(&message), message.encode())
        });
    }
    assert_eq!(vectors.len(), 43);
}

#[test]
fn cdc_vectors_decode_to_their_fields_and_encode_to_their_bytes() {
    let vectors = vectors("cdc.json");
    for vector in &vectors {
        check(vector, |bytes| {
            let cdc =
                RdmaCdc::decode(bytes).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
            assert_eq!(Received::decode(bytes), Ok(Received::Cdc(cdc)));
            (cdc_fields(&cdc), cdc.encode().to_vec())
        });
    }
    assert_eq!(vectors.len(), 23);
}

#[test]
fn everything_captured_decodes_and_encodes_to_its_bytes() {
    let (mut llc, mut cdc) = (0, 0);
    for vector in vectors("captured.json") {
        let name = &vector.name;
        let again = match Received::decode(&vector.bytes) {
            Ok(Received::Llc(message)) => {
                llc += 1;
                assert_eq!(message.version(), Version::V2, "{name}");
                message.encode()
            }
            Ok(Received::Cdc(message)) => {
                cdc += 1;
                message.encode().to_vec()
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(hex(&again), hex(&vector.bytes), "{name}");
    }
    assert_eq!((llc, cdc), (70, 165));
}

#[test]
fn captured_connections_count_every_cdc() {
    let mut last: HashMap<(String, NonZeroU32), Sequence> = HashMap::new();
    for vector in vectors("captured.json") {
        let Ok(Received::Cdc(cdc)) = Received::decode(&vector.bytes) else {
            continue;
        };
        let capture = vector.name.split('_').next().unwrap().to_owned();
        let expected = last
            .get(&(capture.clone(), cdc.token))
            .map_or(Sequence::FIRST, |last| last.next());
        assert_eq!(cdc.sequence, expected, "{}", vector.name);
        last.insert((capture, cdc.token), cdc.sequence);
    }
    assert_eq!(last.len(), 14);
}

#[test]
fn captured_llc_is_answered_in_kind() {
    let kinds = vectors("captured.json").into_iter().filter_map(|vector| {
        let Ok(Received::Llc(message)) = Received::decode(&vector.bytes) else {
            return None;
        };
        Some((message.kind(), message.turn()))
    });
    let mut open: HashMap<u8, i32> = HashMap::new();
    for (kind, turn) in kinds.filter(|(kind, _)| *kind != Kind::DeleteLink) {
        let count = open.entry(kind as u8).or_default();
        *count += if turn == Turn::Request { 1 } else { -1 };
        assert!(*count >= 0, "{kind:?} was answered before it was asked");
    }
    assert!(open.values().all(|count| *count == 0), "{open:?}");
}

#[test]
fn messages_that_tshark_has_read_keep_their_bytes() {
    let pinned = vectors("link_examples.json");
    let examples = link_examples::examples();
    assert_eq!(pinned.len(), examples.len());
    for (pinned, (name, message)) in pinned.iter().zip(examples) {
        let bytes = link_examples::encode(&message);
        assert_eq!(
            (pinned.name.as_str(), hex(&pinned.bytes)),
            (name, hex(&bytes))
        );
        assert_eq!(Received::decode(&pinned.bytes), Ok(message), "{name}");
    }
}

fn llc_fields(message: &Message) -> Fields {
    let (kind, mut fields) = match message {
        Message::ConfirmLink(message) => ("CONFIRM_LINK", confirm_link(message)),
        Message::AddLink(message) => ("ADD_LINK", add_link(message)),
        Message::DeleteLink(message) => ("DELETE_LINK", delete_link(message)),
        Message::ConfirmRkey(message) => ("CONFIRM_RKEY", confirm_rkey(message)),
        Message::DeleteRkey(message) => ("DELETE_RKEY", delete_rkey(message)),
        Message::TestLink(TestLink { user_data, .. }) => {
            ("TEST_LINK", of(json!({"user_data": hex(user_data)})))
        }
        Message::ReqAddLink(ReqAddLink::Request(_) | ReqAddLink::Response)
        | Message::AddLinkCont(_)
        | Message::ConfirmRkeyCont(_) => panic!("there is no captured vector of {message:?}"),
    };
    fields.insert("llc_type".into(), kind.into());
    fields.insert("llc_version".into(), (message.version() as u8).into());
    fields.insert(
        "is_response".into(),
        (message.turn() == Turn::Response).into(),
    );
    fields
}

fn confirm_link(message: &ConfirmLink) -> Fields {
    let Limits::V2 {
        max_links,
        max_connections,
    } = message.limits
    else {
        panic!("all captured ones are of version 2");
    };
    assert_eq!(message.no_eyecatcher, NoEyecatcher::all());
    of(json!({
        "mac": message.mac.to_string(),
        "gid": message.gid.to_string(),
        "qpn": message.qp_number.get(),
        "link_num": message.link,
        "link_uid": format!("{:08x}", message.user_id),
        "max_links": max_links,
        "max_conns": max_connections,
    }))
}

fn add_link(message: &AddLink) -> Fields {
    match message {
        AddLink::Wish { .. } => panic!("there is none in version 2"),
        AddLink::Offer { link, mtu } => new_link(link, *mtu),
        AddLink::Accept { link, mtu } => new_link(link, Some(*mtu)),
        AddLink::Reject(rejection) => {
            assert_eq!(rejection.reason, None);
            let (mac, gid) = (rejection.mac, rejection.gid);
            let end = new_end(mac, gid, rejection.qp_number, rejection.number);
            with_mtu(end, rejection.mtu, rejection.psn, true)
        }
    }
}

fn new_end(mac: Mac, gid: Gid, qp_number: U24, number: u8) -> Fields {
    of(json!({
        "mac": mac.to_string(),
        "gid": gid.to_string(),
        "qpn": qp_number.get(),
        "link_num": number,
    }))
}

fn with_mtu(mut fields: Fields, mtu: Option<Mtu>, psn: U24, reject: bool) -> Fields {
    fields.append(&mut of(json!({
        "qp_mtu": mtu.map_or(0, Mtu::code),
        "psn": format!("{:#x}", psn.get()),
        "reject": reject,
    })));
    fields
}

fn new_link(link: &NewLink, mtu: Option<Mtu>) -> Fields {
    let end = new_end(link.mac, link.gid, link.qp_number, link.number.get());
    let mut fields = with_mtu(end, mtu, link.psn, false);
    let extension = link.extension.as_ref().expect("version 2");
    let keys = extension.keys.iter().map(|key| {
        json!({
            "rkey": format!("{:#x}", key.known),
            "rkey_new": format!("{:#x}", key.new.rkey),
            "vaddr_new": format!("{:#x}", key.new.address),
        })
    });
    fields.append(&mut of(json!({
        "ext_v2_direct": u8::from(extension.direct),
        "ext_client_target_gid": extension.target_gid.to_string(),
        "ext_num_rkeys_LE16": extension.keys.len(),
        "ext_rt": keys.collect::<Vec<_>>(),
    })));
    fields
}

fn delete_link(message: &DeleteLink) -> Fields {
    let (all, number) = match message.doomed {
        Doomed::Link(number) => (false, number.get()),
        Doomed::All => (true, 0),
    };
    of(json!({
        "all": all,
        "orderly": message.orderly,
        "link_num": number,
        "reason": format!("{:#010x}", message.reason.0),
    }))
}

fn confirm_rkey(message: &ConfirmRkey) -> Fields {
    let OtherKeys::V2(others) = &message.others else {
        panic!("all captured ones are of version 2");
    };
    assert_ne!(message.turn, KeyTurn::Refused { retry: true });
    let key = |key: Key| json!({"rkey": format!("{:#x}", key.rkey), "vaddr": format!("{:#x}", key.address)});
    let other = others.iter().map(|other| {
        let mut fields = of(key(other.key));
        fields.insert("link".into(), other.link.into());
        fields
    });
    of(json!({
        "num_other_rkeys": others.len(),
        "rtoken0": key(message.key),
        "others": other.collect::<Vec<_>>(),
    }))
}

fn delete_rkey(message: &DeleteRkey) -> Fields {
    let (count, keys) = match message {
        DeleteRkey::RequestV2(keys) => (keys.len() as u8, &keys[..]),
        DeleteRkey::ResponseV2 { count, result } => {
            assert_eq!(*result, DeletedV2::All);
            (*count, &[][..])
        }
        DeleteRkey::RequestV1(_) | DeleteRkey::ResponseV1 { .. } => {
            panic!("all captured ones are of version 2")
        }
    };
    let keys = keys.iter().map(|key| format!("{key:#x}"));
    of(json!({"num_rkeys": count, "err_mask": 0, "rkeys": keys.collect::<Vec<_>>()}))
}

fn cdc_fields(message: &RdmaCdc) -> Fields {
    let cdc = &message.cdc;
    let cursor = |cursor: Cursor| json!({"wrap": cursor.wrap, "count": cursor.count});
    let (asked, state) = (cdc.producer_flags, cdc.state_flags);
    let producer = |flag| u8::from(asked.contains(flag));
    let ended = |flag| u8::from(state.contains(flag));
    of(json!({
        "seqno": message.sequence.0,
        "token": message.token,
        "prod": cursor(cdc.producer),
        "cons": cursor(cdc.consumer),
        "prod_flags": format!("{:#04x}", asked.bits()),
        "write_blocked": producer(ProducerFlags::WRITE_BLOCKED),
        "urg_pending": producer(ProducerFlags::URGENT_PENDING),
        "urg_present": producer(ProducerFlags::URGENT_PRESENT),
        "cons_upd_req": producer(ProducerFlags::CONSUMER_UPDATE_REQUESTED),
        "failover_validation": u8::from(message.is_failover_validation()),
        "conn_flags": format!("{:#04x}", state.bits()),
        "done_writing": ended(StateFlags::SENDING_DONE),
        "conn_closed": ended(StateFlags::CLOSED),
        "conn_abort": ended(StateFlags::ABNORMAL_CLOSE),
    }))
}
