//! Runs Wireshark's dissector.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::process::Command;

use serde_json::Value;

/// Values of each field, in the order of the bytes.
pub(crate) type Fields = BTreeMap<String, Vec<String>>;

/// The fields of all protocols in each frame of a pcap file; `None` without tshark.
pub(crate) fn tshark(name: &str, file: &[u8]) -> Option<Vec<Fields>> {
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
