//! What the tests of the handshake share: sides with any devices, their answers, and the TCP connection between them.
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "not every one of them uses all of it")]

use std::collections::VecDeque;
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

use smcfast::proto::handshake::{
    Accepted, ClientEvent, ClientHandshake, Confirmed, Declined, Device, Limits, Local, LocalD,
    LocalR, Outcome, OwnEnd, Path, Proposed, ServerEvent, ServerHandshake, Side, Subnets,
};
use smcfast::wire::SizeCode;
use smcfast::wire::clc::{
    Diagnosis, Eid, Few, Gid, HostName, Ipv4Prefix, Ism, IsmList, Mac, Message, Mtu, NativeIsm,
    PeerId, Release, SmcD, SmcR, U24,
};

pub const START: Duration = Duration::from_secs(1000);

/// The ways that a side can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ways {
    pub d_v2: bool,
    pub d_v1: bool,
    pub r_v2: bool,
    pub r_v1: bool,
}

impl Ways {
    pub const NONE: Self = Self {
        d_v2: false,
        d_v1: false,
        r_v2: false,
        r_v1: false,
    };
    pub const D_V2: Self = Self {
        d_v2: true,
        ..Self::NONE
    };
    pub const D_V1: Self = Self {
        d_v1: true,
        ..Self::NONE
    };
    pub const R_V2: Self = Self {
        r_v2: true,
        ..Self::NONE
    };
    pub const R_V1: Self = Self {
        r_v1: true,
        ..Self::NONE
    };

    pub fn all() -> impl Iterator<Item = Self> {
        (0..16).map(|bits| Self {
            d_v2: bits & 1 != 0,
            d_v1: bits & 2 != 0,
            r_v2: bits & 4 != 0,
            r_v1: bits & 8 != 0,
        })
    }
}

pub fn eid(name: &str) -> Eid {
    Eid::new(name).unwrap()
}

pub fn eids(names: &[&str]) -> Few<Eid, 8> {
    Few::new(names.iter().map(|name| eid(name)).collect()).unwrap()
}

pub fn roce_v2(host: u8) -> Gid {
    Gid::from_ipv4([10, 9, 0, host].into())
}

pub fn roce_v1(host: u8) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

pub fn ism(host: u8, chid: u16) -> Ism {
    Ism::emulated(u64::from(host), 0xe000 + u64::from(host), chid).unwrap()
}

pub const CHID: u16 = 0xff53;

/// A side with these ways; hosts with different numbers are different, in the same subnet.
pub fn local(host: u8, ways: Ways) -> Local {
    let devices = if ways.d_v2 {
        vec![ism(host, CHID)]
    } else {
        Vec::new()
    };
    let native = ways.d_v1.then_some(NativeIsm {
        gid: 0x1500 + u64::from(host),
        chid: 0x15,
    });
    Local {
        peer_id: PeerId([host; 8]),
        host_name: HostName::from_lossy("host"),
        eids: eids(&["COMMON"]),
        release: Release::V2_1,
        smc_d: Some(LocalD {
            native,
            devices: IsmList::new(devices).unwrap(),
            seid: None,
        }),
        smc_r: Some(LocalR {
            mac: Mac([2, 0, 0, 0, 0, host]),
            v1: ways.r_v1.then(|| roce_v1(host)),
            v2: ways.r_v2.then(|| roce_v2(host)),
            limits: Limits {
                max_connections: 255,
                max_links: 2,
            },
        }),
        subnets: subnet([10, 9, 0, host]),
    }
}

pub fn subnet(address: [u8; 4]) -> Subnets {
    Subnets {
        ipv4: vec![Ipv4Prefix::new(address.into(), 24).unwrap()],
        ipv6: Vec::new(),
    }
}

/// An end for either way.
pub fn own_end(host: u8, path: Path) -> OwnEnd {
    match path {
        Path::D => OwnEnd::D(SmcD {
            token: 0x7000 + u64::from(host),
            dmbe_index: 0,
            size: SizeCode::new(6).unwrap(),
            link_id: 0x0100 + u32::from(host),
        }),
        Path::R => OwnEnd::R {
            end: SmcR {
                peer_id: PeerId([host; 8]),
                gid: roce_v2(host),
                mac: Mac([2, 0, 0, 0, 0, host]),
                qp_number: U24::new(17).unwrap(),
                rkey: 0x300 + u32::from(host),
                rmbe_index: NonZeroU8::MIN,
                alert_token: NonZeroU32::new(u32::from(host)).unwrap(),
                size: SizeCode::new(2).unwrap(),
                mtu: Mtu::B1024,
                rmb_address: 0xff00_0000_0000_0000,
                psn: U24::new(0x81545e).unwrap(),
            },
            direct: true,
        },
    }
}

/// One side of a handshake, whichever it is.
pub trait Machine {
    fn wanted(&self) -> usize;
    fn handle_bytes(&mut self, bytes: &[u8]);
    fn handle_eof(&mut self);
    fn handle_timeout(&mut self, now: Duration);
    fn poll_transmit(&mut self) -> Option<Vec<u8>>;
    fn poll_timeout(&self) -> Option<Duration>;
    /// Takes one event; the caller's answer to it is that of a side that has no objections.
    fn step(&mut self, now: Duration) -> Option<Option<Outcome>>;
}

