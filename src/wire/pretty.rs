//! A message as text, field by field: for logs, for `smcfast` on the command line and for people with a hex dump.

use std::fmt::{Debug, Write};

use super::clc::{self, Message};
use super::prim::{Field, Reader};
use super::{InvalidMessage, Received};

/// The text of a CLC message: for each field its offset, its name and its bytes, then the value or what is wrong.
///
/// A message that cannot be decoded is shown up to the field at fault.
///
/// ```
/// let decline = [
///     0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10, 0x25, 0x25, 0x25, 0x25, 0x25, 0x25, 0x25, 0, // 16 bytes
///     3, 3, 0, 0, 0, 0, 0, 0, 0xe2, 0xd4, 0xc3, 0xd9,
/// ];
/// let text = smcfast::wire::pretty::clc(&decline);
/// assert!(text.contains("\n  16  diagnosis            03030000\n"));
/// assert!(text.contains("diagnosis: Diagnosis::NO_SMC_DEVICE"));
/// ```
#[must_use]
pub fn clc(bytes: &[u8]) -> String {
    let mut reader = Reader::traced(clc::NAME, bytes);
    let result = Message::read(&mut reader);
    text("CLC message", bytes, reader, result)
}

/// The same for what was received on a queue pair: an LLC or a CDC message.
///
/// ```
/// let test_link = [&[7, 44, 0, 0x80][..], &[1; 16], &[0; 24]].concat();
/// let text = smcfast::wire::pretty::received(&test_link);
/// assert!(text.contains("\n   4  user data            0101010101010101"));
/// assert!(text.contains("turn: Response"));
/// ```
#[must_use]
pub fn received(bytes: &[u8]) -> String {
    let mut reader = Reader::traced(Received::NAME, bytes);
    let result = Received::read(&mut reader);
    text(Received::NAME, bytes, reader, result)
}

fn text(
    name: &str,
    bytes: &[u8],
    reader: Reader<'_>,
    result: Result<impl Debug, InvalidMessage>,
) -> String {
    let mut text = format!("{name}, {} bytes\n", bytes.len());
    for field in reader.into_fields() {
        line(&mut text, &field, bytes);
    }
    match result {
        Ok(message) => text += &format!("{message:#?}\n"),
        Err(error) => text += &format!("{error}\n"),
    }
    text
}

fn line(text: &mut String, field: &Field, bytes: &[u8]) {
    *text += &format!("{:4}  {:<20} ", field.bytes.start, field.name);
    for byte in &bytes[field.bytes.clone()] {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_message_is_shown_up_to_its_fault() {
        let bytes = [0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x20];
        let expected = "CLC message, 8 bytes
   0  eyecatcher           e2d4c3d9
   4  type                 04
   5  length               001c
   7  version and flags    20
CLC Decline: length: 28, expected 44
";
        assert_eq!(clc(&bytes), expected);
        assert_eq!(
            clc(b"GET"),
            "CLC message, 3 bytes\nCLC message: eyecatcher: needs 4 bytes, 3 left\n"
        );
    }
}
