//! The server's part of a set-up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Bell, Dmb, Ended, Endpoint, Established, Incompatible, Options, OwnMemory, Refusal, decode,
    exactly, host_name,
};
use crate::driver::endpoint::Buffers;
use crate::driver::engine::{Engine, Parts};
use crate::driver::group::{GroupKey, Membership};
use crate::mem::header::{LAYOUT_HASH, Side};
use crate::proto::error::ApiMisuse;
use crate::proto::handshake::{
    Confirmed, Device, Local, Outcome, OwnEnd, PeerEnd, Proposed, ServerEvent, ServerHandshake,
};
use crate::proto::position::RingSize;
use crate::wire::clc::{Diagnosis, SmcD};
use crate::wire::rendezvous::{Frame, is_stop};
use crate::wire::{EngineId, SizeCode};

/// One connection being made, at the end that accepts.
#[derive(Debug)]
pub struct ServerSetup {
    engine: Arc<Engine>,
    options: Options,
    handshake: ServerHandshake,
    proposed: Option<Proposed>,
    client: Option<Client>,
    offered: Option<Offered>,
    group: Option<Membership>,
    refusal: Option<Refusal>,
    ended: Option<Ended>,
    made: Option<(Endpoint, Established)>,
}

/// What the client's Go has brought.
#[derive(Debug)]
struct Client {
    engine: EngineId,
    token: u64,
    known_link: u32,
    size: SizeCode,
    dmb: Dmb,
    bell: Option<Bell>,
    witness: Option<OwnedFd>,
}

/// What this end has offered in answer.
#[derive(Debug)]
struct Offered {
    own: OwnMemory,
    link_id: u32,
    /// The own bell, at first contact.
    bell: Option<OwnedFd>,
    /// Whether the Memory is on its way, and the Accept behind it.
    is_sent: bool,
}

impl ServerSetup {
    /// Waits for a client; the time for its Proposal begins to run.
    pub fn new(engine: Arc<Engine>, options: Options, now: Duration) -> Self {
        let local = Local::same_host(engine.id(), host_name());
        Self {
            engine,
            options,
            handshake: ServerHandshake::new(local, now),
            proposed: None,
            client: None,
            offered: None,
            group: None,
            refusal: None,
            ended: None,
            made: None,
        }
    }

    /// The Hello, the first frame.
    pub fn hello(&self) -> Vec<u8> {
        Frame::Hello {
            engine: self.engine.id(),
        }
        .encode(LAYOUT_HASH)
    }

    /// Takes in the client's answer, a Go with its memory and bell. What is wrong with any of these will be a Decline.
    ///
    /// # Errors
    /// A Stop, of whatever version: no Proposal follows, both ends go on with plain TCP.
    pub fn handle_go(
        &mut self,
        frame: &[u8],
        fds: Vec<OwnedFd>,
        witness: Option<OwnedFd>,
        now: Duration,
    ) -> Result<(), Incompatible> {
        let attached = match decode(frame) {
            Ok(Frame::Stop { reason }) => return Err(Incompatible::Stopped { reason }),
            Err(incompatible) if is_stop(frame) => return Err(incompatible),
            Ok(go) => Client::attach(go, fds, witness),
            Err(incompatible) => Err(incompatible.into()),
        };
        match attached {
            Ok(client) => self.client = Some(client),
            Err(refusal) => self.refusal = Some(refusal),
        }
        self.answer(now);
        Ok(())
    }

    /// The engine that a Proposal names, once one has come: to whom the rendezvous connection has to be made if there is
    /// none yet.
    pub fn proposed_engine(&self) -> Option<EngineId> {
        match self.proposed?.client {
            Device::D(ism) => Some(EngineId::from_gid(ism.gid(), ism.extension())),
            Device::R(_) => None,
        }
    }

