//! What is illegal in a CLC message, field by field, and the few forms that are read but not written.

#[path = "wire_support/examples.rs"]
mod examples;
mod wire_support;

use smcfast::wire::clc::{
    self, Accept, Confirm, Few, IsmList, Kind, Message, Offer, Paths, Release,
};
use wire_support::clc_vectors;

/// The bytes of an example or of a vector.
fn bytes_of(name: &str) -> Vec<u8> {
    let example = examples::examples()
        .into_iter()
        .find(|(other, _)| *other == name);
    let vector = || clc_vectors().into_iter().find(|vector| vector.name == name);
    example.map_or_else(|| vector().unwrap().bytes, |(_, message)| message.encode())
}

/// What decode says of the message when `spoil` is written at `at`.
fn fault(name: &str, at: usize, spoil: &[u8]) -> String {
    let mut bytes = bytes_of(name);
    bytes[at..][..spoil.len()].copy_from_slice(spoil);
    Message::decode(&bytes).unwrap_err().to_string()
}

const R_ACCEPT: &str = "kk_00010_clc_accept_v2r_fc";
const R_CONFIRM: &str = "kk_00012_clc_confirm_v2r_fc_2gids";
const R_PROPOSAL: &str = "kk_00008_clc_proposal_v2r";
const EVERYTHING: &str = "proposal_v1_both_v2_both";

#[test]
fn faults_of_the_header_and_the_trailer() {
    let neither = "eyecatcher: is neither SMCR nor SMCD";
    assert_eq!(
        fault(R_ACCEPT, 0, &[0xe3]),
        format!("CLC message: {neither}")
    );
    assert_eq!(
        fault(R_ACCEPT, 3, &[0xd8]),
        format!("CLC message: {neither}")
    );
    assert_eq!(
        fault(R_ACCEPT, 4, &[0]),
        "CLC message: type: 0, allowed 1 to 4"
    );
    assert_eq!(
        fault(R_ACCEPT, 4, &[5]),
        "CLC message: type: 5, allowed 1 to 4"
    );
    assert_eq!(
        fault(R_ACCEPT, 7, &[0x08]),
        "CLC Accept: version: 0, allowed 1 to 2"
    );
    assert_eq!(
        fault(R_ACCEPT, 7, &[0x38]),
        "CLC Accept: version: 3, allowed 1 to 2"
    );
    assert_eq!(
        fault(R_ACCEPT, 6, &[159]),
        "CLC Accept: length: 160, expected 159"
    );
    assert_eq!(
        fault(R_ACCEPT, 159, &[0xd8]),
        "CLC Accept: trailer: is neither SMCR nor SMCD"
    );
    assert_eq!(
        fault("decline_v2_out_of_sync", 40, &[0]),
        "CLC Decline: trailer: is neither SMCR nor SMCD"
    );
    assert_eq!(
        fault("decline_v2_out_of_sync", 7, &[0x10]),
        "CLC Decline: length: 44, expected 28"
    );
}

#[test]
fn the_letters_of_the_eyecatchers_are_free() {
    for at in [3, 159] {
        let mut bytes = bytes_of(R_ACCEPT);
        bytes[at] = 0xc4;
        assert!(Message::decode(&bytes).is_ok());
    }
}

