//! What an endpoint publishes in the shared memory, and what it arms there.

use super::Endpoint;
use crate::fabric::shm::signal;
use crate::mem::header::Header;
use crate::mem::sync::{AtomicU64, Ordering};
use crate::proto::connection::Connection;
use crate::wire::cdc::Half;

/// Publishing and waiting.
impl Endpoint {
    /// `n` bytes were copied: lets the peer see them, and wakes it if it sleeps and has what it waits for.
    #[inline]
    pub(super) fn publish_producer(&mut self, n: u32) {
        let Self {
            header,
            connection,
            seen,
            counters,
            group,
            ..
        } = self;
        connection.produced(n);
        // What was read since the last announcement rides along in the same cache line.
        if connection.released() > 0 {
            store_consumer(header, connection);
        }
        // SYNC POINT with `Seen::refresh` of the peer: it sees the bytes before the cursor.
        header.mine().producer.store(
            Half::new(connection.producer_cursor()).to_word(),
            Ordering::Release,
        );
        let sleeper = &header.theirs().reader_armed;
        let there = || {
            // A peer that misbehaves is found out by the next refresh that may report it.
            let _ = seen.refresh(header, connection);
            u64::from(connection.in_flight())
        };
        if signal::must_ring(sleeper, there) {
            counters.wakeups_sent += 1;
            group.ring();
        }
    }

    /// Lets the peer see how far this end has read, and wakes it if it waits for the room.
    #[inline]
    pub(super) fn announce(&mut self) {
        let Self {
            header,
            connection,
            counters,
            group,
            own_size,
            ..
        } = self;
        store_consumer(header, connection);
        let room = || u64::from(own_size.bytes() - connection.readable());
        if signal::must_ring(&header.theirs().writer_armed, room) {
            counters.wakeups_sent += 1;
            group.ring();
        }
    }

    /// Lets the peer see an end, and wakes it whatever it waits for.
    #[cold]
    pub(super) fn publish_flags(&mut self) {
        let Self {
            header,
            connection,
            counters,
            group,
            ..
        } = self;
        store_consumer(header, connection);
        let theirs = header.theirs();
        // Both words are claimed: no short cut between the two. The fence of `must_ring` comes first.
        let reader = signal::must_ring(&theirs.reader_armed, || u64::MAX);
        let writer = signal::must_ring(&theirs.writer_armed, || u64::MAX);
        if reader || writer {
            counters.wakeups_sent += 1;
            group.ring();
        }
    }

    /// Asks to be woken once `need` bytes (not 0, at most half the own ring) are readable or nothing more will come.
    /// False: that is so already.
    pub fn arm_read(&mut self, need: u32) -> bool {
        debug_assert!(need > 0 && need <= self.read_need_max());
        self.incoming(need);
        if self.connection.readable() >= need || self.stream_end().is_some() {
            return false;
        }
        // The peer computes from this end's announced cursor what a threshold has, and its own room.
        if self.connection.released() > 0 {
            self.announce();
        }
        let Self {
            header,
            connection,
            seen,
            ..
        } = self;
        let there = || match seen.refresh(header, connection) {
            Ok(()) if !connection.peer_done() => u64::from(connection.readable()),
            _ => u64::MAX,
        };
        let sleeps = signal::arm(&header.mine().reader_armed, need.into(), there);
        if sleeps {
            self.counters.stalls_read += 1;
        } else {
            self.refresh();
        }
        sleeps
    }

    /// The largest threshold that [`Self::arm_read`] takes: half of the own ring, so that the writer never waits for a
    /// reader that waits for more than the ring holds.
    pub fn read_need_max(&self) -> u32 {
        self.own_size.bytes() / 2
    }

    /// Asks to be woken once the backlog, or as much of it as half the peer's ring, fits. False: some fits now, there is
    /// no backlog, or nothing more can be written.
    pub fn arm_write(&mut self) -> bool {
        self.flush();
        if self.backlog.is_empty() || self.write_fault().is_some() {
            return false;
        }
        let need = (self.backlog.len() as u64).min(u64::from(self.peer_size.bytes() / 2));
        self.connection.set_write_blocked(true);
        let Self {
            header,
            connection,
            seen,
            ..
        } = self;
        store_consumer(header, connection);
        let room = || match seen.refresh(header, connection) {
            Ok(()) if connection.can_send() => u64::from(connection.writable()),
            _ => u64::MAX,
        };
        let sleeps = signal::arm(&header.mine().writer_armed, need, room);
        if sleeps {
            self.counters.stalls_write += 1;
        } else {
            self.refresh();
            self.flush();
        }
        sleeps
    }

    /// Whether the peer has taken back the word of this end's reader and of its writer: it has rung for them.
    pub fn claimed(&self) -> (bool, bool) {
        let mine = self.header.mine();
        let is_claimed = |word: &AtomicU64| word.load(Ordering::Acquire) == 0;
        (
            is_claimed(&mine.reader_armed),
            is_claimed(&mine.writer_armed),
        )
    }

    /// The reader waits no more.
    pub fn disarm_read(&self) {
        signal::disarm(&self.header.mine().reader_armed);
    }

    /// A wait of this end was ended by the doorbell.
    pub fn woken(&mut self) {
        self.counters.wakeups_received += 1;
    }

    /// Whether a wait that begins now should spin a little first.
    pub fn spin_is_worthwhile(&mut self) -> bool {
        self.spin.worthwhile(&self.header)
    }

    /// Reports how the spinning ended.
    pub fn spun(&mut self, came: bool) {
        if came {
            self.counters.spins += 1;
            self.spin.succeeded();
        } else {
            self.spin.failed();
        }
    }
}

/// Publishes the consumer cursor and the flags.
#[inline]
fn store_consumer(header: &Header, connection: &mut Connection) {
    let (cursor, producer_flags, state_flags) = connection.take_consumer();
    let half = Half {
        cursor,
        producer_flags,
        state_flags,
    };
    // SYNC POINT with `Seen::refresh` of the peer: bytes copied out before are free for it, bytes written before a
    // declared end are visible to it.
    header
        .mine()
        .consumer
        .store(half.to_word(), Ordering::Release);
}