    /// Whether the client's Go is missing: a Proposal has come without a rendezvous connection before.
    pub fn wants_go(&self) -> bool {
        self.proposed.is_some()
            && self.client.is_none()
            && self.refusal.is_none()
            && self.ended.is_none()
    }

    /// Declines what was proposed, now or as soon as it is. This is also the answer to a Memory that cannot be sent.
    ///
    /// # Errors
    /// The Memory was sent, so the client has the word; or the set-up is over.
    pub fn decline(&mut self, diagnosis: Diagnosis, now: Duration) -> Result<(), ApiMisuse> {
        let is_sent = self.offered.as_ref().is_some_and(|offered| offered.is_sent);
        if is_sent || self.ended.is_some() {
            return Err(ApiMisuse {
                call: "decline",
                reason: "the Memory was sent, or the set-up is over",
            });
        }
        self.refusal = Some(Refusal::new(diagnosis, diagnosis.text()));
        self.answer(now);
        Ok(())
    }

    /// The Memory and its descriptors, as long as it is due. Nothing goes over TCP until [`Self::handle_memory_sent`] or
    /// [`Self::decline`] tells what became of it.
    pub fn memory(&self) -> Option<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        let Offered {
            own,
            link_id,
            bell,
            is_sent: false,
        } = self.offered.as_ref()?
        else {
            return None;
        };
        let frame = Frame::Memory {
            token: own.token,
            link_id: *link_id,
            size: own.size,
            first_contact: bell.is_some(),
        };
        let fds = std::iter::once(own.fd.as_fd())
            .chain(bell.as_ref().map(OwnedFd::as_fd))
            .collect();
        Some((frame.encode(LAYOUT_HASH), fds))
    }

    /// The client's queue has the Memory: the Accept follows on TCP.
    ///
    /// # Errors
    /// No Memory was due.
    pub fn handle_memory_sent(&mut self, now: Duration) -> Result<(), ApiMisuse> {
        let Some(offered) = self.offered.as_mut().filter(|offered| !offered.is_sent) else {
            return Err(ApiMisuse {
                call: "handle_memory_sent",
                reason: "no Memory is due",
            });
        };
        offered.is_sent = true;
        let end = SmcD {
            token: offered.own.token,
            dmbe_index: 0,
            size: offered.own.size,
            link_id: offered.link_id,
        };
        let is_first = offered.bell.is_some();
        self.handshake.accept(OwnEnd::D(end), is_first, now)
    }

    /// Answers the Proposal once the client's memory is there too: with an offer, or a Decline.
    fn answer(&mut self, now: Duration) {
        if self.proposed.is_none() {
            return;
        }
        if self.refusal.is_none()
            && self.client.is_some()
            && self.offered.is_none()
            && let Err(refusal) = self.offer()
        {
            self.refusal = Some(refusal);
        }
        if let Some(refusal) = &self.refusal {
            // An error would say that the handshake is over already, as by the end of TCP: then its outcome stands.
            let _ = self.handshake.decline(refusal.diagnosis);
        }
        self.advance(now);
    }

    fn offer(&mut self) -> Result<(), Refusal> {
        let proposed = self.proposed_engine();
        let Some(client) = &mut self.client else {
            return Ok(());
        };
        if proposed != Some(client.engine) {
            return Err(Refusal::new(
                Diagnosis::INTERNAL_ERROR,
                "rendezvous Go: engine id: not the GID of the CLC Proposal",
            ));
        }
        let own = OwnMemory::new(self.options)?;
        own.dmb.header(Side::Server).initialise();
        let key = GroupKey {
            peer: client.engine,
            side: Side::Server,
            link_id: client.known_link,
        };
        let (group, bell) = match self.engine.join(key) {
            Some(group) => (group, None),
            None => first_contact(&self.engine, client)?,
        };
        self.offered = Some(Offered {
            own,
            link_id: group.key().link_id,
            bell,
            is_sent: false,
        });
        self.group = Some(group);
        Ok(())
    }

    fn advance(&mut self, now: Duration) {
        while let Some(event) = self.handshake.poll_event() {
            match event {
                ServerEvent::Proposed(proposed) => {
                    self.proposed = Some(proposed);
                    self.answer(now);
                }
                ServerEvent::Confirmed(confirmed) => self.confirmed(&confirmed),
                ServerEvent::Done(outcome) => self.end(outcome),
            }
        }
    }

    /// The Confirm must name the memory that came with the Go.
    fn confirmed(&mut self, confirmed: &Confirmed) {
        let (Some(client), Some(offered), Some(group)) =
            (self.client.take(), self.offered.take(), self.group.take())
        else {
            return;
        };
        let names_it = matches!(confirmed.peer, PeerEnd::DV2 { device, end }
            if EngineId::from_gid(device.gid(), device.extension()) == client.engine
                && (end.token, end.size, end.link_id) == (client.token, client.size, offered.link_id));
        if !names_it {
            let text =
                "CLC Confirm: token, size, link id, GID: not those of the rendezvous Go".to_owned();
            self.ended = Some(Ended::Failed { text });
            return;
        }
        let buffers = Buffers {
            side: Side::Server,
            own_size: RingSize::from_code(offered.own.size),
            own: offered.own.dmb,
            peer: client.dmb,
            peer_size: RingSize::from_code(client.size),
        };
        let established = Established {
            agreed: confirmed.agreed,
            peer: client.engine,
        };
        self.made = Some((Endpoint::new(buffers, group), established));
    }

    fn end(&mut self, outcome: Outcome) {
        self.client = None;
        self.offered = None;
        self.group = None;
        if self.ended.is_none() {
            self.ended = Some(Ended::of(outcome, self.refusal.as_ref()));
        }
    }

    /// How many bytes to read from TCP now; 0: do not read.
    pub fn wanted(&self) -> usize {
        self.handshake.wanted()
    }

    /// Takes in bytes of the TCP stream; none at all stands for its end.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Duration) {
        if bytes.is_empty() {
            self.handshake.handle_eof();
        } else {
            self.handshake.handle_bytes(bytes);
        }
        self.advance(now);
    }

    /// It is `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.handshake.handle_timeout(now);
        self.advance(now);
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.handshake.poll_timeout()
    }

    /// Bytes for the TCP stream.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.handshake.poll_transmit()
    }

    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// The endpoint, once [`Ended::Established`].
    pub fn finish(&mut self) -> Option<(Endpoint, Established)> {
        if self.ended == Some(Ended::Established) {
            self.made.take()
        } else {
            None
        }
    }
}

