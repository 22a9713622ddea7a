//! GIDs of ISM devices, native and emulated, and their list in a Proposal.

use std::ops::Deref;

use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

/// A native ISM device: hardware, with a GID of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct NativeIsm {
    /// The GID; 0 when there is no such device.
    pub gid: u64,
    /// The channel; 0 when it is not known.
    pub chid: u16,
}

/// An ISM device of version 2. One whose channel id is 0xff00 or above is emulated in software, and its GID has 128
/// bits: the GID and its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ism {
    gid: u64,
    extension: u64,
    chid: u16,
}

impl Ism {
    /// The first channel id of emulated devices; 0xffff is the kernel's loopback device.
    pub const FIRST_EMULATED_CHID: u16 = 0xff00;

    /// A native device; `None` when the channel id is that of an emulated one.
    #[must_use]
    pub const fn native(gid: u64, chid: u16) -> Option<Self> {
        if chid < Self::FIRST_EMULATED_CHID {
            Some(Self {
                gid,
                extension: 0,
                chid,
            })
        } else {
            None
        }
    }

    /// An emulated device; `None` when the channel id is that of a native one.
    #[must_use]
    pub const fn emulated(gid: u64, extension: u64, chid: u16) -> Option<Self> {
        if chid >= Self::FIRST_EMULATED_CHID {
            Some(Self {
                gid,
                extension,
                chid,
            })
        } else {
            None
        }
    }

    /// The device, of the kind that the channel id tells; the extension counts for an emulated one only.
    pub(super) const fn of_chid(gid: u64, extension: u64, chid: u16) -> Self {
        let extension = if chid >= Self::FIRST_EMULATED_CHID {
            extension
        } else {
            0
        };
        Self {
            gid,
            extension,
            chid,
        }
    }

    /// The GID, or its first half.
    #[must_use]
    pub const fn gid(&self) -> u64 {
        self.gid
    }

    /// The second half of an emulated device's GID; 0 for a native one.
    #[must_use]
    pub const fn extension(&self) -> u64 {
        self.extension
    }

    /// The channel id.
    #[must_use]
    pub const fn chid(&self) -> u16 {
        self.chid
    }

    /// Whether the device is made of software.
    #[must_use]
    pub const fn is_emulated(&self) -> bool {
        self.chid >= Self::FIRST_EMULATED_CHID
    }

    const fn entries(&self) -> usize {
        if self.is_emulated() { 2 } else { 1 }
    }
}

/// The ISM devices of a Proposal: at most eight entries on the wire, of which an emulated device takes two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct IsmList(Vec<Ism>);

impl IsmList {
    /// The greatest number of entries.
    pub const MAX_ENTRIES: usize = 8;
    /// Bytes of an entry: a GID and a channel id.
    pub(super) const ENTRY_LEN: usize = 10;

    /// The list of these devices; `None` when they need more than eight entries.
    #[must_use]
    pub fn new(devices: Vec<Ism>) -> Option<Self> {
        let list = Self(devices);
        (list.entries() <= Self::MAX_ENTRIES).then_some(list)
    }

    fn entries(&self) -> usize {
        self.0.iter().map(Ism::entries).sum()
    }

    /// The number of entries, as the message's byte counts them.
    pub(super) fn count(&self) -> u8 {
        self.entries() as u8
    }

    pub(super) fn read(reader: &mut Reader<'_>, count: u8) -> Result<Self, InvalidMessage> {
        let mut devices = Vec::with_capacity(count.into());
        let mut left = count;
        while left > 0 {
            let (gid, chid) = entry(reader)?;
            left -= 1;
            let mut extension = 0;
            if chid >= Ism::FIRST_EMULATED_CHID {
                if left == 0 {
                    let fault = Fault::Illegal("of an emulated device has no extension behind it");
                    return Err(reader.error("ISM GID", fault));
                }
                let (second, again) = entry(reader)?;
                reader.expect("ISM CHID", again.into(), chid.into())?;
                left -= 1;
                extension = second;
            }
            devices.push(Ism {
                gid,
                extension,
                chid,
            });
        }
        Ok(Self(devices))
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        for device in &self.0 {
            writer.be64(device.gid);
            writer.be16(device.chid);
            if device.is_emulated() {
                writer.be64(device.extension);
                writer.be16(device.chid);
            }
        }
    }
}

impl Deref for IsmList {
    type Target = [Ism];

    fn deref(&self) -> &[Ism] {
        &self.0
    }
}

fn entry(reader: &mut Reader<'_>) -> Result<(u64, u16), InvalidMessage> {
    Ok((reader.be64("ISM GID")?, reader.be16("ISM CHID")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<IsmList, InvalidMessage> {
        IsmList::read(
            &mut Reader::new("list", bytes),
            (bytes.len() / IsmList::ENTRY_LEN) as u8,
        )
    }

    #[test]
    fn the_channel_id_tells_the_kind() {
        assert_eq!(Ism::native(1, 0xff00), None);
        assert_eq!(Ism::emulated(1, 2, 0xfeff), None);
        let device = Ism::emulated(1, 2, 0xff00).unwrap();
        assert_eq!(
            (device.gid(), device.extension(), device.chid()),
            (1, 2, 0xff00)
        );
        assert!(device.is_emulated() && !Ism::native(1, 0xfeff).unwrap().is_emulated());
        assert_eq!(Ism::of_chid(1, 2, 0xfeff).extension(), 0);
        assert_eq!(Ism::of_chid(1, 2, 0xff00), device);
    }

    #[test]
    fn an_emulated_device_takes_two_entries() {
        let devices = vec![
            Ism::native(1, 7).unwrap(),
            Ism::emulated(2, 3, 0xff53).unwrap(),
        ];
        let list = IsmList::new(devices).unwrap();
        let mut writer = Writer::default();
        list.write(&mut writer);
        let bytes = writer.finish();
        assert_eq!((list.count(), bytes.len()), (3, 30));
        assert_eq!(
            bytes[10..],
            [
                0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0x53, 0, 0, 0, 0, 0, 0, 0, 3, 0xff, 0x53
            ]
        );
        assert_eq!(read(&bytes), Ok(list));
        let alone = "list: ISM GID: of an emulated device has no extension behind it";
        assert_eq!(read(&bytes[..20]).unwrap_err().to_string(), alone);
        let mut other = bytes;
        other[29] = 0x54;
        assert_eq!(
            read(&other).unwrap_err().to_string(),
            "list: ISM CHID: 65364, expected 65363"
        );
    }

    #[test]
    fn eight_entries_are_the_most() {
        let emulated = Ism::emulated(1, 2, 0xffff).unwrap();
        assert_eq!(
            IsmList::new(vec![emulated; 4]).map(|list| list.count()),
            Some(8)
        );
        assert_eq!(IsmList::new(vec![emulated; 5]), None);
        assert_eq!(IsmList::new(vec![Ism::native(1, 1).unwrap(); 9]), None);
    }
}
