//! One connection's way out: what the peer is to know, and what it was told.

use std::io;
use std::num::NonZeroU32;

use super::lane::News;
use super::pool::Buffer;
use super::queue::{Carried, Queue};
use crate::fabric::rdma::{Pair, Write};
use crate::proto::position::{Position, RingSize, Span};
use crate::wire::cdc::{Cdc, Cursor, ProducerFlags, RdmaCdc, Sequence, StateFlags};
use crate::wire::clc::SmcR;
use crate::wire::llc::Key;

/// Bytes of one post: so much of one connection goes before it is another's turn.
const STEP_MAX: u64 = 256 << 10;

/// The ring from which bytes leave, where they go, and how far they are. All of it is about one link: on another one the
/// same ring has another key of the peer, and starts from what was done. That is known: each post has one CDC and they are done in
/// their order, so the last CDC that is done has a number by `under_way` and one less than the next.
#[derive(Debug)]
pub(super) struct Sending {
    /// The connection at this end.
    token: NonZeroU32,
    /// The connection at the peer's.
    peer_token: NonZeroU32,
    /// The peer's buffer.
    key: Key,
    /// Where in it the ring starts.
    start: u64,
    peer_size: RingSize,
    ring: Buffer,
    size: RingSize,
    /// What the peer is to know.
    wanted: News,
    /// What was posted last.
    posted: News,
    /// What of the stream lies in the peer's memory for sure.
    completed: Position,
    /// The number of the next CDC.
    sequence: Sequence,
    /// Posts that are not done.
    under_way: u32,
    /// Bytes posted since the last post that is reported.
    unreported: u64,
    /// It stands in the group's line.
    pub(super) is_queued: bool,
}

impl Sending {
    /// `None`: the peer's buffer does not lie in its memory.
    pub(super) fn new(token: NonZeroU32, peer: &SmcR, ring: Buffer) -> Option<Self> {
        let peer_size = RingSize::from_code(peer.size);
        let before = u64::from(peer.rmbe_index.get() - 1) * u64::from(peer_size.bytes());
        let start = peer.rmb_address.checked_add(before)?;
        start.checked_add(peer_size.bytes().into())?;
        Some(Self {
            token,
            peer_token: peer.alert_token,
            key: key_of(peer),
            start,
            peer_size,
            size: RingSize::from_code(ring.size),
            ring,
            wanted: News::default(),
            posted: News::default(),
            completed: Position::default(),
            sequence: Sequence::FIRST,
            under_way: 0,
            unreported: 0,
            is_queued: false,
        })
    }

    /// Gives the ring back.
    pub(super) fn into_ring(self) -> Buffer {
        self.ring
    }

    /// The peer's key.
    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn peer_size(&self) -> RingSize {
        self.peer_size
    }

    /// The consumer's cursor that the peer is to know.
    pub(super) fn consumer(&self) -> Cursor {
        self.wanted.consumer
    }

    /// How much of the stream was pushed.
    pub(super) fn produced(&self) -> Position {
        self.wanted.produced
    }

    /// Bytes that a writer has room for, if the peer's ring has room for so many. The send ring is no obstacle while half of it is
    /// free: that more becomes free is not always reported.
    pub(super) fn room(&self, at_peer: u64) -> u64 {
        let size = u64::from(self.size.bytes());
        let free = size - self.wanted.produced.since(self.completed);
        if free >= size / 2 {
            at_peer
        } else {
            at_peer.min(free)
        }
    }

    /// Has the peer know this; nothing more behind an abort.
    pub(super) fn want(&mut self, news: News) {
        if self.wanted.state_flags.contains(StateFlags::ABNORMAL_CLOSE) {
            return;
        }
        self.wanted = news;
        if news.state_flags.contains(StateFlags::ABNORMAL_CLOSE) {
            // Nobody will read what has not gone yet.
            self.wanted.produced = self.posted.produced;
        }
    }

    /// The end is an abort, whatever it was to be before.
    pub(super) fn abort(&mut self) {
        let others = self.wanted.state_flags - StateFlags::CLOSED;
        self.want(News {
            state_flags: others | StateFlags::ABNORMAL_CLOSE,
            ..self.wanted
        });
    }

