//! Connections of two engines over a loopback fabric, under seeds: everything late, anything ended, some links broken.
//!
//! Each end acts as an endpoint does: it looks, writes, reads, and when nothing of that is possible it arms and sleeps until its group's bell
//! has rung and its word was claimed. An end that sleeps although nothing comes any more has lost a wake-up.

mod lane_support;
mod seeds;

use lane_support::*;
use seeds::{Rng, for_each_seed};
use smcfast::driver::rdma::*;
use smcfast::fabric::rdma::{Status, Trouble};
use smcfast::fabric::shm::signal;
use smcfast::mem::sync::Ordering;
use smcfast::proto::connection::Connection;
use smcfast::proto::error::PeerMisbehaved;
use smcfast::proto::position::Position;
use smcfast::wire::SizeCode;

/// Rounds that no run needs that does not hang.
const ROUNDS_MAX: u32 = 100_000;
/// Rounds without anything under way after which a sleeper is lost.
const QUIET_MAX: u32 = 50;

#[test]
fn lanes() {
    for_each_seed("lanes", 60, |rng| run(rng, false));
}

#[test]
fn lanes_that_break() {
    for_each_seed("lanes_that_break", 60, |rng| run(rng, true));
}

struct End {
    lane: Option<Lane>,
    connection: Connection,
    seed: u8,
    to_send: u64,
    sent: u64,
    read: u64,
    /// Aborts when so much was sent.
    abort_at: Option<u64>,
    shut: bool,
    asleep: bool,
    /// It has ended, in good order or not.
    ended: Option<bool>,
}

fn pattern(seed: u8, from: u64, len: u64) -> Vec<u8> {
    (from..from + len)
        .map(|at| (at % 251) as u8 ^ seed)
        .collect()
}

impl End {
    fn new(lane: Lane, rng: &mut Rng, seed: u8) -> Self {
        let to_send = u64::from(rng.skewed(60_000));
        let abort = rng.chance(10);
        Self {
            connection: Connection::new(lane.rmb_size(), lane.peer_size()),
            lane: Some(lane),
            seed,
            to_send,
            sent: 0,
            read: 0,
            abort_at: abort.then(|| u64::from(rng.range(0..=60_000))),
            shut: false,
            asleep: false,
            ended: None,
        }
    }

    fn refresh(&mut self) -> Result<(), PeerMisbehaved> {
        let Some(lane) = &self.lane else {
            return Ok(());
        };
        let theirs = lane.header().theirs();
        let consumer = half(theirs.consumer.load(Ordering::Acquire));
        let producer = half(theirs.producer.load(Ordering::Acquire));
        self.connection.handle_producer(producer.cursor)?;
        self.connection.handle_consumer(consumer.cursor)?;
        self.connection
            .handle_flags(consumer.producer_flags, consumer.state_flags)?;
        Ok(())
    }

    fn push(&mut self) {
        let (consumer, producer_flags, state_flags) = self.connection.take_consumer();
        let news = News {
            produced: Position::new(self.sent),
            consumer,
            producer_flags,
            state_flags,
        };
        if let Some(lane) = &self.lane {
            lane.push(news);
        }
    }

    fn room(&self) -> u32 {
        let lane = self.lane.as_ref().map_or(0, Lane::room);
        let rest = (self.to_send - self.sent).min(1 << 20) as u32;
        self.connection.writable().min(lane).min(rest)
    }

    /// Writes and reads what it likes; returns whether anything was done.
    fn act(&mut self, rng: &mut Rng) -> bool {
        self.refresh().expect("an honest peer");
        let before = (self.sent, self.read, self.shut, self.ended);
        self.write(rng);
        self.take(rng);
        self.finish();
        before != (self.sent, self.read, self.shut, self.ended)
    }

