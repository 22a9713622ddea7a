//! For a caller that waits by itself, in the thread that calls: writing without a backlog, and what it sleeps at.

use std::sync::Arc;

use super::super::group::LinkGroup;
use super::medium::Medium;
use super::{Endpoint, Fault};
use crate::mem::Source;
use crate::mem::header::Header;

impl Endpoint {
    /// Takes as many of `bytes` as fit now: so many, 0 when there is no room.
    ///
    /// # Errors
    /// The [`Fault`] that stops this end from writing; nothing was taken.
    pub fn write_some(&mut self, bytes: Source<'_>) -> Result<usize, Fault> {
        debug_assert!(self.backlog.is_empty(), "those who use this have none");
        if self.is_ending() {
            return Err(self.write_fault().unwrap_or(Fault::ClosedHere));
        }
        let n = bytes.len().min(self.room(bytes.len()));
        if n == 0 {
            let fault = self.write_fault();
            return fault.map_or(Ok(0), |fault| {
                self.show_all();
                Err(fault)
            });
        }
        // What the peer is told with the next cursor: it need not hurry any more.
        self.calm();
        self.put(bytes.split_at(n).0);
        Ok(n)
    }

    /// Whether a write would find room, or a fault.
    pub fn is_writable(&mut self) -> bool {
        self.refresh();
        self.free() > 0 || self.is_ending() || self.write_fault().is_some()
    }

    /// The link group, whose doorbell and witness a thread may sleep at. None over a link, which does not have them.
    pub fn shared_group(&self) -> Option<&Arc<LinkGroup>> {
        match &self.medium {
            Medium::Shared(group) => Some(group),
            Medium::Lane(..) | Medium::Left(..) => None,
        }
    }

    /// The page with the words that this end arms.
    pub(in crate::driver) fn header(&self) -> &Header {
        &self.header
    }
}
