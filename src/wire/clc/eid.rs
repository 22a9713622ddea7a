//! Enterprise ids: the names of the groups whose members may share memory.

use std::fmt;

use crate::wire::prim::Reader;
use crate::wire::{Fault, InvalidMessage};

/// An enterprise id: 1 to 32 characters `A-Z 0-9 . -`, the first a letter or a digit, padded with
/// blanks to 32 bytes.
///
/// Peers compare all 32 bytes. Padding with NUL makes an id that equals no other, and the kernel
/// answers it with a misleading code, so a value cannot have it and a message with it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eid([u8; Eid::LEN]);

impl Eid {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// The id with this name; `None` when it breaks the rules above. Trailing blanks are padding.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let mut padded = [b' '; Self::LEN];
        padded
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Self::from_bytes(padded)
    }

    /// The id in these bytes; `None` when they break the rules above.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let name = bytes.trim_ascii_end();
        let alphanumeric = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let legal = name.first().is_some_and(alphanumeric)
            && name
                .iter()
                .all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'-'))
            && bytes[name.len()..].iter().all(|&byte| byte == b' ');
        legal.then_some(Self(bytes))
    }

    /// All 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The name without its padding.
    #[must_use]
    pub fn name(&self) -> &str {
        // All bytes are ASCII by construction.
        str::from_utf8(self.0.trim_ascii_end()).unwrap_or_default()
    }

    pub(super) fn read(
        reader: &mut Reader<'_>,
        field: &'static str,
    ) -> Result<Self, InvalidMessage> {
        let bytes = reader.take(field)?;
        let fault = Fault::Illegal("is not a name of A-Z 0-9 . - padded with blanks");
        Self::from_bytes(bytes).ok_or_else(|| reader.error(field, fault))
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({:?})", self.name())
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_with_blanks() {
        let eid = Eid::new("TESTEID1").unwrap();
        assert_eq!(eid.as_bytes(), b"TESTEID1                        ");
        assert_eq!(eid.name(), "TESTEID1");
        assert_eq!(format!("{eid} {eid:?}"), "TESTEID1 Eid(\"TESTEID1\")");
        assert_eq!(Eid::new("TESTEID1  "), Some(eid));
        assert!(Eid::new("0.-A").is_some());
        assert!(Eid::new(&"Z".repeat(32)).is_some());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in [
            "", " ", ".A", "-A", "a", "A B", "Ab", "A_B", "\u{c4}", "A\0", "A\t",
        ] {
            assert_eq!(Eid::new(name), None, "{name:?}");
        }
        assert_eq!(Eid::new(&"Z".repeat(33)), None);
    }

    #[test]
    fn padding_with_nul_is_refused() {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(b"TESTEID1");
        assert_eq!(Eid::from_bytes(bytes), None);
        bytes[8..].fill(b'\n');
        assert_eq!(Eid::from_bytes(bytes), None);
    }
}
