//! Handshakes under seeds: any devices, bytes in any pieces, slow callers, connections that break, and two questions.
//! Do both sides know how it ended? Is every byte behind a Decline the application's?

mod handshake_support;
mod seeds;

use std::collections::VecDeque;
use std::time::Duration;

use handshake_support::*;
use seeds::{Rng, for_each_seed};
use smcfast::proto::handshake::{
    Agreed, ClientEvent, ClientHandshake, Declined, Limits, Local, Outcome, Path, ServerEvent,
    ServerHandshake, Side,
};
use smcfast::wire::clc::{Diagnosis, Release};

#[test]
fn handshakes() {
    for_each_seed("handshakes", 10_000, |rng| Simulation::new(rng).run(rng));
}

/// What a caller owes to its machine.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Accept(Path),
    Confirm(Path),
    Link,
}

struct End<M> {
    machine: M,
    incoming: VecDeque<u8>,
    /// Nothing comes behind `incoming`.
    eof: bool,
    owes: Option<Answer>,
    outcome: Option<Outcome>,
}

struct Simulation {
    client: End<ClientHandshake>,
    server: End<ServerHandshake>,
    now: Duration,
    /// The side that declines the link, if it does not come up.
    link_breaks_at: Option<Side>,
    /// Whether the callers decline now and then.
    picky: bool,
    /// Chance, in percent, of each step to let time pass, or to break the connection.
    slow: u32,
    cut: u32,
}

fn random_local(rng: &mut Rng, host: u8) -> Local {
    let mut bit = || rng.chance(60);
    let mut local = local(
        host,
        Ways {
            d_v2: bit(),
            d_v1: bit(),
            r_v2: bit(),
            r_v1: bit(),
        },
    );
    let names: Vec<&str> = ["A", "B", "C", "COMMON"]
        .into_iter()
        .filter(|_| rng.chance(60))
        .collect();
    local.eids = eids(&names);
    local.release = rng.pick(&[Release::V2_0, Release::V2_1, Release::V2_1]);
    local.subnets = subnet([10, 9, rng.pick(&[0, 0, 0, 1]), host]);
    local.smc_r.as_mut().unwrap().limits = Limits {
        max_connections: rng.pick(&[15, 16, 100, 255]),
        max_links: rng.pick(&[1, 1, 2, 0]),
    };
    local.smc_d.as_mut().unwrap().seid = rng.chance(30).then(|| eid("SYSTEM"));
    local
}

fn code(rng: &mut Rng) -> Diagnosis {
    if rng.chance(30) {
        Diagnosis::SYNCHRONIZATION
    } else {
        rng.pick(Diagnosis::ALL)
    }
}

impl<M: Machine> End<M> {
    fn new(machine: M) -> Self {
        Self {
            machine,
            incoming: VecDeque::new(),
            eof: false,
            owes: None,
            outcome: None,
        }
    }

    /// Reads some of what is wanted, as a socket would give it.
    fn read(&mut self, rng: &mut Rng) -> bool {
        let most = self.machine.wanted().min(self.incoming.len());
        if most > 0 {
            let n = rng.range(1..=most as u32) as usize;
            let bytes: Vec<u8> = self.incoming.drain(..n).collect();
            self.machine.handle_bytes(&bytes);
        } else if self.machine.wanted() > 0 && self.eof {
            self.machine.handle_eof();
        }
        most > 0
    }

    /// The last event has come: the caller turns to TCP, or closes.
    fn end(&mut self, outcome: Outcome) {
        assert_eq!((self.outcome, self.machine.wanted()), (None, 0));
        self.outcome = Some(outcome);
        self.owes = None;
    }
}

/// Moves what one side has to send to the other. What a side does at its end comes behind it.
fn transfer<A: Machine, B>(from: &mut End<A>, to: &mut End<B>, ended: bool) {
    let broken = to.eof;
    while let Some(bytes) = from.machine.poll_transmit() {
        if !broken {
            to.incoming.extend(bytes);
        }
    }
    match from.outcome {
        Some(Outcome::Declined(_)) if ended && !broken => to.incoming.extend(HELLO),
        Some(Outcome::Failed(_)) if ended => to.eof = true,
        _ => {}
    }
}

impl Simulation {
    fn new(rng: &mut Rng) -> Self {
        let (client, server) = (random_local(rng, 1), random_local(rng, 2));
        Self {
            client: End::new(ClientHandshake::new(client, START)),
            server: End::new(ServerHandshake::new(server, START)),
            now: START,
            link_breaks_at: rng.pick(&[None, None, Some(Side::Us), Some(Side::Peer)]),
            picky: rng.chance(30),
            slow: rng.pick(&[0, 0, 5]),
            cut: rng.pick(&[0, 0, 2]),
        }
    }

