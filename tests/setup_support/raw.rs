//! Ends that only speak CLC, and say what a test wants.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use smcfast::driver::rdma::{Place, Side as Role};
use smcfast::proto::handshake::{
    Accepted, ClientEvent, ClientHandshake, Limits, Local, LocalR, Outcome, OwnEnd, PeerEnd,
    Proposed, ServerEvent, ServerHandshake,
};
use smcfast::wire::SizeCode;
use smcfast::wire::clc::{Gid, Mac, Mtu, PeerId, SmcR, Version};

use super::{Host, Net, eids, gid, subnets};

pub const LIMITS: Limits = Limits {
    max_connections: 255,
    max_links: 1,
};

/// What a kernel of this host would be.
pub fn local(host: u8, peer_id: PeerId) -> Local {
    Local {
        peer_id,
        eids: eids(&["COMMON"]),
        smc_d: None,
        smc_r: Some(LocalR {
            mac: Mac([2, 0, 0, 0, 0, host]),
            v1: None,
            v2: Some(gid(host)),
            limits: LIMITS,
        }),
        subnets: subnets(host),
        ..Local::same_host(smcfast::wire::EngineId([host; 16]), "raw")
    }
}

/// An end of a pair that is nowhere.
pub fn nowhere(host: u8) -> SmcR {
    let one = std::num::NonZeroU32::MIN;
    SmcR {
        peer_id: PeerId([host; 8]),
        gid: gid(host),
        mac: Mac([2, 0, 0, 0, 0, host]),
        qp_number: smcfast::wire::clc::U24::new(0x4242).expect("24 bits"),
        rkey: 7,
        rmbe_index: std::num::NonZeroU8::MIN,
        alert_token: one,
        size: SizeCode::MIN,
        mtu: Mtu::B1024,
        rmb_address: 0x10_0000,
        psn: smcfast::wire::clc::U24::default(),
    }
}

/// The first place in a new group of this host.
pub fn place(host: &Host, role: Role) -> Place {
    let group = host
        .port
        .new_group(role, Version::V2, Some(LIMITS))
        .expect("a group");
    group.place(SizeCode::MIN).expect("memory").expect("room")
}

pub fn end(end: SmcR) -> OwnEnd {
    OwnEnd::R { end, direct: true }
}

/// A machine and its socket.
#[derive(Debug)]
pub struct Raw<M> {
    pub machine: M,
    pub tcp: UnixStream,
    pub outcome: Option<Outcome>,
}

pub trait Machine {
    fn wanted(&self) -> usize;
    fn take(&mut self, bytes: &[u8]);
    fn next(&mut self) -> Option<Vec<u8>>;
}

impl Machine for ClientHandshake {
    fn wanted(&self) -> usize {
        self.wanted()
    }
    fn take(&mut self, bytes: &[u8]) {
        self.handle_bytes(bytes);
    }
    fn next(&mut self) -> Option<Vec<u8>> {
        self.poll_transmit()
    }
}

impl Machine for ServerHandshake {
    fn wanted(&self) -> usize {
        self.wanted()
    }
    fn take(&mut self, bytes: &[u8]) {
        self.handle_bytes(bytes);
    }
    fn next(&mut self) -> Option<Vec<u8>> {
        self.poll_transmit()
    }
}

impl<M: Machine> Raw<M> {
    fn new(machine: M, tcp: UnixStream) -> Self {
        tcp.set_nonblocking(true).expect("a mode");
        Self {
            machine,
            tcp,
            outcome: None,
        }
    }

    /// Sends what there is, and takes in what has come.
    pub fn pump(&mut self) {
        while let Some(bytes) = self.machine.next() {
            self.tcp.write_all(&bytes).expect("room");
        }
        loop {
            let mut bytes = vec![0; self.machine.wanted()];
            if bytes.is_empty() {
                return;
            }
            match self.tcp.read(&mut bytes) {
                Ok(n) if n > 0 => self.machine.take(&bytes[..n]),
                _ => return,
            }
        }
    }
}

impl Raw<ClientHandshake> {
    pub fn client(local: Local, tcp: UnixStream) -> Self {
        let mut raw = Self::new(
            ClientHandshake::new(local, smcfast::driver::clock::now()),
            tcp,
        );
        raw.pump();
        raw
    }

    /// The server's Accept, once it is there.
    pub fn accepted(&mut self) -> Option<Accepted> {
        self.pump();
        match self.machine.poll_event() {
            Some(ClientEvent::Accepted(accepted)) => Some(accepted),
            Some(ClientEvent::Done(outcome)) => {
                self.outcome = Some(outcome);
                None
            }
            None => None,
        }
    }
}

impl Raw<ServerHandshake> {
    pub fn server(local: Local, tcp: UnixStream) -> Self {
        Self::new(
            ServerHandshake::new(local, smcfast::driver::clock::now()),
            tcp,
        )
    }

    /// The client's Proposal, once it is there.
    pub fn proposed(&mut self) -> Option<Proposed> {
        self.pump();
        match self.machine.poll_event() {
            Some(ServerEvent::Proposed(proposed)) => Some(proposed),
            Some(ServerEvent::Done(outcome)) => {
                self.outcome = Some(outcome);
                None
            }
            _ => None,
        }
    }

    /// Whether the client's Confirm has come.
    pub fn is_confirmed(&mut self) -> bool {
        self.confirmed().is_some()
    }

    /// The client's end, once its Confirm is there.
    pub fn confirmed(&mut self) -> Option<SmcR> {
        self.pump();
        match self.machine.poll_event() {
            Some(ServerEvent::Confirmed(confirmed)) => match confirmed.peer {
                PeerEnd::R(end) => Some(end),
                _ => None,
            },
            Some(ServerEvent::Done(outcome)) => {
                self.outcome = Some(outcome);
                None
            }
            _ => None,
        }
    }

    pub fn accept(&mut self, own: SmcR, first: bool) {
        self.machine
            .accept(end(own), first, smcfast::driver::clock::now())
            .expect("proposed");
        self.pump();
    }
}

impl Net {
    /// Nothing is left at either end.
    pub fn is_clean(&self) -> bool {
        self.pairs() == [0, 0]
            && self
                .hosts()
                .iter()
                .all(|host| self.fabric.registered(host.name) == 0)
    }
}

pub fn unmapped() -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9])
}