    fn write(&mut self, rng: &mut Rng) {
        let most = self.room();
        if most == 0 || rng.chance(20) {
            return;
        }
        let n = rng.range(1..=most);
        let Some(lane) = &self.lane else {
            return;
        };
        let bytes = pattern(self.seed, self.sent, n.into());
        let [first, second] = lane.send_size().spans(Position::new(self.sent), n);
        let (head, tail) = bytes.split_at(first.len as usize);
        lane.send_ring().write(first.offset as usize, head.into());
        lane.send_ring().write(second.offset as usize, tail.into());
        self.connection.produced(n);
        self.sent += u64::from(n);
        self.connection
            .set_write_blocked(self.sent < self.to_send && self.connection.writable() == 0);
        self.push();
    }

    fn take(&mut self, rng: &mut Rng) {
        let most = self.connection.readable();
        if most > 0 && !rng.chance(20) {
            let n = rng.range(1..=most);
            if let Some(lane) = &self.lane {
                let bytes = read(lane, self.read, n as usize);
                let expected = pattern(self.seed ^ 0x80, self.read, n.into());
                assert!(bytes == expected, "bytes {}..+{n} differ", self.read);
            }
            self.connection.consumed(n);
            self.read += u64::from(n);
        }
        if self.connection.update_due() {
            self.push();
        }
    }

    fn finish(&mut self) {
        if self.abort_at.is_some_and(|at| self.sent >= at) || self.connection.peer_aborted() {
            self.connection.abort();
            return self.end(false);
        }
        if self.shut && self.connection.peer_done() && self.connection.readable() == 0 {
            self.connection.close();
            return self.end(true);
        }
        let dead = self.lane.as_ref().is_some_and(Lane::is_dead);
        if dead && self.connection.readable() == 0 {
            return self.end(false);
        }
        if !self.shut && (self.sent == self.to_send || !self.connection.can_send()) {
            self.shut = true;
            self.connection.shutdown_write();
            self.push();
        }
    }

    fn end(&mut self, good: bool) {
        self.push();
        self.lane = None;
        self.ended = Some(good);
    }

    /// Goes to sleep, unless there is something to do.
    fn arm(&mut self) {
        let Some(lane) = self.lane.take() else {
            return;
        };
        let mine = lane.header().mine();
        let word = smcfast::wire::cdc::Half::new(self.connection_cursor(&lane)).to_word();
        mine.consumer.store(word, Ordering::Release);
        let wants_room = self.sent < self.to_send && self.connection.can_send();
        if wants_room && self.connection.writable() == 0 {
            self.connection.set_write_blocked(true);
            self.lane = Some(lane);
            self.push();
            return self.sleep(wants_room);
        }
        self.lane = Some(lane);
        self.sleep(wants_room);
    }

    fn connection_cursor(&self, lane: &Lane) -> smcfast::wire::cdc::Cursor {
        lane.rmb_size().cursor(Position::new(self.read))
    }

    fn sleep(&mut self, wants_room: bool) {
        let Some(lane) = self.lane.take() else {
            return;
        };
        let mine = lane.header().mine();
        let reads = signal::arm(&mine.reader_armed, 1, || 0);
        let writes = !wants_room || signal::arm(&mine.writer_armed, 1, || 0);
        lane.arm();
        let dead = lane.is_dead();
        self.lane = Some(lane);
        self.refresh().expect("an honest peer");
        let can = self.connection.readable() > 0
            || self.connection.peer_done() && self.connection.readable() == 0 && self.shut
            || self.connection.peer_aborted()
            || (wants_room && self.room() > 0)
            || (self.connection.peer_done() && !self.connection.can_send() && !self.shut)
            || dead;
        if can {
            self.disarm();
        } else {
            self.asleep = reads && writes;
        }
    }

    fn disarm(&mut self) {
        if let Some(lane) = &self.lane {
            signal::disarm(&lane.header().mine().reader_armed);
            signal::disarm(&lane.header().mine().writer_armed);
        }
        self.asleep = false;
    }

