//! What is illegal in a message on a queue pair, field by field.

#[path = "wire_support/link_examples.rs"]
mod link_examples;
mod wire_support;

use smcfast::wire::clc::{Few, Gid};
use smcfast::wire::llc::{AddLink, DeleteRkey, Message, ReqAddLink};
use smcfast::wire::{Received, llc};
use wire_support::vectors;

/// The bytes of an example or of a vector.
fn bytes_of(name: &str) -> Vec<u8> {
    let example = link_examples::examples()
        .into_iter()
        .find(|(other, _)| *other == name);
    let vector = || {
        ["llc.json", "cdc.json"]
            .into_iter()
            .flat_map(vectors)
            .find(|vector| vector.name == name)
    };
    example.map_or_else(
        || vector().unwrap().bytes,
        |(_, message)| link_examples::encode(&message),
    )
}

fn refusal(bytes: &[u8]) -> String {
    Received::decode(bytes).unwrap_err().to_string()
}

/// What decode says of the message when `spoil` is written at `at`.
fn fault(name: &str, at: usize, spoil: &[u8]) -> String {
    let mut bytes = bytes_of(name);
    bytes[at..][..spoil.len()].copy_from_slice(spoil);
    refusal(&bytes)
}

/// What decode says of the message when it has `len` bytes, cut or filled up with zeros.
fn of_length(name: &str, len: usize) -> String {
    let mut bytes = bytes_of(name);
    bytes.resize(len, 0);
    refusal(&bytes)
}

const OFFER: &str = "v2_add_link_offer_three_keys";

#[test]
fn faults_of_the_header() {
    assert_eq!(
        refusal(&[]),
        "message on a queue pair: type: needs 1 bytes, 0 left"
    );
    assert_eq!(
        Message::decode(&[0x0a; 44]).unwrap_err().to_string(),
        "LLC message: type: is that of no LLC message"
    );
    assert_eq!(
        Message::decode(&[0xfe; 44]).unwrap_err().to_string(),
        "LLC message: type: is that of no LLC message"
    );
    assert_eq!(
        fault("v1_test_link_request", 1, &[43]),
        "LLC TEST_LINK: length: 43, expected 44"
    );
    assert_eq!(
        fault("v1_add_link_offer", 1, &[88]),
        "LLC ADD_LINK: length: 88, expected 44"
    );
}

#[test]
fn faults_of_lengths() {
    let fixed = [
        ("v1_confirm_link_request", "LLC CONFIRM_LINK"),
        ("v1_add_link_offer", "LLC ADD_LINK"),
        ("v1_add_link_cont_request_5_left", "LLC ADD_LINK_CONT"),
        ("v1_delete_link_all", "LLC DELETE_LINK"),
        ("v1_confirm_rkey_request", "LLC CONFIRM_RKEY"),
        ("v1_confirm_rkey_cont_request", "LLC CONFIRM_RKEY_CONT"),
        ("v1_delete_rkey_request", "LLC DELETE_RKEY"),
        ("v1_test_link_request", "LLC TEST_LINK"),
        ("v2_confirm_link_release_0", "LLC CONFIRM_LINK"),
        ("single_00020_llc_add_link_resp_reject", "LLC ADD_LINK"),
        ("v2_delete_link_response_unknown", "LLC DELETE_LINK"),
        ("v2_confirm_rkey_two_others", "LLC CONFIRM_RKEY"),
        ("v2_delete_rkey_response_unknown", "LLC DELETE_RKEY"),
        ("v2_test_link_request", "LLC TEST_LINK"),
        ("v2_req_add_link_response", "LLC REQ_ADD_LINK"),
        ("kk_00046_cdc_first_data", "SMC-R CDC"),
    ];
    for (name, message) in fixed {
        for len in [1, 25, 43, 45, 48, 60, 88] {
            let expected = format!("{message}: length: {len}, expected 44");
            assert_eq!(of_length(name, len), expected, "{name}");
        }
    }
    let long = [
        (OFFER, "LLC ADD_LINK", 120),
        ("v2_req_add_link_request", "LLC REQ_ADD_LINK", 60),
        ("v2_delete_rkey_request_12_keys", "LLC DELETE_RKEY", 56),
    ];
    for (name, message, right) in long {
        for (len, expected) in [(43, 44), (right - 1, right), (right + 16, right)] {
            let expected = format!("{message}: length: {len}, expected {expected}");
            assert_eq!(of_length(name, len), expected, "{name}");
        }
    }
}

