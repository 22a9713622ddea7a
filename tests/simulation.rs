//! Two connections talk over a slow channel, under seeds, against a model of two byte counts.
//!
//! The rings are real memory here, so a byte lost, doubled or overwritten is seen as such. What travels through the
//! channel is delayed, coalesced and, in the word form, torn as the words of shared memory may be.

mod seeds;

use std::collections::VecDeque;
use std::sync::LazyLock;

use seeds::{Rng, for_each_seed};
use smcfast::proto::close::State;
use smcfast::proto::connection::Connection;
use smcfast::proto::position::{RingSize, Span};
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::{Cdc, Cursor, ProducerFlags, StateFlags};

/// More steps than any run needs that does not hang.
const STEPS_MAX: u32 = 200_000;
/// The largest ring in use.
const RING_MAX: usize = 64 << 10;
/// After so many bytes a stream repeats itself.
const PERIOD: usize = 251;

#[test]
fn messages() {
    for_each_seed("messages", 5_000, |rng| {
        Simulation::new(rng, Form::Messages).run(rng)
    });
}

#[test]
fn words() {
    for_each_seed("words", 5_000, |rng| {
        Simulation::new(rng, Form::Words).run(rng)
    });
}

/// How what is published reaches the other side.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Whole messages, in order; older ones may be skipped (SMC-R, where a queue is drained late).
    Messages,
    /// Two words of shared memory, each visible in the order of the stores, but loaded one after the other (SMC-D).
    Words,
}

/// How an application intends to end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plan {
    /// Send everything, end the direction, read to the end, close.
    Shutdown,
    /// Send everything, end the direction, and close soon after, whatever is unread by then.
    ShutdownClose,
    /// Send everything, read to the end, close.
    Linger,
    /// Send everything and close, whatever comes in.
    Close,
    /// Close when about so many bytes are sent, in the middle of everything.
    CloseAt(u64),
    /// Abort when about so many bytes are sent.
    AbortAt(u64),
}

/// One side: a connection, its own ring, and an application.
struct End {
    name: &'static str,
    connection: Connection,
    ring: Vec<u8>,
    plan: Plan,
    to_send: u64,
    /// Waits for so much room before it writes, as a writer with a low-water mark does.
    write_min: u32,
    sent: u64,
    read: u64,
    /// Something was changed that the peer does not know.
    unpublished: bool,
    shut: bool,
    closed: bool,
    /// There was unread data when it closed.
    dropped: bool,
    saw_eof: bool,
    saw_reset: bool,
}

/// What travels from one end to the other.
#[derive(Debug, Default)]
struct Channel {
    messages: VecDeque<Cdc>,
    producer: VecDeque<Cursor>,
    consumer: VecDeque<(Cursor, ProducerFlags, StateFlags)>,
    /// The order of the stores: true for a consumer word.
    stores: VecDeque<bool>,
    visible: (Cursor, (Cursor, ProducerFlags, StateFlags)),
    /// Visible and not yet looked at.
    fresh: bool,
}

struct Simulation {
    form: Form,
    ends: [End; 2],
    /// `channels[i]` leads to `ends[i]`.
    channels: [Channel; 2],
    link_lost_at: Option<u32>,
    link_lost: bool,
}

/// The bytes of the stream that `name` sends, from `position` on. No two places of a ring hold the same by chance,
/// since the pattern has a prime period.
fn pattern(name: &str, position: u64, len: u32) -> &'static [u8] {
    static PATTERNS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        let bytes = || (0..RING_MAX + PERIOD).map(|i| (i % PERIOD) as u8);
        [bytes().collect(), bytes().map(|byte| byte ^ 0x5a).collect()]
    });
    let start = (position % PERIOD as u64) as usize;
    &PATTERNS[usize::from(name == "b")][start..start + len as usize]
}

fn part(span: Span) -> std::ops::Range<usize> {
    span.offset as usize..(span.offset + span.len) as usize
}

impl End {
    fn new(name: &'static str, rng: &mut Rng, rmb: RingSize, peer_rmb: RingSize) -> Self {
        let to_send = if rng.chance(50) {
            rng.range(0..=200_000)
        } else {
            rng.skewed(200_000)
        };
        let at = u64::from(rng.range(0..=to_send));
        let plan = match rng.range(0..=9) {
            0..=3 => Plan::Shutdown,
            4 => Plan::ShutdownClose,
            5..=6 => Plan::Linger,
            7 => Plan::Close,
            8 => Plan::CloseAt(at),
            _ => Plan::AbortAt(at),
        };
        let write_min = match rng.range(0..=9) {
            0..=6 => 1,
            7..=8 => rng.range(1..=peer_rmb.bytes()),
            _ => peer_rmb.bytes(),
        };
        Self {
            name,
            connection: Connection::new(rmb, peer_rmb),
            ring: vec![0; rmb.bytes() as usize],
            plan,
            to_send: u64::from(to_send),
            write_min,
            sent: 0,
            read: 0,
            unpublished: false,
            shut: false,
            closed: false,
            dropped: false,
            saw_eof: false,
            saw_reset: false,
        }
    }

