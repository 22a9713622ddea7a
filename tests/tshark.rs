//! An independent reader of our messages: Wireshark's dissector, run over a pcap with them.
//!
//! There is no capture of SMC-D, of IPv6 prefixes or of version 1 between kernels, so a codec that is wrong in the same
//! way in both directions would go unnoticed without it.

#[path = "wire_support/dissected.rs"]
mod dissected;
#[path = "wire_support/examples.rs"]
mod examples;
#[path = "wire_support/pcap.rs"]
mod pcap;
#[path = "wire_support/tshark.rs"]
mod tshark;
mod wire_support;

use dissected::{RESERVED, dissected};
use smcfast::wire::clc::{Accept, Message, Offer, Paths};
use tshark::{Fields, tshark};
use wire_support::clc_vectors;

#[test]
fn tshark_reads_what_we_wrote() {
    let messages = messages();
    let bytes: Vec<_> = messages
        .iter()
        .map(|(_, message)| message.encode())
        .collect();
    let Some(frames) = tshark(
        "messages",
        &pcap::with_messages(bytes.iter().map(Vec::as_slice)),
    ) else {
        return eprintln!("skipped: tshark is not installed");
    };
    assert_eq!(frames.len(), messages.len() * pcap::FRAMES_EACH);
    for (number, (name, message)) in messages.iter().enumerate() {
        let [syn, syn_ack, _, data] = &frames[number * pcap::FRAMES_EACH..][..pcap::FRAMES_EACH]
        else {
            panic!("a connection has {} frames", pcap::FRAMES_EACH);
        };
        for frame in [syn, syn_ack] {
            let id = &frame["tcp.options.experimental.exid"];
            assert!(
                ["0xe2d4c3d9", "0xe2d4"].contains(&&*id[0]),
                "{name}: {id:?}"
            );
        }
        compare(name, message, bytes[number].len(), data);
    }
}

/// Everything without a capture, and what was captured too.
fn messages() -> Vec<(String, Message)> {
    let captured = clc_vectors().into_iter().filter_map(|vector| {
        let message = Message::decode(&vector.bytes).ok()?;
        Some((vector.name, message))
    });
    let examples = examples::examples()
        .into_iter()
        .map(|(name, message)| (name.to_owned(), message));
    captured.chain(examples).collect()
}

/// Whether the dissector calls a message malformed, or has more to say of it than a note.
fn is_spoilt(found: &Fields) -> bool {
    const WARNING: u32 = 0x60_0000;
    let mut severities = found.get("_ws.expert.severity").into_iter().flatten();
    found.keys().any(|key| key.contains("malformed"))
        || severities.any(|severity| severity.parse::<u32>().unwrap() >= WARNING)
}

fn compare(name: &str, message: &Message, length: usize, found: &Fields) {
    let errs = has_no_area(message) || has_short_contact(message);
    assert_eq!(
        is_spoilt(found),
        errs,
        "{name}: malformed, or a warning: {found:?}"
    );
    let mut expected = Fields::new();
    for (field, value) in dissected(message, length) {
        expected.entry(field.to_owned()).or_default().push(value);
    }
    for (field, values) in expected {
        let reads = found.get(&field).map(Vec::as_slice).unwrap_or_default();
        if field == RESERVED {
            values.iter().for_each(|value| {
                assert!(reads.contains(value), "{name}: {value} is not in {reads:?}")
            });
        } else if !(has_no_area(message) && behind_the_area(&field)) {
            assert_eq!(reads, values, "{name}: {field}");
        }
    }
}

/// tshark 4.0 takes for granted that a Proposal has the SMC-D area. One of version 1 that offers SMC-R alone has none:
/// what follows is read 40 bytes too far, and the message is called malformed. The examples of smc-clc's documentation,
/// which are such messages, are read in the same way.
fn has_no_area(message: &Message) -> bool {
    matches!(message, Message::Proposal(proposal)
        if matches!(&proposal.offer, Offer::V1(v1) if matches!(v1.paths, Paths::R(_))))
}

/// tshark 4.0 takes for granted that the first contact extension of an Accept has 52 bytes. For SMC-D in release 0 it
/// ends behind the host name; the message is called malformed after all its fields were read.
fn has_short_contact(message: &Message) -> bool {
    matches!(message, Message::Accept(Accept::DV2 { first_contact: Some(terms), .. }) if terms.v2_1.is_none())
}

fn behind_the_area(field: &str) -> bool {
    field.contains("subnet") || field.contains("ipv6.prefix")
}
