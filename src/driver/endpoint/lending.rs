//! Bytes in their place: what is readable, and room for what is to be written, lent out instead of copied.
//!
//! Who borrows sees to it that nothing else is read, or written, until the loan is over: the next command that moves the
//! cursor would give the place away.

use std::io;

use super::{Endpoint, Fault};
use crate::mem::Lent;

/// Room in place that the application waits for, in bytes; all 0 if it does not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    n: u32,
    /// With less it cannot do anything.
    pub(super) least: u32,
}

impl Endpoint {
    /// The next readable bytes as far as they lie in one piece, `max` at most. They stay unread; see [`Self::consume`].
    ///
    /// # Errors
    /// ENOMEM.
    pub fn lend_readable(&self, max: u32) -> io::Result<Lent> {
        let [first, _] = self.connection.read_spans(max);
        self.own.lend(first.offset as usize, first.len as usize)
    }

    /// The room for the next bytes as far as it lies in one piece, `max` at most; see [`Self::commit`]. None while there is a
    /// backlog, which comes first.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn lend_room(&mut self, max: u32) -> io::Result<Lent> {
        let n = max.min(self.free_room(max));
        let [first, _] = self.out_size.spans(self.connection.position(), n);
        self.out.lend(first.offset as usize, first.len as usize)
    }

    /// Publishes `n` bytes that lie in the room that was lent.
    ///
    /// # Errors
    /// The [`Fault`] that stops this end from writing; nothing was published.
    ///
    /// # Panics
    /// There was less room.
    pub fn commit(&mut self, n: u32) -> Result<(), Fault> {
        self.refresh();
        if let Some(fault) = self.room_fault() {
            return Err(fault);
        }
        if n > 0 {
            self.publish_producer(n);
        }
        Ok(())
    }

    /// Bytes that can be written in place now; looks at the peer's words only if fewer than `enough` are known to be.
    pub fn free_room(&mut self, enough: u32) -> u32 {
        if self.backlog.is_empty() {
            self.room(enough as usize) as u32
        } else {
            0
        }
    }

    /// Why there will be no room any more, if there will be none.
    pub fn room_fault(&self) -> Option<Fault> {
        let ended = self.is_ending().then_some(Fault::ClosedHere);
        self.write_fault().or(ended)
    }

    /// Somebody waits for room for `n` bytes, and can use `least` (not 0, at most [`Self::room_need_max`]): from here on
    /// [`Self::arm_write`] waits for that as well.
    pub fn want_room(&mut self, n: u32, least: u32) {
        debug_assert!(least > 0 && least <= n && least <= self.room_need_max());
        self.wanted = Wanted { n, least };
    }

    /// Nobody waits for room any more.
    pub fn want_no_room(&mut self) {
        self.wanted = Wanted::default();
        self.calm();
        if self.backlog.is_empty() {
            self.disarm_write();
        }
    }

    /// The most room that can be waited for: half of the ring that is written, so that a writer never waits for a reader that
    /// waits for it.
    pub fn room_need_max(&self) -> u32 {
        self.out_size.bytes() / 2
    }

    /// Whether bytes, or somebody with bytes, wait for room that is not there.
    pub fn awaits_room(&self) -> bool {
        let wants = self.free() < self.wanted.least && self.room_fault().is_none();
        !self.backlog.is_empty() || wants
    }

    /// Bytes that wait for room, here or with the application.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.backlog.len().max(self.wanted.n as usize)
    }
}
