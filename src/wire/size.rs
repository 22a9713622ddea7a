//! The four-bit code in which both ends announce the size of a receive buffer.

use std::fmt;

/// The size of a receive buffer (RMB or DMB): 16 KiB doubled `code` times.
///
/// RFC 7609 4.5.1 has codes up to 5 (512 KiB); the kernel accepts all 16 values of the four bits for SMC-R and sends
/// up to 6 for SMC-D.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeCode(u8);

impl SizeCode {
    /// 16 KiB.
    pub const MIN: Self = Self(0);
    /// 512 MiB.
    pub const MAX: Self = Self(15);

    /// The size with this code; `None` above 15.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= Self::MAX.0 {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The size in the high half of a byte.
    pub(super) const fn from_high_nibble(byte: u8) -> Self {
        Self(byte >> 4)
    }

    /// 0 to 15.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The size in bytes: a power of two from 16 KiB to 512 MiB.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        (16 * 1024) << self.0
    }
}

impl fmt::Display for SizeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.0, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_codes_double_from_16_kib_to_512_mib() {
        assert_eq!(SizeCode::MIN.bytes(), 16384);
        assert_eq!(SizeCode::new(6).map(SizeCode::bytes), Some(1 << 20));
        assert_eq!(SizeCode::MAX.bytes(), 512 << 20);
        assert_eq!(SizeCode::new(16), None);
        assert_eq!(SizeCode::new(3).unwrap().to_string(), "3 (131072 bytes)");
    }
}
