//! What an endpoint publishes, and what it arms.

use super::Endpoint;
use super::medium::{self, Medium};
use crate::fabric::shm::signal;
use crate::mem::header::Header;
use crate::mem::sync::{AtomicU64, Ordering};
use crate::proto::connection::Connection;
use crate::proto::error::PeerMisbehaved;
use crate::wire::cdc::{Half, ProducerFlags};

/// Who sleeps.
#[derive(Debug, Clone, Copy)]
enum Sleeper {
    Reader,
    Writer,
}

/// Publishing and waiting.
impl Endpoint {
    /// `n` bytes were copied: lets the peer see them, and wakes it if it sleeps and has what it waits for.
    #[inline]
    pub(super) fn publish_producer(&mut self, n: u32) {
        let waiting = self.waiting();
        let Self {
            header,
            connection,
            seen,
            counters,
            medium,
            ..
        } = self;
        connection.produced(n);
        let group = match medium {
            Medium::Shared(group) => group,
            Medium::Lane(lane, _) => {
                medium::push(lane, connection, waiting);
                return self.show_written();
            }
            Medium::Left(..) => return,
        };
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
        let mut looked = Ok(());
        let there = || {
            looked = seen.refresh(header, connection);
            u64::from(connection.in_flight())
        };
        if signal::must_ring(sleeper, there) {
            counters.wakeups_sent += 1;
            group.ring();
            self.show_wakeups();
        }
        self.show_written();
        self.judge(looked);
    }

    /// What a look in between has shown. It is not left to the next one: by then a peer may have put back what it broke.
    #[inline]
    fn judge(&mut self, looked: Result<(), PeerMisbehaved>) {
        if let Err(misbehaved) = looked
            && self.fault.is_none()
        {
            self.misbehaved(misbehaved);
        }
    }

    /// Lets the peer see how far this end has read, and wakes it if it waits for the room.
    #[inline]
    pub(super) fn announce(&mut self) {
        let waiting = self.waiting();
        let Self {
            header,
            connection,
            counters,
            medium,
            own_size,
            ..
        } = self;
        let group = match medium {
            Medium::Shared(group) => group,
            Medium::Lane(lane, _) => return medium::push(lane, connection, waiting),
            Medium::Left(..) => return,
        };
        store_consumer(header, connection);
        let room = || u64::from(own_size.bytes() - connection.readable());
        if signal::must_ring(&header.theirs().writer_armed, room) {
            counters.wakeups_sent += 1;
            group.ring();
            self.show_wakeups();
        }
    }

    /// Lets a peer behind a link know that its ring is too small for what waits, unless it knows. One that shares the memory
    /// is told when the writer goes to sleep: until then it may look for itself.
    pub(super) fn tell_blocked(&mut self) {
        let waiting = self.waiting();
        let Self {
            connection, medium, ..
        } = self;
        if let Medium::Lane(lane, _) = medium
            && medium::is_blocked(connection, waiting)
            && !connection.flags().0.contains(ProducerFlags::WRITE_BLOCKED)
        {
            medium::push(lane, connection, waiting);
        }
    }

    /// Lets the peer see an end, and wakes it whatever it waits for.
    #[cold]
    pub(super) fn publish_flags(&mut self) {
        let waiting = self.waiting();
        let Self {
            header,
            connection,
            counters,
            medium,
            ..
        } = self;
        let group = match medium {
            Medium::Shared(group) => group,
            Medium::Lane(lane, _) => {
                medium::push(lane, connection, waiting);
                return self.show_all();
            }
            Medium::Left(..) => return,
        };
        store_consumer(header, connection);
        let theirs = header.theirs();
        // Both words are claimed: no short cut between the two. The fence of `must_ring` comes first.
        let reader = signal::must_ring(&theirs.reader_armed, || u64::MAX);
        let writer = signal::must_ring(&theirs.writer_armed, || u64::MAX);
        if reader || writer {
            counters.wakeups_sent += 1;
            group.ring();
        }
        self.show_all();
    }

    /// Asks to be woken once `need` bytes (not 0, at most half the own ring) are readable, the peer waits until any of them
    /// are read, or nothing more will come. False: that is so already.
    pub fn arm_read(&mut self, need: u32) -> bool {
        debug_assert!(need > 0 && need <= self.read_need_max());
        self.incoming(need);
        if self.connection.readable() >= need
            || self.connection.peer_awaits_reader()
            || self.stream_end().is_some()
        {
            return false;
        }
        self.prepare_to_read();
        let sleeps = self.arm(Sleeper::Reader, need.into(), |connection, _| {
            let must_look = connection.update_due() || connection.peer_awaits_reader();
            if connection.peer_done() || must_look {
                u64::MAX
            } else {
                connection.readable().into()
            }
        });
        if sleeps {
            self.counters.stalls_read += 1;
            self.show_all();
        }
        sleeps
    }