impl Client {
    /// Maps the memory that came with a Go.
    fn attach(frame: Frame, fds: Vec<OwnedFd>, witness: Option<OwnedFd>) -> Result<Self, Refusal> {
        let Frame::Go {
            engine,
            token,
            known_link,
            size,
        } = frame
        else {
            return Err(Incompatible::NotDue.into());
        };
        let [memory, bell] = exactly(fds)?;
        Ok(Self {
            engine,
            token,
            known_link,
            size,
            dmb: Dmb::attach(memory, size.bytes() as usize)?,
            bell: Some(Bell::check(bell)?),
            witness,
        })
    }
}

/// A new link group with the client, and the own bell to hand over.
fn first_contact(
    engine: &Engine,
    client: &mut Client,
) -> Result<(Membership, Option<OwnedFd>), Refusal> {
    let own_bell = Bell::create()?;
    let to_send = own_bell.try_clone()?;
    let peer_bell = client
        .bell
        .take()
        .ok_or_else(|| Refusal::new(Diagnosis::INTERNAL_ERROR, "a second first contact"))?;
    let parts = Parts {
        own_bell,
        peer_bell,
        witness: client.witness.take(),
    };
    Ok((
        engine.first_contact(client.engine, Side::Server, None, parts)?,
        Some(to_send),
    ))
}
