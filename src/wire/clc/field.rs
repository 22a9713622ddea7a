//! The small fields that CLC messages share.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use bitflags::bitflags;

use crate::wire::prim::Reader;
use crate::wire::{Fault, InvalidMessage};

/// Names an instance of a system, 8 bytes: the kernel takes 2 random bytes and the MAC of its first
/// RoCE port. The kernel's own proposals for version 2 alone carry zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PeerId(pub [u8; 8]);

/// The MAC of a RoCE port. Zero when it is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Mac(pub [u8; 6]);

/// The GID of a RoCE port, raw. Zero when it is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The RoCEv2 GID of an IPv4 address: `::ffff:a.b.c.d`.
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The IPv4 address of a mapped GID. As in the kernel, a GID whose first twelve bytes are zero
    /// counts as one too.
    #[must_use]
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4()
    }
}

/// A 24-bit number: a queue pair number or a packet sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct U24(u32);

impl U24 {
    /// The number; `None` from 2^24.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value < 1 << 24 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// The number as an integer.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(in crate::wire) fn read(
        reader: &mut Reader<'_>,
        field: &'static str,
    ) -> Result<Self, InvalidMessage> {
        let [a, b, c] = reader.take(field)?;
        Ok(Self(u32::from_be_bytes([0, a, b, c])))
    }

    pub(in crate::wire) const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

/// The path MTU of a queue pair, in InfiniBand's code. Both ends must use the lesser of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes, code 1.
    B256 = 1,
    /// 512 bytes, code 2.
    B512,
    /// 1024 bytes, code 3: rxe on a network of 1500-byte frames.
    B1024,
    /// 2048 bytes, code 4.
    B2048,
    /// 4096 bytes, code 5.
    B4096,
}

impl Mtu {
    /// The MTU with this code; `None` outside 1 to 5.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    // The kernel does not check the code, and its queue pair is broken when it is 0.
    pub(in crate::wire) fn of(reader: &Reader<'_>, code: u8) -> Result<Self, InvalidMessage> {
        let fault = Fault::OutOfRange {
            found: code.into(),
            min: 1,
            max: 5,
        };
        Self::new(code).ok_or_else(|| reader.error("MTU", fault))
    }
}

/// The operating system of the sender, four bits. Unknown values are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Os(u8);

impl Os {
    /// Not told.
    pub const NONE: Self = Self(0);
    /// z/OS.
    pub const ZOS: Self = Self(1);
    /// Linux.
    pub const LINUX: Self = Self(2);
    /// AIX.
    pub const AIX: Self = Self(3);

    /// 0 to 15.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    pub(super) const fn from_high_nibble(byte: u8) -> Self {
        Self(byte >> 4)
    }
}

/// The release of version 2 that an end speaks: 0 is v2.0, 1 is v2.1. The lesser of both ends'
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Release(u8);

impl Release {
    /// Release 0.
    pub const V2_0: Self = Self(0);
    /// Release 1.
    pub const V2_1: Self = Self(1);

    /// The release with this number; `None` above 15.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < 16 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// 0 to 15.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    pub(super) const fn from_low_nibble(byte: u8) -> Self {
        Self(byte & 0x0f)
    }

    pub(super) const fn from_high_nibble(byte: u8) -> Self {
        Self(byte >> 4)
    }
}

bitflags! {
    /// Optional features of release 1. Unknown bits are retained.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct Features: u16 {
        /// The sender understands emulated ISM devices, whose GIDs have 128 bits.
        const EMULATED_ISM = 0x0001;
        const _ = !0;
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_maps_an_ipv4_address() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
        let mut raw = gid.0;
        raw[10..12].fill(0);
        assert_eq!(Gid(raw).to_ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
        raw[0] = 0xfe;
        assert_eq!(Gid(raw).to_ipv4(), None);
    }

    #[test]
    fn numbers_keep_to_their_bits() {
        assert_eq!(U24::new(0xff_ffff).map(U24::to_bytes), Some([0xff; 3]));
        assert_eq!(U24::new(0x01_0203).map(U24::to_bytes), Some([1, 2, 3]));
        assert_eq!(U24::new(1 << 24), None);
        assert_eq!(
            (Release::new(15).map(Release::number), Release::new(16)),
            (Some(15), None)
        );
    }

    #[test]
    fn the_codes_of_the_mtu_double() {
        let bytes = [256, 512, 1024, 2048, 4096];
        assert_eq!(
            [1, 2, 3, 4, 5].map(|code| Mtu::new(code).unwrap().bytes()),
            bytes
        );
        assert_eq!((Mtu::new(0), Mtu::new(6)), (None, None));
    }

    #[test]
    fn identifiers_read_as_usual() {
        assert_eq!(
            Mac([0xb6, 0x37, 0x66, 0x63, 0x5a, 0x02]).to_string(),
            "b6:37:66:63:5a:02"
        );
        assert_eq!(
            PeerId([0, 1, 2, 3, 4, 5, 6, 0xff]).to_string(),
            "00010203040506ff"
        );
    }
}