    /// Asks to be woken once the peer has ended or is lost, whatever comes before. False: that is so already.
    pub fn arm_end(&mut self) -> bool {
        self.refresh();
        if self.write_fault().is_some() {
            self.disarm_read();
            return false;
        }
        self.prepare_to_read();
        self.arm(Sleeper::Reader, u64::MAX, |connection, _| {
            if connection.peer_ended() { u64::MAX } else { 0 }
        })
    }

    /// Arms `sleeper` for `need` of what `there` finds, unless it finds so much now. What breaks the connection is enough for
    /// anybody: a link can die at any time, and wakes only who sleeps by then.
    fn arm(
        &mut self,
        sleeper: Sleeper,
        need: u64,
        there: impl FnOnce(&Connection, &Medium) -> u64,
    ) -> bool {
        let Self {
            header,
            connection,
            seen,
            medium,
            ..
        } = self;
        let mine = header.mine();
        let word = match sleeper {
            Sleeper::Reader => &mine.reader_armed,
            Sleeper::Writer => &mine.writer_armed,
        };
        let mut looked = Ok(());
        let found = || {
            looked = seen.refresh(header, connection);
            if looked.is_err() || medium.is_dead() {
                u64::MAX
            } else {
                there(connection, medium)
            }
        };
        let sleeps = signal::arm(word, need, found);
        self.judge(looked);
        if !sleeps {
            self.refresh();
        }
        sleeps
    }

    /// Has whoever claims the reader's word know how far this end has read: a threshold is computed from that.
    fn prepare_to_read(&mut self) {
        match &self.medium {
            // The peer claims it, and computes its own room from that as well.
            Medium::Shared(_) if self.connection.released() > 0 => self.announce(),
            Medium::Shared(_) | Medium::Left(..) => {}
            Medium::Lane(lane, _) => {
                let cursor = Half::new(self.connection.consumer_cursor());
                let word = &self.header.mine().consumer;
                word.store(cursor.to_word(), Ordering::Release);
                lane.arm();
            }
        }
    }

    /// The largest threshold that [`Self::arm_read`] takes: half of the own ring, so that the writer never waits for a
    /// reader that waits for more than the ring holds.
    pub fn read_need_max(&self) -> u32 {
        self.own_size.bytes() / 2
    }

    /// Whether one who wants `n` bytes has to take what is there, since the ring may never hold all of them at once.
    pub fn must_read_on(&self, n: u32) -> bool {
        n > self.read_need_max() || self.connection.peer_awaits_reader()
    }

    /// Asks to be woken once the backlog, or the room that is wanted, or as much of it as half the ring that is written, fits.
    /// False: some fits now, nothing waits, or nothing more can be written.
    pub fn arm_write(&mut self) -> bool {
        self.flush();
        if !self.awaits_room() || self.write_fault().is_some() {
            return false;
        }
        let wanted = (self.waiting() as u64).min(self.room_need_max().into());
        let sleeps = self.sleep_for_room(wanted.max(self.wanted.least.into()));
        if !sleeps {
            self.flush();
        }
        sleeps
    }

    /// Asks to be woken once `wanted` bytes (not 0), or as many as half the ring that is written, fit; for one who has no backlog
    /// and waits by himself. False: some fit now, or nothing more can be written.
    pub fn arm_room(&mut self, wanted: usize) -> bool {
        self.refresh();
        if self.free() > 0 || self.is_ending() || self.write_fault().is_some() {
            return false;
        }
        self.sleep_for_room((wanted as u64).min(self.room_need_max().into()))
    }

    fn sleep_for_room(&mut self, need: u64) -> bool {
        match &self.medium {
            Medium::Shared(_) => {
                self.connection.set_write_blocked(true);
                store_consumer(&self.header, &mut self.connection);
            }
            Medium::Lane(lane, _) => lane.arm(),
            Medium::Left(..) => return false,
        }
        let sleeps = self.arm(Sleeper::Writer, need, |connection, medium| {
            if connection.can_send() {
                medium.free(connection).into()
            } else {
                u64::MAX
            }
        });
        if sleeps {
            self.counters.stalls_write += 1;
            self.show_all();
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

    /// The writer waits no more.
    pub fn disarm_write(&self) {
        signal::disarm(&self.header.mine().writer_armed);
    }

    /// A wait of this end was ended by the doorbell.
    pub fn woken(&mut self) {
        self.counters.wakeups_received += 1;
        self.show_all();
    }

    /// Whether a wait that begins now should spin a little first.
    pub fn spin_is_worthwhile(&mut self) -> bool {
        match &self.medium {
            Medium::Shared(_) => self.spin.worthwhile(&self.header),
            Medium::Lane(..) => self.spin.worth_trying(),
            Medium::Left(..) => false,
        }
    }

    /// Reports how the spinning ended.
    pub fn spun(&mut self, came: bool) {
        if came {
            self.counters.spins += 1;
            self.show_spins();
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