    /// The bell of its group has rung.
    fn rung(&mut self) {
        let Some(lane) = &self.lane else {
            return;
        };
        let mine = lane.header().mine();
        let claimed = |word: &smcfast::mem::sync::AtomicU64| word.load(Ordering::Acquire) == 0;
        if claimed(&mine.reader_armed) || claimed(&mine.writer_armed) {
            self.disarm();
        }
    }
}

fn run(rng: &mut Rng, breaks: bool) {
    let net = Net::new();
    let size = |rng: &mut Rng| SizeCode::new(rng.range(0..=2) as u8).expect("a size");
    let mut ends: Vec<[End; 2]> = Vec::new();
    for number in 0..rng.range(1..=5) {
        let sizes = [size(rng), size(rng)];
        let lanes = if number == 0 || rng.chance(20) {
            attach(net.first_contact(sizes), size(rng))
        } else {
            net.next(sizes)
        };
        let mut seed = number as u8;
        ends.push(lanes.map(|lane| {
            seed ^= 0x80;
            End::new(lane, rng, seed)
        }));
    }
    let late = rng.pick(&[0, 20, 50, 80]);
    net.fabric.set_chaos(rng.next(), late);
    let break_at = breaks.then(|| rng.range(0..=300));
    let mut quiet = 0;
    for round in 0..ROUNDS_MAX {
        if break_at == Some(round) {
            break_something(&net, rng);
        }
        let moved = net.fabric.step();
        let bells = [net.client.serve(), net.server.serve()];
        let mut acted = false;
        for pair in &mut ends {
            for (end, bells) in pair.iter_mut().zip(&bells) {
                let number = end.lane.as_ref().map(Lane::number);
                if number.is_some_and(|number| bells.contains(&number)) {
                    end.rung();
                }
                if end.ended.is_none() && !end.asleep && rng.chance(70) {
                    let did = end.act(rng);
                    acted = true;
                    if !did && end.ended.is_none() && rng.chance(50) {
                        end.arm();
                    }
                }
            }
        }
        if ends.iter().flatten().all(|end| end.ended.is_some()) {
            return judge(&ends, break_at.is_some_and(|at| at <= round));
        }
        quiet = if moved || acted { 0 } else { quiet + 1 };
        if quiet == QUIET_MAX && break_at.is_some_and(|at| at <= round) {
            // A peer that is gone without a word is found out by a TEST_LINK, which would take seconds.
            fail_all(&net);
            quiet = 0;
        }
        assert!(
            quiet < QUIET_MAX,
            "somebody sleeps for ever, in round {round}"
        );
    }
    panic!("no end after {ROUNDS_MAX} rounds");
}

fn break_something(net: &Net, rng: &mut Rng) {
    let name = rng.pick(&["c", "s"]);
    let pairs = net.fabric.pairs(name);
    match rng.range(0..=3) {
        0 if !pairs.is_empty() => {
            let pair = rng.pick(&pairs);
            net.fabric.fail(name, pair, Status(12));
        }
        1 => net.fabric.trouble(name, Trouble::PortDown),
        2 => net.fabric.trouble(name, Trouble::Gone),
        _ => net.client.engine.close_links(),
    }
}

fn fail_all(net: &Net) {
    for name in ["c", "s"] {
        for pair in net.fabric.pairs(name) {
            net.fabric.fail(name, pair, Status(12));
        }
    }
}

fn judge(ends: &[[End; 2]], broken: bool) {
    for [a, b] in ends {
        let aborts = a.abort_at.is_some() || b.abort_at.is_some();
        if !aborts && !broken {
            assert_eq!((a.ended, b.ended), (Some(true), Some(true)));
        }
        for (from, to) in [(a, b), (b, a)] {
            assert!(to.read <= from.sent);
            if (from.ended, to.ended) == (Some(true), Some(true)) {
                assert_eq!((from.sent, to.read), (from.to_send, from.to_send));
            }
        }
    }
}
