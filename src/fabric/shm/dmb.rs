//! A DMB, direct memory buffer: the header page of a connection and a ring that the peer writes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::mem::header::{HEADER_LEN, Header, Side};
use crate::mem::memfd::{self, Memory, Refused};
use crate::mem::region::Region;

/// One mapped DMB.
#[derive(Debug)]
pub struct Dmb {
    memory: Arc<Memory>,
    ring: Region,
}

impl Dmb {
    /// Makes a DMB whose ring has `ring_len` bytes, and the fd to hand to the peer. No page is taken unless `preallocate`, or
    /// unless the kernel does not overcommit.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, ENOSPC.
    pub fn create(ring_len: usize, preallocate: bool) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd::create(
            HEADER_LEN + ring_len,
            preallocate || memfd::overcommit_is_strict(),
        )?;
        let dmb = Self::map(&fd, ring_len).map_err(|refused| match refused {
            Refused::Os(error) => error,
            // Own memory was made a line above as the check wants it; only the system can say no to it.
            other => io::Error::other(other),
        })?;
        Ok((dmb, fd))
    }

    /// Maps a DMB that a peer made and announced with `ring_len` bytes, and has mapped for itself.
    ///
    /// # Errors
    /// [`Refused`] says what is wrong with the file, or what the system lacks.
    pub fn attach(fd: impl AsFd, ring_len: usize) -> Result<Self, Refused> {
        let dmb = Self::map(&fd, ring_len)?;
        dmb.keep(fd)?;
        Ok(dmb)
    }

    /// Both ends have mapped the DMB behind `fd`: where the kernel does not overcommit, no page of it may go from here on.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC; EPERM: the peer has forbidden it.
    pub fn keep(&self, fd: impl AsFd) -> Result<(), Refused> {
        if memfd::overcommit_is_strict() {
            memfd::keep_pages(fd, self.memory.len())
        } else {
            Ok(())
        }
    }

    /// The same mapping once more: to a sanitizer, memory is what has one address.
    #[cfg(test)]
    pub(crate) fn share(&self) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            ring: self.ring.clone(),
        }
    }

    fn map(fd: impl AsFd, ring_len: usize) -> Result<Self, Refused> {
        let memory = Arc::new(Memory::map(fd, HEADER_LEN + ring_len)?);
        let ring = Region::new(Arc::clone(&memory), HEADER_LEN, ring_len);
        Ok(Self { memory, ring })
    }

    /// The header page, seen from `side`.
    pub fn header(&self, side: Side) -> Header {
        Header::new(Arc::clone(&self.memory), side)
    }

    /// The ring.
    pub fn ring(&self) -> &Region {
        &self.ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Target;

    #[test]
    fn both_ends_map_the_same_ring() {
        let (mine, fd) = Dmb::create(16 << 10, false).expect("create");
        let theirs = Dmb::attach(&fd, 16 << 10).expect("attach");
        theirs.ring().write(16_380, (&b"tail"[..]).into());
        let mut out = [0u8; 4];
        mine.ring().read(16_380, Target::from(&mut out[..]));
        assert_eq!(&out, b"tail");
        let other = Dmb::attach(&fd, 32 << 10).expect_err("another size than announced");
        assert_eq!(
            other.to_string(),
            "shared memory: size: 20480 bytes, expected 36864"
        );
    }

    #[test]
    #[should_panic(expected = "in a region of 16384")]
    fn the_ring_ends_where_it_ends() {
        let (dmb, _fd) = Dmb::create(16 << 10, false).expect("create");
        dmb.ring().write(16_381, (&b"tail"[..]).into());
    }
}