#[test]
fn faults_of_confirm_link() {
    assert_eq!(
        fault("v1_confirm_link_request", 29, &[0]),
        "LLC CONFIRM_LINK: link number: must not be zero"
    );
}

#[test]
fn faults_of_add_link() {
    let name = "LLC ADD_LINK";
    assert_eq!(
        fault("v1_add_link_accept", 31, &[0]),
        format!("{name}: link number: must not be zero")
    );
    // Version 2 has a message of its own for a client's wish.
    assert_eq!(
        fault(OFFER, 31, &[0]),
        format!("{name}: link number: must not be zero")
    );
    for code in [0, 6, 15] {
        assert_eq!(
            fault("v1_add_link_accept", 32, &[code]),
            format!("{name}: MTU: {code}, allowed 1 to 5")
        );
    }
    assert_eq!(
        of_length(OFFER, 44),
        format!("{name}: direct: needs 1 bytes, 0 left")
    );
    assert_eq!(
        of_length(OFFER, 71),
        format!("{name}: rkey count: needs 2 bytes, 1 left")
    );
    // Four keys are said and three sent; a number in either order that is neither.
    assert_eq!(
        fault(OFFER, 70, &[4, 0]),
        format!("{name}: length: 120, expected 136")
    );
    assert_eq!(
        fault(OFFER, 70, &[0, 4]),
        format!("{name}: rkey count: 1024, allowed 0 to 255")
    );
    assert_eq!(
        fault(OFFER, 70, &[3, 3]),
        format!("{name}: rkey count: 771, allowed 0 to 255")
    );
}

#[test]
fn faults_of_link_numbers() {
    assert_eq!(
        fault("v1_add_link_cont_request_5_left", 4, &[0]),
        "LLC ADD_LINK_CONT: link number: must not be zero"
    );
    assert_eq!(
        fault("v1_delete_link_request", 4, &[0]),
        "LLC DELETE_LINK: link number: must not be zero"
    );
}

#[test]
fn faults_of_counts() {
    assert_eq!(
        fault("v2_confirm_rkey_two_others", 4, &[3]),
        "LLC CONFIRM_RKEY: count of other rkeys: 3, allowed 0 to 2"
    );
    for name in ["v1_delete_rkey_request", "v1_delete_rkey_response"] {
        assert_eq!(
            fault(name, 4, &[9]),
            "LLC DELETE_RKEY: count: 9, allowed 0 to 8"
        );
    }
    assert_eq!(
        fault("v2_delete_rkey_request_12_keys", 4, &[11]),
        "LLC DELETE_RKEY: length: 56, expected 52"
    );
    assert_eq!(
        fault("v2_req_add_link_request", 24, &[3]),
        "LLC REQ_ADD_LINK: length: 60, expected 76"
    );
}

#[test]
fn faults_of_a_cdc() {
    let name = "cdc_closed";
    assert_eq!(fault(name, 1, &[45]), "SMC-R CDC: length: 45, expected 44");
    assert_eq!(
        fault(name, 4, &[0; 4]),
        "SMC-R CDC: alert token: must not be zero"
    );
    let mut bytes = bytes_of(name);
    bytes[0] = 0xfd;
    assert_eq!(
        smcfast::wire::cdc::RdmaCdc::decode(&bytes)
            .unwrap_err()
            .to_string(),
        "SMC-R CDC: type: 253, expected 254"
    );
}

#[test]
fn a_message_of_an_unknown_type_is_no_error() {
    for byte in [0, 5, 0x0a, 0x20, 0x23, 0x28, 0x2a, 0x41, 0xff] {
        assert_eq!(Received::decode(&[byte]), Ok(Received::Unknown(byte)));
        assert_eq!(Received::decode(&[byte; 88]), Ok(Received::Unknown(byte)));
    }
}