    fn backlog(&self) -> u64 {
        if self.shut || self.closed || !self.connection.can_send() {
            0
        } else {
            self.to_send - self.sent
        }
    }

    /// Writes some of the backlog into the peer's ring. Returns whether it did.
    fn write(&mut self, peer_ring: &mut [u8], rng: &mut Rng) -> bool {
        let backlog = self.backlog();
        let room = u64::from(self.connection.writable());
        if backlog == 0 {
            return false;
        }
        if room < u64::from(self.write_min).min(backlog) {
            self.set_blocked(true);
            return false;
        }
        let most = backlog.min(room) as u32;
        let n = if rng.chance(50) {
            most
        } else {
            1 + rng.skewed(most - 1)
        };
        let mut position = self.sent;
        for span in self.connection.write_spans(n) {
            peer_ring[part(span)].copy_from_slice(pattern(self.name, position, span.len));
            position += u64::from(span.len);
        }
        assert_eq!(position, self.sent + u64::from(n));
        self.connection.produced(n);
        self.sent = position;
        self.unpublished = true;
        self.set_blocked(false);
        true
    }

    fn set_blocked(&mut self, blocked: bool) {
        let before = self.connection.flags();
        self.connection.set_write_blocked(blocked);
        self.unpublished |= self.connection.flags() != before;
    }

    /// Reads some of what is there and checks it. Returns whether it did.
    fn read(&mut self, peer_name: &str, rng: &mut Rng) -> bool {
        if self.closed || self.connection.peer_aborted() {
            return false;
        }
        let most = self.connection.readable();
        if most == 0 {
            return false;
        }
        let n = if rng.chance(50) {
            most
        } else {
            1 + rng.skewed(most - 1)
        };
        for span in self.connection.read_spans(n) {
            assert_eq!(
                self.ring[part(span)],
                *pattern(peer_name, self.read, span.len),
                "at byte {}",
                self.read
            );
            self.read += u64::from(span.len);
        }
        self.connection.consumed(n);
        true
    }

    /// Ends what the plan says is to end now. Returns whether it did anything.
    fn end(&mut self, rng: &mut Rng) -> bool {
        self.saw_eof |= !self.closed && self.connection.at_eof();
        self.saw_reset |= self.connection.is_reset();
        let sent_all = self.backlog() == 0;
        let input_over = self.saw_eof || self.saw_reset;
        if self.closed {
            return false;
        }
        let close = match self.plan {
            Plan::Shutdown | Plan::Linger => input_over && sent_all,
            Plan::ShutdownClose => self.shut && (input_over || rng.chance(10)),
            Plan::Close => sent_all,
            Plan::CloseAt(at) => self.sent >= at || sent_all,
            Plan::AbortAt(at) => self.sent >= at || sent_all,
        };
        if close {
            self.dropped = self.connection.readable() > 0;
            match self.plan {
                Plan::AbortAt(_) => self.connection.abort(),
                _ => self.connection.close(),
            }
            self.closed = true;
        } else if matches!(self.plan, Plan::Shutdown | Plan::ShutdownClose)
            && sent_all
            && !self.shut
        {
            self.connection.shutdown_write();
            self.shut = true;
        } else {
            return false;
        }
        self.unpublished = true;
        true
    }

    fn update_if_due(&mut self) {
        self.unpublished |= self.connection.update_due();
    }
}

