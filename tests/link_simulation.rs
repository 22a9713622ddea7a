//! Two ends of a link under seeds: slow callers, slow wires, deaths. Does each side learn what the other did?

mod link_support;
mod seeds;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use link_support::*;
use seeds::{Rng, for_each_seed};
use smcfast::proto::handshake::Side;
use smcfast::proto::link::{
    CONFIRM_WAIT, Cause, KeyAnswer, Link, LinkEvent, MAX_PENDING, RESPONSE_TIMEOUT,
};
use smcfast::wire::Received;
use smcfast::wire::clc::Version;
use smcfast::wire::llc::{DeleteReason, Message};

#[test]
fn links() {
    for_each_seed("links", 1_000, |rng| Simulation::new(rng).run(rng));
}

struct End {
    link: Link,
    /// What the peer has sent, in order, and when it comes.
    incoming: VecDeque<(Duration, Vec<u8>)>,
    /// Whether the caller has yet to confirm.
    owes: bool,
    /// Keys whose telling or taking back has not ended.
    open: usize,
    /// Keys that the peer has confirmed, not taken back.
    told: BTreeSet<u32>,
    next_key: u32,
    down: Option<Cause>,
    dead: bool,
}

struct Simulation {
    ends: [End; 2],
    now: Duration,
    /// Milliseconds that a message is under way, at most.
    latency: u32,
    /// Until when the callers have wishes.
    busy_until: Duration,
    version: Version,
}

impl End {
    fn new(link: Link) -> Self {
        Self {
            link,
            incoming: VecDeque::new(),
            owes: false,
            open: 0,
            told: BTreeSet::new(),
            next_key: 1,
            down: None,
            dead: false,
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.link.poll_event() {
            assert_eq!(self.down, None, "{event:?} after the end");
            match event {
                LinkEvent::Confirmable => self.owes = true,
                LinkEvent::Up => assert!(self.link.is_up()),
                LinkEvent::KeyAnswered { key, answer } => {
                    self.open -= 1;
                    if answer == KeyAnswer::Confirmed {
                        self.told.insert(key.rkey);
                    }
                }
                LinkEvent::KeyDeleted(_) => self.open -= 1,
                LinkEvent::Down(cause) => self.down = Some(cause),
            }
        }
    }

    /// What an application wants now and then.
    fn act(&mut self, rng: &mut Rng, now: Duration) {
        if self.owes && rng.chance(90) {
            self.owes = false;
            // The group may be gone by now.
            assert_eq!(self.link.confirm(now).is_ok(), self.down.is_none());
        }
        if !self.link.is_up() {
            return;
        }
        if rng.chance(20) {
            self.link.confirm_key(key(self.next_key), now).unwrap();
            self.next_key += 1;
            self.open += 1;
        }
        if let Some(&rkey) = self.told.iter().next().filter(|_| rng.chance(15)) {
            self.told.remove(&rkey);
            self.link.delete_key(rkey, now).unwrap();
            self.open += 1;
        }
    }
}

impl Simulation {
    fn new(rng: &mut Rng) -> Self {
        let version = rng.pick(&[Version::V1, Version::V2]);
        let client = Link::client(own(version), secs(0));
        let server = Link::server(own(version), number(rng.range(1..=255) as u8), secs(0));
        Self {
            ends: [End::new(client), End::new(server)],
            now: secs(0),
            latency: rng.pick(&[0, 1, 50, 900]),
            busy_until: secs(rng.pick(&[0, 5, 100])),
            version,
        }
    }

    fn run(mut self, rng: &mut Rng) {
        let dies = rng
            .chance(30)
            .then(|| (rng.range(0..=1) as usize, self.moment(rng)));
        let ends = rng
            .chance(30)
            .then(|| (rng.range(0..=1) as usize, self.moment(rng)));
        let finish = self.busy_until + secs(100);
        while self.now < finish && self.ends.iter().any(|end| end.down.is_none()) {
            if let Some((who, when)) = dies
                && when <= self.now
            {
                self.ends[who].dead = true;
            }
            if let Some((who, when)) = ends
                && when <= self.now
                && !self.ends[who].dead
            {
                self.ends[who].link.end(DeleteReason::OPERATOR, true);
                self.ends[who].take_events();
            }
            for who in 0..2 {
                self.step(who, rng);
            }
            self.now += Duration::from_millis(rng.range(1..=500).into());
            if self.ends.iter().any(|end| end.dead)
                && self.ends.iter().any(|end| end.down.is_some())
            {
                break;
            }
        }
        self.judge(dies.is_some(), ends.is_some());
    }