#[test]
fn reserved_bytes_and_flags_are_ignored() {
    let reserved: [(_, &[(usize, usize)], _); 20] = [
        ("v1_confirm_link_request", &[(35, 44)], 0x7c),
        ("v1_add_link_offer", &[(10, 12), (36, 44)], 0x7f),
        ("v1_add_link_wish", &[(10, 12), (28, 31), (32, 44)], 0x7f),
        ("v1_add_link_accept", &[(10, 12), (36, 44)], 0x3f),
        ("v1_add_link_reject", &[(10, 12), (36, 44)], 0x3f),
        (
            OFFER,
            &[(1, 3), (10, 12), (36, 44), (45, 46), (62, 70)],
            0x7f,
        ),
        ("v1_add_link_cont_request_5_left", &[(6, 8), (40, 44)], 0x7f),
        ("v1_add_link_cont_response_none_left", &[(6, 44)], 0x7f),
        ("v1_delete_link_request", &[(9, 44)], 0x1f),
        ("v1_delete_link_all", &[(4, 5), (9, 44)], 0x1f),
        (
            "v2_req_add_link_request",
            &[(1, 3), (4, 24), (25, 28)],
            0x7f,
        ),
        ("v2_req_add_link_response", &[(1, 3), (4, 44)], 0x7f),
        ("v1_confirm_rkey_request", &[(17, 44)], 0x7f),
        ("v1_confirm_rkey_refused", &[(30, 44)], 0x0f),
        ("v1_confirm_rkey_confirmed", &[(30, 44)], 0x1f),
        ("v1_confirm_rkey_cont_request", &[], 0x7f),
        ("v1_delete_rkey_request", &[(5, 8), (40, 44)], 0x7f),
        ("v1_delete_rkey_response", &[(5, 8), (20, 44)], 0x5f),
        ("v2_delete_rkey_response_unknown", &[(1, 3), (6, 44)], 0x5f),
        ("v1_test_link_request", &[(20, 44)], 0x7f),
    ];
    for (name, ranges, flags) in reserved {
        let bytes = bytes_of(name);
        let mut spoilt = bytes.clone();
        spoilt[3] |= flags;
        for (from, to) in ranges {
            spoilt[*from..*to].fill(0xff);
        }
        let decoded = Message::decode(&bytes).unwrap();
        assert_eq!(Message::decode(&spoilt), Ok(decoded), "{name}");
    }
    // Only the rejection of version 1 has something in the third byte, and only in its low half.
    for name in [
        "v1_add_link_offer",
        "v1_add_link_accept",
        "v1_delete_link_all",
    ] {
        let mut spoilt = bytes_of(name);
        spoilt[2] = 0xff;
        assert_eq!(Message::decode(&spoilt).unwrap().encode(), bytes_of(name));
    }
    let mut spoilt = bytes_of("v1_add_link_reject");
    spoilt[2] |= 0xf0;
    let Ok(Message::AddLink(AddLink::Reject(rejection))) = Message::decode(&spoilt) else {
        panic!("not a rejection");
    };
    assert_eq!(rejection.reason.unwrap().code(), 2);
}

#[test]
fn the_longest_messages_have_the_greatest_lengths() {
    let offer = Message::AddLink(AddLink::Offer {
        link: link_examples::new_link(Some(link_examples::extension(255))),
        mtu: None,
    });
    let gids = Few::new(vec![Gid([7; 16]); 255]).unwrap();
    let wish = Message::ReqAddLink(ReqAddLink::Request(gids));
    let keys = Few::new((0..255).collect()).unwrap();
    let delete = Message::DeleteRkey(DeleteRkey::RequestV2(keys));
    for (message, len) in [(offer, llc::MAX_LEN), (wish, 4108), (delete, 1028)] {
        let bytes = message.encode();
        assert_eq!(bytes.len(), len);
        assert_eq!(bytes[1..3], (len as u16).to_le_bytes());
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
    assert_eq!(llc::MAX_LEN, 4152);
}
