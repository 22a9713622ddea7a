//! The places into which a pair receives messages, and those from which it sends them where it cannot hand them over inline.

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use super::abi::{Piece, Receive};
use super::domain::Protection;
use crate::fabric::rdma::{Access, HEAD_LEN, MESSAGE_MAX, Received, Registered};

/// Bytes from one place to the next: no two share a cache line.
const STRIDE: usize = 64;
/// Bytes of a message behind its head. One buffer for all receives of a pair: long messages are rare, and one at a time.
const SPILL: usize = MESSAGE_MAX - HEAD_LEN;
/// Receives that are posted in one call at most.
const BATCH: usize = 32;

/// Registered memory: places to receive, places to send from, and the buffer for what is long.
pub(super) struct Places {
    memory: Arc<Registered>,
    receives: u32,
    sends: u32,
    next_send: u32,
    /// Receives whose messages were taken out, and which are not posted.
    idle: Vec<u32>,
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places")
            .field("receives", &self.receives)
            .field("sends", &self.sends)
            .field("idle", &self.idle.len())
            .finish_non_exhaustive()
    }
}

impl Places {
    /// Memory for so many of each; all receives are idle.
    ///
    /// # Errors
    /// Those of registering.
    pub(super) fn new(protection: &Arc<Protection>, receives: u32, sends: u32) -> io::Result<Self> {
        let len = (receives as usize + sends as usize) * STRIDE + SPILL;
        Ok(Self {
            memory: protection.register(len, Access::Local)?,
            receives,
            sends,
            next_send: 0,
            idle: (0..receives).collect(),
        })
    }

    /// The memory, for whoever keeps the pair: it receives into it until it is destroyed.
    pub(super) fn memory(&self) -> Arc<Registered> {
        Arc::clone(&self.memory)
    }

    fn spill(&self) -> usize {
        (self.receives as usize + self.sends as usize) * STRIDE
    }

    fn piece(&self, offset: usize, len: usize) -> Piece {
        Piece {
            addr: self.memory.address() + offset as u64,
            length: len as u32,
            lkey: self.memory.local_key(),
        }
    }

    /// Copies `message` to the next place to send from. It was used so many posts ago as there are places in the send queue.
    pub(super) fn keep(&mut self, message: &[u8]) -> Piece {
        let offset = (self.receives + self.next_send) as usize * STRIDE;
        self.next_send = (self.next_send + 1) % self.sends;
        self.memory.region().write(offset, message.into());
        self.piece(offset, message.len())
    }

    /// The message of `len` bytes at a place, which is idle then.
    ///
    /// # Panics
    /// There is no such place.
    pub(super) fn take(&mut self, slot: u32, len: u32) -> Received {
        assert!(slot < self.receives, "receive {slot} of {}", self.receives);
        let len = (len as usize).min(MESSAGE_MAX);
        let mut head = [0; HEAD_LEN];
        let head_len = len.min(HEAD_LEN);
        let region = self.memory.region();
        region.read(slot as usize * STRIDE, head[..head_len].as_mut().into());
        let mut tail = vec![0; len - head_len];
        region.read(self.spill(), tail.as_mut_slice().into());
        self.idle.push(slot);
        Received {
            head,
            head_len,
            tail,
        }
    }

    /// Gives all idle receives to `post`, a linked list of at most [`BATCH`] at a time, until it fails.
    pub(super) fn post_idle(
        &mut self,
        mut post: impl FnMut(*mut Receive) -> io::Result<()>,
    ) -> io::Result<()> {
        while !self.idle.is_empty() {
            let count = self.idle.len().min(BATCH);
            let mut pieces = [[Piece::NONE; 2]; BATCH];
            let mut receives = [Receive::NONE; BATCH];
            let slots = &self.idle[self.idle.len() - count..];
            for (pieces, &slot) in pieces.iter_mut().zip(slots) {
                *pieces = [
                    self.piece(slot as usize * STRIDE, HEAD_LEN),
                    self.piece(self.spill(), SPILL),
                ];
            }
            let first = receives.as_mut_ptr();
            for at in 0..count {
                let receive = Receive {
                    wr_id: slots[at].into(),
                    next: if at + 1 < count {
                        first.wrapping_add(at + 1)
                    } else {
                        null_mut()
                    },
                    sg_list: pieces[at].as_mut_ptr(),
                    num_sge: 2,
                };
                // SAFETY: `at` is within the array, which nothing else refers to.
                unsafe { first.wrapping_add(at).write(receive) };
            }
            post(first)?;
            self.idle.truncate(self.idle.len() - count);
        }
        Ok(())
    }
}
