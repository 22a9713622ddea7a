//! The prefix area of a Proposal: the subnets of the interface that the TCP connection uses.
//!
//! ```text
//! 0  IPv4 subnet (4)   4  its length   5  reserved (2)   7  IPv6 count   8  {IPv6 prefix (16), its length} * count
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use super::few::Few;
use crate::wire::InvalidMessage;
use crate::wire::prim::{Reader, Writer};

/// The prefix area. The kernel's server, for which one of its own prefixes must be here, looks at the IPv6 prefixes
/// only when there are any.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Prefixes {
    /// The subnet of a connection over IPv4; 0.0.0.0/0 over IPv6.
    pub ipv4: Ipv4Prefix,
    /// The prefixes of a connection over IPv6.
    pub ipv6: Few<Ipv6Prefix, 8>,
}

/// An IPv4 subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4Prefix {
    address: Ipv4Addr,
    len: u8,
}

/// An IPv6 prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix {
    address: Ipv6Addr,
    len: u8,
}

impl Ipv4Prefix {
    /// 0.0.0.0/0.
    pub const ZERO: Self = Self {
        address: Ipv4Addr::UNSPECIFIED,
        len: 0,
    };

    /// The subnet of `len` bits that `address` is in; `None` above 32 bits.
    #[must_use]
    pub fn new(address: Ipv4Addr, len: u8) -> Option<Self> {
        let mask = u32::MAX
            .checked_shl(32u32.checked_sub(len.into())?)
            .unwrap_or(0);
        Some(Self {
            address: Ipv4Addr::from(u32::from(address) & mask),
            len,
        })
    }

    /// The subnet's address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The subnet's bits, 0 to 32.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is the length of a prefix")]
    pub const fn len(&self) -> u8 {
        self.len
    }
}

impl Ipv6Prefix {
    /// The prefix of `len` bits that `address` has; `None` above 128 bits.
    #[must_use]
    pub fn new(address: Ipv6Addr, len: u8) -> Option<Self> {
        let mask = u128::MAX
            .checked_shl(128u32.checked_sub(len.into())?)
            .unwrap_or(0);
        Some(Self {
            address: Ipv6Addr::from(u128::from(address) & mask),
            len,
        })
    }

    /// The prefix as an address.
    #[must_use]
    pub const fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// The prefix's bits, 0 to 128.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is the length of a prefix")]
    pub const fn len(&self) -> u8 {
        self.len
    }
}

impl Prefixes {
    /// Greatest length of the area, in bytes.
    pub(super) const MAX_LEN: usize = 8 + 8 * 17;

    /// The area of a connection over IPv4.
    #[must_use]
    pub fn ipv4(prefix: Ipv4Prefix) -> Self {
        Self {
            ipv4: prefix,
            ipv6: Few::default(),
        }
    }

    /// The length of the area, in bytes.
    pub(super) fn len(&self) -> usize {
        8 + 17 * self.ipv6.len()
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let address = Ipv4Addr::from(reader.take::<4>("IPv4 subnet")?);
        let len = reader.u8("IPv4 prefix length")?;
        reader.at_most("IPv4 prefix length", len.into(), 32)?;
        reader.reserved::<2>()?;
        let count = reader.u8("IPv6 prefix count")?;
        let ipv6 = Few::read(reader, "IPv6 prefix count", count, Self::read_ipv6)?;
        Ok(Self {
            ipv4: Ipv4Prefix { address, len },
            ipv6,
        })
    }

    fn read_ipv6(reader: &mut Reader<'_>) -> Result<Ipv6Prefix, InvalidMessage> {
        let address = Ipv6Addr::from(reader.take::<16>("IPv6 prefix")?);
        let len = reader.u8("IPv6 prefix length")?;
        reader.at_most("IPv6 prefix length", len.into(), 128)?;
        Ok(Ipv6Prefix { address, len })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(&self.ipv4.address.octets());
        writer.u8(self.ipv4.len);
        writer.zeros(2);
        writer.u8(self.ipv6.count());
        for prefix in &*self.ipv6 {
            writer.put(&prefix.address.octets());
            writer.u8(prefix.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_masked_to_its_subnet() {
        let prefix = |len| {
            Ipv4Prefix::new(Ipv4Addr::new(10, 9, 255, 1), len).map(|p| p.address().to_string())
        };
        assert_eq!(prefix(24).as_deref(), Some("10.9.255.0"));
        assert_eq!(prefix(17).as_deref(), Some("10.9.128.0"));
        assert_eq!((prefix(0).as_deref(), prefix(33)), (Some("0.0.0.0"), None));
        assert_eq!(prefix(32).as_deref(), Some("10.9.255.1"));
        let prefix = |len| {
            Ipv6Prefix::new("fe80::ffff:1".parse().unwrap(), len).map(|p| p.address().to_string())
        };
        assert_eq!(
            (prefix(10).as_deref(), prefix(0).as_deref()),
            (Some("fe80::"), Some("::"))
        );
        assert_eq!(
            (prefix(128).as_deref(), prefix(129)),
            (Some("fe80::ffff:1"), None)
        );
    }
}