#[test]
fn faults_of_a_proposal() {
    let neither = "CLC Proposal: paths: offer neither SMC-R nor SMC-D";
    assert_eq!(fault(R_PROPOSAL, 7, &[0x2a]), neither);
    assert_eq!(fault("proposal_v1_d", 7, &[0x12]), neither);
    assert_eq!(
        fault("smc_clc_proposal_v1r_ipv4", 39, &[8]),
        "CLC Proposal: IP area offset: 8, expected 40"
    );
    assert_eq!(
        fault("proposal_v1_d", 39, &[0]),
        "CLC Proposal: IP area offset: 0, expected 40"
    );
    assert_eq!(
        fault(EVERYTHING, 38, &[1, 40]),
        "CLC Proposal: IP area offset: 296, expected 40"
    );
    assert_eq!(
        fault(R_PROPOSAL, 39, &[40]),
        "CLC Proposal: IP area offset: 40, expected 0"
    );
    assert_eq!(
        fault(R_PROPOSAL, 51, &[29]),
        "CLC Proposal: V2 extension offset: 29, expected 28"
    );
    assert_eq!(
        fault(EVERYTHING, 51, &[28]),
        "CLC Proposal: V2 extension offset: 28, expected 70"
    );
    assert_eq!(
        fault("proposal_v1_r_in_v2", 51, &[28]),
        "CLC Proposal: V2 extension offset: 28, expected 0"
    );
    assert_eq!(
        fault(EVERYTHING, 84, &[33]),
        "CLC Proposal: IPv4 prefix length: 33, allowed 0 to 32"
    );
    assert_eq!(
        fault(EVERYTHING, 87, &[9]),
        "CLC Proposal: IPv6 prefix count: 9, allowed 0 to 8"
    );
    assert_eq!(
        fault(EVERYTHING, 104, &[129]),
        "CLC Proposal: IPv6 prefix length: 129, allowed 0 to 128"
    );
}

#[test]
fn faults_of_the_extensions_of_a_proposal() {
    let is_no_name = "is not a name of A-Z 0-9 . - padded with blanks";
    assert_eq!(
        fault(R_PROPOSAL, 80, &[9]),
        "CLC Proposal: EID count: 9, allowed 0 to 8"
    );
    assert_eq!(
        fault(R_PROPOSAL, 80, &[2]),
        "CLC Proposal: EID: needs 32 bytes, 4 left"
    );
    assert_eq!(
        fault(R_PROPOSAL, 80, &[0]),
        "CLC Proposal: trailer: is neither SMCR nor SMCD"
    );
    assert_eq!(
        fault(R_PROPOSAL, 128, &[0; 24]),
        format!("CLC Proposal: EID: {is_no_name}")
    );
    assert_eq!(
        fault(R_PROPOSAL, 87, &[32]),
        "CLC Proposal: SMC-Dv2 extension offset: 32, expected 0"
    );
    assert_eq!(
        fault("proposal_v2_d", 87, &[64]),
        "CLC Proposal: SMC-Dv2 extension offset: 64, expected 96"
    );
    assert_eq!(
        fault("proposal_v2_d", 81, &[9]),
        "CLC Proposal: ISM GID count: 9, allowed 0 to 8"
    );
    assert_eq!(
        fault("proposal_v2_d", 184, &[0]),
        format!("CLC Proposal: SEID: {is_no_name}")
    );
    let alone = "CLC Proposal: ISM GID: of an emulated device has no extension behind it";
    assert_eq!(fault("proposal_v2_d", 81, &[1]), alone);
    assert_eq!(
        fault("proposal_v2_d", 251, &[0x54]),
        "CLC Proposal: ISM CHID: 65364, expected 65363"
    );
}

#[test]
fn entries_count_only_where_smc_d_is_offered() {
    let mut bytes = bytes_of(R_PROPOSAL);
    bytes[81] = 200;
    bytes[83] |= 1;
    let clean = bytes_of(R_PROPOSAL);
    assert_eq!(Message::decode(&bytes).unwrap().encode(), clean);
}

#[test]
fn the_gid_of_a_native_device_is_never_sent_without_version_1() {
    // The kernel would give up the connection: it takes byte 47 for the number of IPv6 prefixes.
    let mut bytes = bytes_of("proposal_v2_d");
    bytes[40..48].fill(9);
    assert_eq!(Message::decode(&bytes).unwrap().encode()[40..48], [0; 8]);
}

