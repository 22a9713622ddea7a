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
mod wire_support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::process::Command;

use dissected::{RESERVED, dissected};
use serde_json::Value;
use smcfast::wire::clc::{Accept, Message, Offer, Paths};
use wire_support::clc_vectors;

/// Values of each field, in the order of the bytes.
type Fields = BTreeMap<String, Vec<String>>;

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

fn compare(name: &str, message: &Message, length: usize, found: &Fields) {
    let malformed = found.keys().any(|key| key.contains("malformed"));
    let errs = has_no_area(message) || has_short_contact(message);
    assert_eq!(malformed, errs, "{name}: malformed");
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

/// The fields of TCP and SMC in each frame; `None` without tshark.
fn tshark(name: &str, file: &[u8]) -> Option<Vec<Fields>> {
    let path = format!("{}/{name}.pcap", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, file).unwrap();
    let arguments = [
        "10",
        "tshark",
        "-n",
        "-T",
        "json",
        "--no-duplicate-keys",
        "-r",
        &path,
    ];
    let output = match Command::new("timeout").args(arguments).output() {
        Ok(output) if output.status.code() == Some(127) => return None,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    assert!(
        output.status.success(),
        "tshark: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let packets: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    Some(
        packets
            .iter()
            .map(|packet| flat(&packet["_source"]["layers"]))
            .collect(),
    )
}

fn flat(layers: &Value) -> Fields {
    let mut fields = Fields::new();
    flatten("", layers, &mut fields);
    fields
}

fn flatten(name: &str, value: &Value, fields: &mut Fields) {
    match value {
        Value::Object(members) => {
            fields.entry(name.to_owned()).or_default();
            members
                .iter()
                .for_each(|(name, value)| flatten(name, value, fields));
        }
        Value::Array(values) => values.iter().for_each(|value| flatten(name, value, fields)),
        Value::String(text) => fields
            .entry(name.to_owned())
            .or_default()
            .push(text.clone()),
        other => panic!("{name}: {other}"),
    }
}
