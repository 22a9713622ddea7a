//! Wireshark's dissector as an independent reader of LLC and CDC messages.
//!
//! There is no capture of version 1, nor of most refusals, so a codec that is wrong in the same way in both directions
//! would go unnoticed without it.

#[path = "wire_support/dissected_links.rs"]
mod dissected_links;
#[path = "wire_support/link_examples.rs"]
mod link_examples;
#[path = "wire_support/pcap.rs"]
mod pcap;
#[path = "wire_support/tshark.rs"]
mod tshark;
mod wire_support;

use dissected_links::dissected;
use smcfast::wire::Received;
use tshark::{Fields, tshark};
use wire_support::{in_big_endian, vectors};

#[test]
fn tshark_reads_what_we_send() {
    let messages = messages();
    // tshark 4.0 recognises a message of version 2 only when its length is in network order, as mainframes send it;
    // what the kernel of an x86 machine sends it takes for something else.
    let bytes: Vec<_> = messages
        .iter()
        .map(|(_, message)| in_big_endian(&link_examples::encode(message)))
        .collect();
    let Some(frames) = tshark("sends", &pcap::with_sends(bytes.iter().map(Vec::as_slice))) else {
        return eprintln!("skipped: tshark is not installed");
    };
    assert_eq!(frames.len(), messages.len());
    for ((name, message), (bytes, found)) in messages.iter().zip(bytes.iter().zip(&frames)) {
        assert_eq!(Received::decode(bytes).as_ref(), Ok(message), "{name}");
        compare(name, message, bytes, found);
    }
}

/// Everything without a capture, and what was captured too.
fn messages() -> Vec<(String, Received)> {
    let captured = ["llc.json", "cdc.json", "captured.json"].map(vectors);
    let captured = captured
        .into_iter()
        .flatten()
        .map(|vector| (vector.name, Received::decode(&vector.bytes).unwrap()));
    let examples = link_examples::examples().into_iter();
    examples
        .map(|(name, message)| (name.to_owned(), message))
        .chain(captured)
        .collect()
}

fn compare(name: &str, message: &Received, bytes: &[u8], found: &Fields) {
    let spoilt = |key: &&String| key.contains("malformed") || key.contains("expert");
    assert_eq!(found.keys().find(spoilt), None, "{name}");
    let mut expected = Fields::new();
    for (field, value) in dissected(message, bytes) {
        expected.entry(field.to_owned()).or_default().push(value);
    }
    for (field, values) in expected {
        let reads = found.get(&field).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(reads, values, "{name}: {field}");
    }
}