#[test]
fn faults_of_accept_and_confirm() {
    assert_eq!(
        fault(R_ACCEPT, 7, &[0x2a]),
        "CLC Accept: path: 2, allowed 0 to 1"
    );
    assert_eq!(
        fault(R_CONFIRM, 7, &[0x2b]),
        "CLC Confirm: path: 3, allowed 0 to 1"
    );
    assert_eq!(
        fault(R_ACCEPT, 45, &[0]),
        "CLC Accept: RMBE index: must not be zero"
    );
    assert_eq!(
        fault(R_ACCEPT, 46, &[0; 4]),
        "CLC Accept: alert token: must not be zero"
    );
    assert_eq!(
        fault(R_CONFIRM, 50, &[0x20]),
        "CLC Confirm: MTU: 0, allowed 1 to 5"
    );
    assert_eq!(
        fault(R_CONFIRM, 50, &[0x26]),
        "CLC Confirm: MTU: 6, allowed 1 to 5"
    );
    assert_eq!(
        fault(R_ACCEPT, 95, &[0]),
        "CLC Accept: EID: is not a name of A-Z 0-9 . - padded with blanks"
    );
    assert_eq!(
        fault(R_ACCEPT, 7, &[0x20]),
        "CLC Accept: trailer: is neither SMCR nor SMCD"
    );
    assert_eq!(
        fault(R_CONFIRM, 156, &[1]),
        "CLC Confirm: trailer: is neither SMCR nor SMCD"
    );
    assert_eq!(
        fault(R_CONFIRM, 156, &[3]),
        "CLC Confirm: link GID: needs 16 bytes, 4 left"
    );
    assert_eq!(
        fault(R_CONFIRM, 156, &[31]),
        "CLC Confirm: GID count: 31, allowed 0 to 30"
    );
    assert_eq!(
        fault("accept_v1_d", 7, &[0x10]),
        "CLC Accept: length: 48, expected 68"
    );
    assert_eq!(
        fault("accept_v1_r", 7, &[0x11]),
        "CLC Accept: length: 68, expected 48"
    );
}

#[test]
fn nothing_may_stand_behind_the_trailer() {
    // A reuse with the length of something longer, and a trailer where the shorter message ends.
    let mut bytes = bytes_of("accept_v2_d_reuse");
    bytes.extend([0; 4]);
    bytes[6] = 82;
    assert_eq!(
        Message::decode(&bytes).unwrap_err().to_string(),
        "CLC Accept: length: 82, expected 78"
    );
}

#[test]
fn peek_length_knows_the_bounds() {
    let peek = |kind: u8, length: u16, flags: u8, expected| {
        let [high, low] = length.to_be_bytes();
        let header = [0xe2, 0xd4, 0xc3, 0xd9, kind, high, low, flags];
        clc::peek_length(&header, expected).map_err(|error| error.to_string())
    };
    let bounds = [
        (1, 0x10, Kind::Proposal, "CLC Proposal", 52, 228),
        (1, 0x22, Kind::Proposal, "CLC Proposal", 92, 652),
        (2, 0x10, Kind::Accept, "CLC Accept", 48, 68),
        (2, 0x20, Kind::Accept, "CLC Accept", 78, 160),
        (3, 0x10, Kind::Confirm, "CLC Confirm", 48, 68),
        (3, 0x20, Kind::Confirm, "CLC Confirm", 78, 644),
    ];
    for (kind, flags, expected, name, min, max) in bounds {
        for length in [min, max] {
            assert_eq!(peek(kind, length, flags, expected), Ok(length.into()));
        }
        for length in [0, 8, min - 1, max + 1, u16::MAX] {
            let error = format!("{name}: length: {length}, allowed {min} to {max}");
            assert_eq!(peek(kind, length, flags, expected), Err(error));
        }
    }
    for (flags, length) in [(0x10, 28), (0x20, 44)] {
        assert_eq!(peek(4, length, flags, Kind::Accept), Ok(length.into()));
        let error = format!("CLC Decline: length: {}, expected {length}", length + 1);
        assert_eq!(peek(4, length + 1, flags, Kind::Proposal), Err(error));
    }
    assert_eq!(
        peek(2, 68, 0x10, Kind::Confirm),
        Err("CLC Accept: type: 2, expected 3".into())
    );
    assert_eq!(
        peek(1, 52, 0x10, Kind::Accept),
        Err("CLC Proposal: type: 1, expected 2".into())
    );
    assert_eq!(clc::MAX_LEN, 652);
}

