//! The first contact extension: what the ends of a new link group agree on.
//!
//! ```text
//!  0  bit 7 direct     1  bits 7-4 OS, bits 3-0 release     2  reserved (2)     4  host name (32)
//! 36  max connections  37  max links  38  features u16  40  vendor options (4)  44  reserved (8)
//! ```
//!
//! The second line is filled from release 1 on. In release 0 the kernel (6.12) sends it as zeros for SMC-R and leaves
//! it out for SMC-D; older kernels, which know only release 0, left it out for SMC-R too, which is read here but not
//! written.

use std::fmt;

use super::field::{Features, Os, Release};
use crate::wire::InvalidMessage;
use crate::wire::prim::{Reader, Writer};

/// The first contact extension of an Accept or a Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirstContact {
    /// SMC-R: both ends are in one subnet; otherwise RoCE goes through an IP gateway.
    pub direct: bool,
    /// The sender's operating system.
    pub os: Os,
    /// The sender's host name.
    pub host_name: HostName,
    /// What release 1 adds; `None` in release 0.
    pub v2_1: Option<V21>,
}

/// What release 1 adds to the first contact extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct V21 {
    release: Release,
    /// SMC-R: how many connections the link group may have. SMC-D: 0.
    pub max_connections: u8,
    /// SMC-R: how many links it may have. SMC-D: 0.
    pub max_links: u8,
    /// The sender's features.
    pub features: Features,
}

impl V21 {
    /// Limits of release 1.
    #[must_use]
    pub const fn new(max_connections: u8, max_links: u8, features: Features) -> Self {
        Self {
            release: Release::V2_1,
            max_connections,
            max_links,
            features,
        }
    }

    /// The same in another release; `None` for release 0, which has none of this.
    #[must_use]
    pub fn with_release(self, release: Release) -> Option<Self> {
        (release >= Release::V2_1).then_some(Self { release, ..self })
    }

    /// The negotiated release, 1 or above.
    #[must_use]
    pub const fn release(&self) -> Release {
        self.release
    }
}

impl FirstContact {
    pub(super) const SHORT: usize = 36;
    pub(super) const LONG: usize = 52;

    /// The negotiated release.
    #[must_use]
    pub fn release(&self) -> Release {
        self.v2_1.map_or(Release::V2_0, |v2_1| v2_1.release)
    }

    /// Reads the extension; `zeros` tells whether release 0 has the second line.
    pub(super) fn read(reader: &mut Reader<'_>, zeros: bool) -> Result<Self, InvalidMessage> {
        let direct = reader.u8("direct")? & 0x80 != 0;
        let byte = reader.u8("OS and release")?;
        reader.reserved::<2>()?;
        let host_name = HostName(reader.take("host name")?);
        let release = Release::from_low_nibble(byte);
        let v2_1 = if release > Release::V2_0 {
            Some(V21 {
                release,
                max_connections: reader.u8("max connections")?,
                max_links: reader.u8("max links")?,
                features: Features::from_bits_retain(reader.be16("features")?),
            })
        } else {
            None
        };
        match (v2_1, zeros) {
            (Some(_), _) => reader.reserved::<12>()?,
            (None, true) => reader.reserved::<16>()?,
            (None, false) => {}
        }
        Ok(Self {
            direct,
            os: Os::from_high_nibble(byte),
            host_name,
            v2_1,
        })
    }

    /// Writes the extension; `zeros` as for [`Self::read`].
    pub(super) fn write(&self, writer: &mut Writer, zeros: bool) {
        writer.u8(if self.direct { 0x80 } else { 0 });
        writer.u8(self.os.code() << 4 | self.release().number());
        writer.zeros(2);
        writer.put(&self.host_name.0);
        match self.v2_1 {
            Some(V21 {
                max_connections,
                max_links,
                features,
                ..
            }) => {
                writer.u8(max_connections);
                writer.u8(max_links);
                writer.be16(features.bits());
                writer.zeros(12);
            }
            None if zeros => writer.zeros(Self::LONG - Self::SHORT),
            None => {}
        }
    }
}

/// A host name in 32 bytes, padded with blanks. What a peer sends is kept as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostName([u8; 32]);

impl HostName {
    /// The first 32 bytes of a name; what is not ASCII becomes a question mark.
    #[must_use]
    pub fn from_lossy(name: &str) -> Self {
        let mut padded = [b' '; 32];
        for (byte, char) in padded.iter_mut().zip(name.chars()) {
            *byte = if char.is_ascii() { char as u8 } else { b'?' };
        }
        Self(padded)
    }

    /// The name without its padding; `None` when it is not ASCII, in which case the kernel forgets it too.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        let text = str::from_utf8(&self.0)
            .ok()
            .filter(|text| text.is_ascii())?;
        Some(text.trim_end_matches([' ', '\0']))
    }

    /// All 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostName({:?})",
            String::from_utf8_lossy(self.0.trim_ascii_end())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_cut_and_padded() {
        let name = HostName::from_lossy("virtme-ng");
        assert_eq!(name.as_bytes(), b"virtme-ng                       ");
        assert_eq!(
            (name.text(), format!("{name:?}")),
            (Some("virtme-ng"), "HostName(\"virtme-ng\")".into())
        );
        assert_eq!(HostName::from_lossy("h\u{f6}lle").text(), Some("h?lle"));
        assert_eq!(
            HostName::from_lossy(&"x".repeat(40)).text(),
            Some(&"x".repeat(32)[..])
        );
        assert_eq!(HostName([0xc3; 32]).text(), None);
        assert_eq!(HostName([0; 32]).text(), Some(""));
    }

    #[test]
    fn release_0_has_no_limits() {
        let v2_1 = V21::new(255, 2, Features::EMULATED_ISM);
        assert_eq!(v2_1.release(), Release::V2_1);
        assert_eq!(v2_1.with_release(Release::V2_0), None);
        let later = Release::new(2).unwrap();
        assert_eq!(
            v2_1.with_release(later).map(|v2_1| v2_1.release()),
            Some(later)
        );
    }
}