macro_rules! machine {
    ($machine:ty, |$this:ident, $event:ident, $now:ident| $step:expr) => {
        impl Machine for $machine {
            fn wanted(&self) -> usize {
                self.wanted()
            }
            fn handle_bytes(&mut self, bytes: &[u8]) {
                self.handle_bytes(bytes);
            }
            fn handle_eof(&mut self) {
                self.handle_eof();
            }
            fn handle_timeout(&mut self, now: Duration) {
                self.handle_timeout(now);
            }
            fn poll_transmit(&mut self) -> Option<Vec<u8>> {
                self.poll_transmit()
            }
            fn poll_timeout(&self) -> Option<Duration> {
                self.poll_timeout()
            }
            fn step(&mut self, $now: Duration) -> Option<Option<Outcome>> {
                let $event = self.poll_event()?;
                let $this = self;
                Some($step)
            }
        }
    };
}

machine!(ClientHandshake, |client, event, _now| match event {
    ClientEvent::Done(outcome) => Some(outcome),
    ClientEvent::Accepted(Accepted { agreed, .. }) => {
        client.confirm(own_end(1, agreed.path)).unwrap();
        if agreed.path == Path::R {
            client.linked().unwrap();
        }
        None
    }
});

machine!(ServerHandshake, |server, event, now| match event {
    ServerEvent::Done(outcome) => Some(outcome),
    ServerEvent::Proposed(Proposed { own, .. }) => {
        server.accept(own_end(2, own.path()), true, now).unwrap();
        None
    }
    ServerEvent::Confirmed(Confirmed { agreed, .. }) => {
        if agreed.path == Path::R {
            server.linked().unwrap();
        }
        None
    }
});

/// Takes all events, with the answers of [`Machine::step`]; returns the outcome, if there is one.
pub fn settle(machine: &mut impl Machine, now: Duration) -> Option<Outcome> {
    let mut outcome = None;
    while let Some(event) = machine.step(now) {
        assert_eq!(outcome, None, "an event after the last one");
        outcome = event;
    }
    outcome
}

/// Gives to a machine what it wants of a stream.
pub fn feed(machine: &mut impl Machine, stream: &mut VecDeque<u8>) {
    while machine.wanted() > 0 && !stream.is_empty() {
        let n = machine.wanted().min(stream.len());
        let bytes: Vec<u8> = stream.drain(..n).collect();
        machine.handle_bytes(&bytes);
    }
}

/// Gives one whole message to a machine, which must take all of it.
pub fn give(machine: &mut impl Machine, bytes: &[u8]) {
    let mut stream: VecDeque<u8> = bytes.iter().copied().collect();
    feed(machine, &mut stream);
    assert!(stream.is_empty(), "{} bytes were not wanted", stream.len());
}

/// The one message that a machine has to send.
pub fn sent(machine: &mut impl Machine) -> Message {
    let bytes = machine.poll_transmit().expect("nothing to send");
    assert_eq!(machine.poll_transmit(), None);
    Message::decode(&bytes).unwrap()
}

/// What a side sends when it has turned to TCP.
pub const HELLO: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// How a handshake between two machines has ended, and what was left in the streams.
#[derive(Debug)]
pub struct Ended {
    pub client: Outcome,
    pub server: Outcome,
}

/// Lets the two talk until both are done. Whoever has declined, or sees a Decline, speaks plainly at once.
pub fn run(client: &mut ClientHandshake, server: &mut ServerHandshake) -> Ended {
    let (mut to_client, mut to_server) = (VecDeque::new(), VecDeque::new());
    let (mut client_end, mut server_end) = (None, None);
    for _ in 0..20 {
        turn(client, &mut to_client, &mut to_server, &mut client_end);
        turn(server, &mut to_server, &mut to_client, &mut server_end);
    }
    let ended = Ended {
        client: client_end.expect("client"),
        server: server_end.expect("server"),
    };
    for (outcome, left) in [(ended.client, &to_client), (ended.server, &to_server)] {
        let plain = matches!(outcome, Outcome::Declined(_));
        assert_eq!(
            left.iter().copied().collect::<Vec<u8>>(),
            if plain { HELLO } else { b"" },
            "{outcome:?}"
        );
    }
    ended
}

fn turn(
    machine: &mut impl Machine,
    from: &mut VecDeque<u8>,
    to: &mut VecDeque<u8>,
    end: &mut Option<Outcome>,
) {
    feed(machine, from);
    let outcome = settle(machine, START);
    while let Some(bytes) = machine.poll_transmit() {
        to.extend(bytes);
    }
    if let Some(outcome) = outcome {
        assert_eq!(*end, None);
        *end = Some(outcome);
        if matches!(outcome, Outcome::Declined(_)) {
            to.extend(HELLO);
        }
    }
}

pub fn declined(by: Side, diagnosis: Diagnosis) -> Outcome {
    Outcome::Declined(Declined {
        by,
        diagnosis,
        out_of_sync: false,
    })
}

/// The GIDs of an offer's device, for comparisons.
pub fn device_path(device: Device) -> Path {
    device.path()
}