#[test]
fn the_longest_messages_have_the_greatest_lengths() {
    let find = |name: &str| {
        examples::examples()
            .into_iter()
            .find(|(other, _)| *other == name)
            .unwrap()
            .1
    };
    let Message::Proposal(mut proposal) = find(EVERYTHING) else {
        panic!("not a Proposal")
    };
    let Offer::Both(v1, v2) = &mut proposal.offer else {
        panic!("not of both versions")
    };
    v1.prefixes.ipv6 = Few::new(vec![v1.prefixes.ipv6[0]; 8]).unwrap();
    v2.eids = Few::new(vec![v2.eids[0]; 8]).unwrap();
    let Paths::Both(_, d) = &mut v2.paths else {
        panic!("not of both ways")
    };
    d.devices = IsmList::new(vec![d.devices[0]; 4]).unwrap();
    let bytes = proposal.encode();
    assert_eq!(bytes.len(), clc::MAX_LEN);
    assert_eq!(Message::decode(&bytes), Ok(Message::Proposal(proposal)));

    let Message::Confirm(mut confirm) = find("confirm_v2_r_three_gids") else {
        panic!("not a Confirm")
    };
    let Confirm::RV2 {
        first_contact: Some(contact),
        ..
    } = &mut confirm
    else {
        panic!("not of SMC-Rv2")
    };
    contact.gids = Few::new(vec![contact.gids[0]; 30]).unwrap();
    let bytes = confirm.encode();
    assert_eq!(bytes.len(), usize::from(Confirm::MAX_LEN));
    assert_eq!(Message::decode(&bytes), Ok(Message::Confirm(confirm)));
}

#[test]
fn a_proposal_of_version_1_may_have_an_area_that_it_does_not_need() {
    let plain = bytes_of("smc_clc_proposal_v1r_ipv4");
    let mut bytes = [&plain[..40], &[0xff; 40], &plain[40..]].concat();
    bytes[5..7].copy_from_slice(&92u16.to_be_bytes());
    bytes[39] = 40;
    let Message::Proposal(proposal) = Message::decode(&bytes).unwrap() else {
        panic!("not a Proposal")
    };
    assert!(matches!(&proposal.offer, Offer::V1(v1) if matches!(v1.paths, Paths::R(_))));
    assert_eq!(proposal.encode(), plain);
}

/// The message in release 0, whose first contact extension ends behind the host name.
fn shortened(name: &str) -> Vec<u8> {
    let long = bytes_of(name);
    let mut bytes = [&long[..140], &long[156..]].concat();
    let length = bytes.len() as u16;
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
    bytes[105] = 0x20;
    bytes
}

#[test]
fn the_first_contact_extension_may_be_short_in_release_0() {
    let Message::Accept(accept) = Message::decode(&shortened(R_ACCEPT)).unwrap() else {
        panic!("not an Accept")
    };
    let Accept::RV2 {
        first_contact: Some(terms),
        ..
    } = &accept
    else {
        panic!("not of SMC-Rv2")
    };
    assert_eq!(
        (terms.release(), terms.host_name.text()),
        (Release::V2_0, Some("virtme-ng"))
    );
    assert_eq!(accept.encode().len(), 160);

    for name in [
        R_CONFIRM,
        "proto_00011_us_confirm_fc",
        "confirm_v2_r_three_gids",
    ] {
        let Message::Confirm(confirm) = Message::decode(&shortened(name)).unwrap() else {
            panic!("not a Confirm")
        };
        let Confirm::RV2 {
            first_contact: Some(contact),
            ..
        } = &confirm
        else {
            panic!("not of SMC-Rv2")
        };
        let long = Message::decode(&bytes_of(name)).unwrap();
        let Message::Confirm(Confirm::RV2 {
            first_contact: Some(original),
            ..
        }) = long
        else {
            panic!("{name}")
        };
        assert_eq!(
            (contact.terms.v2_1, &contact.gids),
            (None, &original.gids),
            "{name}"
        );
        assert_eq!(confirm.encode().len(), bytes_of(name).len(), "{name}");
    }
}

#[test]
fn release_0_sends_zeros_in_place_of_the_limits() {
    let Message::Accept(accept) = Message::decode(&shortened(R_ACCEPT)).unwrap() else {
        panic!("not an Accept")
    };
    assert_eq!(accept.encode()[140..156], [0; 16]);
    let release_1 = bytes_of(R_ACCEPT);
    assert_ne!(release_1[140..156], [0; 16]);
}