    fn moment(&self, rng: &mut Rng) -> Duration {
        Duration::from_millis(
            rng.range(0..=self.busy_until.as_millis() as u32 + 8_000)
                .into(),
        )
    }

    /// One side reads, acts, and writes.
    fn step(&mut self, who: usize, rng: &mut Rng) {
        let now = self.now;
        if self.ends[who].dead {
            return;
        }
        let end = &mut self.ends[who];
        while end.incoming.front().is_some_and(|(at, _)| *at <= now) {
            let (_, bytes) = end.incoming.pop_front().unwrap();
            let Ok(Received::Llc(message)) = Received::decode(&bytes) else {
                panic!("not a message: {bytes:?}");
            };
            end.link.handle_message(&message, now);
            end.take_events();
        }
        if now < self.busy_until || end.owes {
            end.act(rng, now);
        }
        if end.link.poll_timeout().is_some_and(|due| due <= now) {
            end.link.handle_timeout(now);
        }
        end.take_events();
        let sent: Vec<Message> = std::iter::from_fn(|| end.link.poll_transmit()).collect();
        assert!(sent.len() <= MAX_PENDING + 3);
        let other = &mut self.ends[1 - who];
        for message in sent {
            assert_eq!(message.version(), self.version);
            let soonest = other.incoming.back().map_or(now, |(at, _)| *at);
            let at = now + Duration::from_millis(rng.range(0..=self.latency).into());
            other
                .incoming
                .push_back((at.max(soonest), message.encode()));
        }
    }

    fn judge(&self, died: bool, ended: bool) {
        let [client, server] = &self.ends;
        for end in self.ends.iter().filter(|end| !end.dead) {
            match end.down {
                // Where nobody died, only a slow wire can make an answer late.
                None => assert!(!died && !ended && end.link.is_up()),
                Some(Cause::Unconfirmed | Cause::Silent) => assert!(died || self.latency == 900),
                Some(Cause::Ended { reason, .. }) => {
                    assert!(ended);
                    assert_eq!(reason, DeleteReason::OPERATOR);
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        if client.down.is_none() && server.down.is_none() {
            for (one, other) in [(client, server), (server, client)] {
                assert_eq!(one.open, 0, "every telling has an end");
                assert!(
                    one.told
                        .iter()
                        .all(|rkey| other.link.peer_address(*rkey) == Some(key(*rkey).address))
                );
                // A refusal that was too late in coming is the only way to know more than was told.
                assert!(self.latency == 900 || other.link.peer_keys() == one.told.len());
            }
            assert_eq!(client.link.number(), server.link.number());
        }
        if ended && !died {
            let by = |side| {
                Some(Cause::Ended {
                    by: side,
                    reason: DeleteReason::OPERATOR,
                })
            };
            let causes = [client.down, server.down];
            let fair = [
                [by(Side::Us), by(Side::Peer)],
                [by(Side::Peer), by(Side::Us)],
                [by(Side::Us), by(Side::Us)],
            ];
            assert!(fair.contains(&causes) || self.latency == 900, "{causes:?}");
        }
    }
}

#[test]
fn who_is_left_alone_knows_it_in_time() {
    for_each_seed("who_is_left_alone_knows_it_in_time", 200, |rng| {
        let mut simulation = Simulation::new(rng);
        simulation.latency = 50;
        simulation.busy_until = secs(60);
        let (who, when) = (rng.range(0..=1) as usize, simulation.moment(rng));
        let mut last_heard = secs(0);
        while simulation.ends[1 - who].down.is_none() {
            simulation.ends[who].dead = when <= simulation.now;
            if simulation.ends[1 - who]
                .incoming
                .front()
                .is_some_and(|(at, _)| *at <= simulation.now)
            {
                last_heard = simulation.now;
            }
            for who in 0..2 {
                simulation.step(who, rng);
            }
            simulation.now += Duration::from_millis(10);
            // The caller's own delay, or what is due before the link is up.
            let longest = CONFIRM_WAIT.max(TEST_AFTER + RESPONSE_TIMEOUT);
            assert!(simulation.now <= last_heard.max(when) + longest + secs(1));
        }
    });
}