impl Channel {
    fn publish(&mut self, form: Form, connection: &mut Connection) {
        let producer = connection.producer_cursor();
        let consumer = connection.take_consumer();
        match form {
            Form::Messages => {
                let (consumer, producer_flags, state_flags) = consumer;
                self.messages.push_back(Cdc {
                    producer,
                    consumer,
                    producer_flags,
                    state_flags,
                });
            }
            Form::Words => {
                self.producer.push_back(producer);
                self.consumer.push_back(consumer);
                self.stores.extend([false, true]);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.stores.is_empty() && !self.fresh
    }

    /// Lets the next `n` stores become visible.
    fn show(&mut self, n: u32) {
        for _ in 0..n {
            match self.stores.pop_front() {
                Some(false) => self.visible.0 = self.producer.pop_front().unwrap(),
                Some(true) => self.visible.1 = self.consumer.pop_front().unwrap(),
                None => return,
            }
            self.fresh = true;
        }
    }

    /// Hands over whatever has arrived by now.
    fn deliver(&mut self, form: Form, connection: &mut Connection, rng: &mut Rng) {
        match form {
            Form::Messages => {
                let skipped = rng.skewed(self.messages.len() as u32 - 1);
                let cdc = self
                    .messages
                    .drain(..=skipped as usize)
                    .next_back()
                    .unwrap();
                connection.handle_cdc(&cdc).unwrap();
            }
            Form::Words => {
                // The order that `Connection` asks for: flags are loaded first and handled last. Between the two
                // loads any number of stores may become visible.
                self.show(rng.skewed(8));
                self.fresh = false;
                let (consumer, producer_flags, state_flags) = self.visible.1;
                self.show(rng.skewed(8));
                connection.handle_producer(self.visible.0).unwrap();
                connection.handle_consumer(consumer).unwrap();
                connection
                    .handle_flags(producer_flags, state_flags)
                    .unwrap();
            }
        }
    }
}

impl Simulation {
    fn new(rng: &mut Rng, form: Form) -> Self {
        let mut size = || RingSize::from_code(SizeCode::new(rng.pick(&[0, 0, 0, 1, 2])).unwrap());
        let (a, b) = (size(), size());
        let mut ends = [End::new("a", rng, a, b), End::new("b", rng, b, a)];
        if ends.iter().all(|end| end.plan == Plan::Linger) {
            // Each would wait for the other's end for ever, and rightly so.
            ends[0].plan = Plan::Shutdown;
        }
        Self {
            form,
            ends,
            channels: Default::default(),
            link_lost_at: rng.chance(15).then(|| rng.skewed(400)),
            link_lost: false,
        }
    }

    fn run(mut self, rng: &mut Rng) {
        for step in 0..STEPS_MAX {
            if Some(step) == self.link_lost_at {
                self.link_lost = true;
            }
            let side = (rng.next() & 1) as usize;
            self.act(side, rng);
            self.check();
            if self.is_quiet() && !self.can_act(rng) {
                return self.check_end();
            }
        }
        panic!("not finished after {STEPS_MAX} steps");
    }

    /// One thing that happens to one side.
    fn act(&mut self, side: usize, rng: &mut Rng) -> bool {
        let [left, right] = &mut self.ends;
        let (me, peer) = if side == 0 {
            (left, right)
        } else {
            (right, left)
        };
        let done = match rng.range(0..=5) {
            0 => me.write(&mut peer.ring, rng),
            1 => me.read(peer.name, rng),
            2 => me.end(rng),
            3 if me.unpublished => {
                me.unpublished = false;
                let mut nowhere = Channel::default();
                let channel = if self.link_lost {
                    &mut nowhere
                } else {
                    &mut self.channels[1 - side]
                };
                channel.publish(self.form, &mut me.connection);
                true
            }
            4 if !self.channels[side].is_empty() => {
                self.channels[side].deliver(self.form, &mut me.connection, rng);
                true
            }
            5 if self.link_lost && rng.chance(20) => {
                self.channels[side] = Channel::default();
                me.connection.handle_link_lost();
                true
            }
            _ => false,
        };
        me.update_if_due();
        done
    }

    fn is_quiet(&self) -> bool {
        let told = |end: &End| {
            !self.link_lost
                || matches!(end.connection.state(), State::PeerAbortWait | State::Closed)
        };
        self.channels.iter().all(Channel::is_empty)
            && self.ends.iter().all(|end| !end.unpublished && told(end))
    }

    /// Whether an application could still do something by itself. Tries, until it is as good as certain.
    fn can_act(&mut self, rng: &mut Rng) -> bool {
        (0..2).any(|side| {
            let [left, right] = &mut self.ends;
            let (me, peer) = if side == 0 {
                (left, right)
            } else {
                (right, left)
            };
            let done = me.write(&mut peer.ring, rng) || me.read(peer.name, rng) || me.end(rng);
            me.update_if_due();
            done || me.unpublished
        })
    }

    /// What holds at every moment.
    fn check(&self) {
        for (me, peer) in [
            (&self.ends[0], &self.ends[1]),
            (&self.ends[1], &self.ends[0]),
        ] {
            let in_ring = me.sent - peer.read;
            assert!(in_ring <= peer.ring.len() as u64, "the ring overflows");
            assert!(u64::from(me.connection.writable()) <= peer.ring.len() as u64 - in_ring);
            assert!(u64::from(peer.connection.readable()) <= in_ring);
            if peer.saw_eof {
                assert!(me.shut || me.closed, "an end that nobody declared");
                assert_eq!(peer.read, me.sent, "an end before the last byte");
            }
        }
    }

    /// What holds when nothing happens any more.
    fn check_end(&self) {
        for (me, peer) in [
            (&self.ends[0], &self.ends[1]),
            (&self.ends[1], &self.ends[0]),
        ] {
            let story = || format!("{} hangs: {:?}, {:?}", me.name, me.plan, me.connection);
            assert!(me.closed, "{}", story());
            assert_eq!(me.connection.state(), State::Closed, "{}", story());
            if self.link_lost || !matches!(me.plan, Plan::Shutdown | Plan::Linger) {
                continue;
            }
            assert!(me.saw_eof || me.saw_reset, "{}", story());
            assert!(me.saw_reset || !peer.dropped, "{}", story());
            if matches!(peer.plan, Plan::Shutdown | Plan::Linger) {
                assert_eq!((me.sent, me.saw_reset), (me.to_send, false), "{}", story());
                assert_eq!(me.read, peer.to_send, "{}", story());
            }
        }
    }
}