    fn run(mut self, rng: &mut Rng) {
        let mut cut = false;
        for _ in 0..10_000 {
            if !cut && rng.chance(self.cut) {
                cut = true;
                self.cut(rng);
            }
            if rng.chance(self.slow) {
                self.now += Duration::from_millis(rng.range(1..=4000).into());
                self.client.machine.handle_timeout(self.now);
                self.server.machine.handle_timeout(self.now);
            }
            match rng.range(0..=5) {
                0 => drop(self.client.read(rng)),
                1 => drop(self.server.read(rng)),
                2 => self.client_answers(rng),
                3 => self.server_answers(rng),
                _ => {}
            }
            self.client_events();
            self.server_events();
            if self.client.outcome.is_some() && self.server.outcome.is_some() {
                return self.check(cut);
            }
        }
        panic!(
            "no end: {:?}, {:?}",
            self.client.machine, self.server.machine
        );
    }

    /// The connection breaks: what is under way is lost, from some byte on.
    fn cut(&mut self, rng: &mut Rng) {
        for (incoming, eof) in [
            (&mut self.client.incoming, &mut self.client.eof),
            (&mut self.server.incoming, &mut self.server.eof),
        ] {
            incoming.truncate(rng.range(0..=incoming.len() as u32) as usize);
            *eof = true;
        }
    }

    fn client_events(&mut self) {
        let mut ended = false;
        while let Some(event) = self.client.machine.poll_event() {
            match event {
                ClientEvent::Accepted(accepted) => {
                    self.client.owes = Some(Answer::Confirm(accepted.agreed.path))
                }
                ClientEvent::Done(outcome) => {
                    self.client.end(outcome);
                    ended = true;
                }
            }
        }
        transfer(&mut self.client, &mut self.server, ended);
    }

    fn server_events(&mut self) {
        let mut ended = false;
        while let Some(event) = self.server.machine.poll_event() {
            match event {
                ServerEvent::Proposed(proposed) => {
                    self.server.owes = Some(Answer::Accept(proposed.own.path()))
                }
                ServerEvent::Confirmed(confirmed) => {
                    self.server.owes = (confirmed.agreed.path == Path::R).then_some(Answer::Link);
                }
                ServerEvent::Done(outcome) => {
                    self.server.end(outcome);
                    ended = true;
                }
            }
        }
        transfer(&mut self.server, &mut self.client, ended);
    }

    fn client_answers(&mut self, rng: &mut Rng) {
        let machine = &mut self.client.machine;
        match self.client.owes {
            Some(Answer::Confirm(_)) if self.picky && rng.chance(20) => {
                machine.decline(code(rng)).unwrap();
                self.client.owes = None;
            }
            Some(Answer::Confirm(path)) => {
                machine.confirm(own_end(1, path)).unwrap();
                self.client.owes = (path == Path::R).then_some(Answer::Link);
            }
            // A link is up when both sides know it: the server after the client has confirmed.
            Some(Answer::Link) if self.link_breaks_at == Some(Side::Us) => {
                machine.decline(code(rng)).unwrap()
            }
            Some(Answer::Link) if self.link_breaks_at.is_none() => machine.linked().unwrap(),
            _ => {}
        }
    }

    fn server_answers(&mut self, rng: &mut Rng) {
        let machine = &mut self.server.machine;
        match self.server.owes {
            Some(Answer::Accept(_)) if self.picky && rng.chance(20) => {
                machine.decline(code(rng)).unwrap()
            }
            Some(Answer::Accept(path)) => machine
                .accept(own_end(2, path), rng.chance(70), self.now)
                .unwrap(),
            Some(Answer::Link) if self.link_breaks_at == Some(Side::Peer) => {
                machine.decline(code(rng)).unwrap()
            }
            Some(Answer::Link) if self.link_breaks_at.is_none() => machine.linked().unwrap(),
            _ => return,
        }
        self.server.owes = None;
    }

    fn check(&self, cut: bool) {
        let (Some(client), Some(server)) = (self.client.outcome, self.server.outcome) else {
            unreachable!()
        };
        let pair = (client, server);
        match pair {
            (Outcome::Established(ours), Outcome::Established(theirs)) => assert_eq!(ours, theirs),
            (Outcome::Declined(ours), Outcome::Declined(theirs)) => {
                assert_ne!(ours.by, theirs.by, "{pair:?}");
                assert_eq!(
                    (ours.diagnosis, ours.out_of_sync),
                    (theirs.diagnosis, theirs.out_of_sync),
                    "{pair:?}"
                );
            }
            // Time or the connection was lost. Who was told of a Decline knows; who has sent one believes so.
            (_, Outcome::Failed(_)) | (Outcome::Failed(_), _) => {
                assert!(cut || self.slow > 0, "{pair:?}");
                for outcome in [client, server] {
                    assert!(
                        !matches!(outcome, Outcome::Declined(Declined { by: Side::Peer, .. })),
                        "{pair:?}"
                    );
                }
                assert!(!matches!(
                    pair,
                    (
                        Outcome::Failed(_),
                        Outcome::Established(Agreed { path: Path::D, .. })
                    )
                ));
            }
            _ => panic!("{pair:?}"),
        }
        if !cut && matches!(client, Outcome::Declined(_)) && matches!(server, Outcome::Declined(_))
        {
            assert_eq!(Vec::from(self.client.incoming.clone()), HELLO);
            assert_eq!(Vec::from(self.server.incoming.clone()), HELLO);
        }
    }
}