    /// The handle is gone: if it has not told the peer of an end, the end is an abort.
    pub(super) fn leave(&mut self) {
        if !self.wanted.state_flags.contains(StateFlags::CLOSED) {
            self.abort();
        }
    }

    /// Whether there is something that the peer is to know and was not told.
    pub(super) fn is_dirty(&self) -> bool {
        self.wanted != self.posted
    }

    /// Whether the next post writes bytes, and does not only tell.
    pub(super) fn has_bytes(&self) -> bool {
        self.wanted.produced != self.posted.produced
    }

    /// Whether the peer was told everything, and all posts are done.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_dirty() && self.under_way == 0
    }

    /// A post is done that carried the stream up to `upto`.
    pub(super) fn handle_done(&mut self, upto: Position) {
        self.completed = upto;
        self.under_way -= 1;
    }

    /// Posts what the peer is to know, or as much of it as is one connection's turn. `is_awaited`: somebody waits for the
    /// report.
    ///
    /// # Errors
    /// The pair is broken.
    pub(super) fn post(
        &mut self,
        pair: &mut dyn Pair,
        queue: &mut Queue,
        is_awaited: bool,
    ) -> io::Result<()> {
        let from = self.posted.produced;
        let left = self.wanted.produced.since(from);
        let bytes = left.min(STEP_MAX);
        let news = self.next_news(bytes);
        let [first, second] = self.size.spans(from, bytes as u32);
        let writes = [
            self.write(first, from),
            self.write(second, from.plus(first.len.into())),
        ];
        // The second is empty unless the ring ends in between, and both are when there are no bytes.
        let count = usize::from(first.len > 0) + usize::from(second.len > 0);
        let places = count as u32 + 1;
        let report = is_awaited || self.must_report(bytes, left) || queue.report_is_due(places);
        let cdc = self.cdc(&news).encode();
        pair.post(&writes[..count], &cdc, queue.next_id(), report)?;
        let (token, upto) = (self.token, news.produced);
        queue.posted(places, report, Some(Carried { token, upto }));
        self.unreported = if report { 0 } else { self.unreported + bytes };
        self.posted = news;
        self.sequence = self.sequence.next();
        self.under_way += 1;
        Ok(())
    }

    /// What the peer is told behind the next `bytes` bytes: an end only behind the last of them.
    fn next_news(&self, bytes: u64) -> News {
        let produced = self.posted.produced.plus(bytes);
        let state_flags = if produced == self.wanted.produced {
            self.wanted.state_flags
        } else {
            self.posted.state_flags
        };
        News {
            produced,
            state_flags,
            ..self.wanted
        }
    }

    /// A part of the ring, which starts at `position` of the stream.
    fn write(&self, span: Span, position: Position) -> Write<'_> {
        Write {
            from: &self.ring.memory,
            offset: span.offset as usize,
            len: span.len,
            address: self.start + u64::from(self.peer_size.cursor(position).count),
            key: self.key.rkey,
        }
    }

    /// Whether the connection itself needs the report of its next post.
    fn must_report(&self, bytes: u64, left: u64) -> bool {
        let half = u64::from(self.size.bytes()) / 2;
        let blocked = ProducerFlags::WRITE_BLOCKED;
        bytes < left
            || self.unreported + bytes >= half
            || self.wanted.producer_flags.contains(blocked)
            || !self.wanted.state_flags.is_empty()
    }

    fn cdc(&self, news: &News) -> RdmaCdc {
        RdmaCdc {
            sequence: self.sequence,
            token: self.peer_token,
            cdc: Cdc {
                producer: self.peer_size.cursor(news.produced),
                consumer: news.consumer,
                producer_flags: news.producer_flags,
                state_flags: news.state_flags,
            },
        }
    }
}

/// The key that an Accept or a Confirm tells.
pub(super) fn key_of(peer: &SmcR) -> Key {
    Key {
        rkey: peer.rkey,
        address: peer.rmb_address,
    }
}
