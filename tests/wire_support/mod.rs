//! What the tests of the wire layer share: the vectors and the bytes in them.
#![allow(dead_code, reason = "each test uses a part")]

use serde_json::Value;

/// A message that was seen on the wire, or built for a kernel, and what it says.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) decoded: Value,
}

/// The vectors of one file of `tests/vectors`.
pub(crate) fn vectors(file: &str) -> Vec<Vector> {
    let path = format!("{}/tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    rows.into_iter().map(vector).collect()
}

fn vector(row: Value) -> Vector {
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    Vector {
        name: text("name"),
        bytes: unhex(&text("hex")),
        decoded: row["decoded"].clone(),
    }
}

/// Every CLC vector.
pub(crate) fn clc_vectors() -> Vec<Vector> {
    ["clc.json", "clc_v1.json"]
        .into_iter()
        .flat_map(vectors)
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Two lower-case digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The LLC message as a machine of the other byte order would send it: version 2 has two numbers in the sender's.
pub(crate) fn in_big_endian(message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    if bytes[0] & 0xf0 == 0x20 {
        bytes.swap(1, 2);
        if bytes[0] == 0x22 && bytes.len() > 44 {
            bytes.swap(70, 71);
        }
    }
    bytes
}
