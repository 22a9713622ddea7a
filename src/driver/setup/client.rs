//! The client's part of a set-up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::link::{ClientLink, Wish};
use super::{
    Bell, Dmb, Ended, Endpoint, Established, Far, Incompatible, Offer, Options, OwnMemory, Refusal,
    decode, exactly,
};
use crate::driver::endpoint::Buffers;
use crate::driver::engine::{Engine, Parts};
use crate::driver::group::Membership;
use crate::mem::header::{LAYOUT_HASH, Side};
use crate::proto::error::ApiMisuse;
use crate::proto::handshake::{Accepted, ClientEvent, ClientHandshake, Outcome, OwnEnd, PeerEnd};
use crate::proto::position::RingSize;
use crate::wire::clc::{Diagnosis, SmcD};
use crate::wire::rendezvous::Frame;
use crate::wire::{EngineId, SizeCode};

/// One connection being made, at the end that connects.
#[derive(Debug)]
pub struct ClientSetup {
    engine: Arc<Engine>,
    handshake: ClientHandshake,
    own: Option<OwnMemory>,
    bell: Option<OwnedFd>,
    peer: Option<EngineId>,
    known: Option<Membership>,
    accepted: Option<Accepted>,
    link: Option<ClientLink>,
    refusal: Option<Refusal>,
    ended: Option<Ended>,
    made: Option<(Endpoint, Established)>,
}

impl ClientSetup {
    /// Allocates the own memory if that is offered, and has the Proposal ready; the time for the Accept begins to run.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, ENOSPC.
    pub fn new(
        engine: Arc<Engine>,
        options: Options,
        offer: Offer,
        now: Duration,
    ) -> std::io::Result<Self> {
        let local = offer.local(&engine, Side::Client);
        let own = offer.memory.then(|| OwnMemory::new(options));
        let mut setup = Self {
            own: own.transpose()?,
            bell: None,
            handshake: ClientHandshake::new(local, now),
            link: offer.rdma.map(|rdma| ClientLink::new(rdma, options)),
            engine,
            peer: None,
            known: None,
            accepted: None,
            refusal: None,
            ended: None,
            made: None,
        };
        // Who has nothing to offer has declined already.
        setup.advance();
        Ok(setup)
    }

    /// Takes in the server's Hello.
    ///
    /// # Errors
    /// The two cannot do it; the error has the frame that says so.
    pub fn handle_hello(&mut self, frame: &[u8]) -> Result<(), Incompatible> {
        let peer = match decode(frame)? {
            Frame::Hello { engine } => engine,
            Frame::Stop { reason } => return Err(Incompatible::Stopped { reason }),
            _ => return Err(Incompatible::NotDue),
        };
        if self.own.is_some() {
            self.known = self.engine.join_any(peer, Side::Client);
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// The Go, and the descriptors that travel with it: memory, and the doorbell of the known link group or a new one. None
    /// travel when memory is not offered.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM; and there was no Hello, or the set-up is over.
    pub fn go(&mut self) -> std::io::Result<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        if self.peer.is_none() || self.ended.is_some() {
            return Err(std::io::Error::other(ApiMisuse {
                call: "go",
                reason: "there was no Hello, or the set-up is over",
            }));
        }
        if self.own.is_some() && self.bell.is_none() {
            self.bell = Some(match &self.known {
                Some(group) => group.own_bell()?,
                None => Bell::create()?,
            });
        }
        let own = self.own.as_ref();
        let frame = Frame::Go {
            engine: self.engine.id(),
            token: own.map_or(0, |own| own.token),
            known_link: self.known.as_ref().map_or(0, |group| group.key().link_id),
            size: own.map_or(SizeCode::MIN, |own| own.size),
        };
        let fds = own.map(|own| own.fd.as_fd());
        let fds = fds
            .into_iter()
            .chain(self.bell.as_ref().map(OwnedFd::as_fd));
        Ok((frame.encode(LAYOUT_HASH), fds.collect()))
    }

    /// Whether the server's Memory has to be received now.
    pub fn wants_memory(&self) -> bool {
        self.accepted.is_some() && self.ended.is_none()
    }

    /// Takes in the server's Memory and answers the Accept: with a Confirm, or with a Decline that tells what is wrong.
    /// `witness` gets a pidfd of the server's process, at first contact.
    pub fn handle_memory(
        &mut self,
        frame: &[u8],
        fds: Vec<OwnedFd>,
        witness: impl FnOnce() -> Option<OwnedFd>,
    ) {
        let result = self.attach(frame, fds, witness);
        if let Err(refusal) = result {
            self.refuse(refusal);
        }
        self.advance();
    }

    /// The rendezvous connection has failed before the Memory came.
    pub fn decline(&mut self, diagnosis: Diagnosis) {
        self.refuse(Refusal::new(diagnosis, diagnosis.text()));
        self.advance();
    }

    fn refuse(&mut self, refusal: Refusal) {
        // Before an Accept there is nothing to decline; the handshake then ends by itself, by a time-out at the latest.
        if self.handshake.decline(refusal.diagnosis).is_ok() {
            self.refusal = Some(refusal);
        }
    }

    fn attach(
        &mut self,
        frame: &[u8],
        fds: Vec<OwnedFd>,
        witness: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let misfit = |text: &str| {
            Refusal::new(
                Diagnosis::INTERNAL_ERROR,
                format!("rendezvous Memory: {text}"),
            )
        };
        let (Some(accepted), Some(peer)) = (self.accepted.take(), self.peer) else {
            return Err(misfit("kind: not due"));
        };
        let Frame::Memory {
            token,
            link_id,
            size,
            first_contact,
        } = decode(frame).map_err(|e| Refusal::new(Diagnosis::INTERNAL_ERROR, e))?
        else {
            return Err(misfit("kind: not a Memory"));
        };
        let PeerEnd::DV2 { device, end } = accepted.peer else {
            return Err(Refusal::new(
                Diagnosis::MODE_MISMATCH,
                "CLC Accept: path: not SMC-Dv2",
            ));
        };
        if EngineId::from_gid(device.gid(), device.extension()) != peer {
            return Err(misfit("engine id: not the GID of the CLC Accept"));
        }
        if (token, link_id, size) != (end.token, end.link_id, end.size) {
            return Err(misfit("token, link id, size: not those of the CLC Accept"));
        }
        if first_contact != accepted.agreed.first_contact {
            return Err(misfit("first contact: not that of the CLC Accept"));
        }
        let (memory, group) = self.join(peer, link_id, first_contact, fds, witness)?;
        let peer_dmb = Dmb::attach(memory, size.bytes() as usize)?;
        if !peer_dmb.header(Side::Client).is_known() {
            return Err(Refusal::new(
                Diagnosis::INTERNAL_ERROR,
                "shared memory: header: unknown layout",
            ));
        }
        let Some(own) = self.own.take() else {
            return Err(misfit("kind: not due"));
        };
        // A server that sends its own has mapped this one.
        own.dmb.keep(&own.fd)?;
        let end = SmcD {
            token: own.token,
            dmbe_index: 0,
            size: own.size,
            link_id,
        };
        let buffers = Buffers {
            side: Side::Client,
            own_size: RingSize::from_code(own.size),
            own: own.dmb,
            peer: peer_dmb,
            peer_size: RingSize::from_code(size),
        };
        let established = Established {
            agreed: accepted.agreed,
            far: Far::Memory { peer },
        };
        self.made = Some((Endpoint::new(buffers, group), established));
        self.handshake
            .confirm(OwnEnd::D(end))
            .map_err(|misuse| Refusal::new(Diagnosis::INTERNAL_ERROR, misuse))
    }

    /// The fd of the server's memory, and a place in the link group that it names.
    fn join(
        &mut self,
        peer: EngineId,
        link_id: u32,
        first: bool,
        fds: Vec<OwnedFd>,
        witness: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<(OwnedFd, Membership), Refusal> {
        if !first {
            let [memory] = exactly(fds)?;
            let known = self
                .known
                .take()
                .filter(|group| group.key().link_id == link_id);
            let group = known.ok_or_else(|| {
                Refusal::new(
                    Diagnosis::SYNCHRONIZATION,
                    "the server names a link group that is not known here",
                )
            })?;
            return Ok((memory, group));
        }
        let [memory, bell] = exactly(fds)?;
        let peer_bell = Bell::check(bell)?;
        let own_bell = self
            .bell
            .take()
            .ok_or_else(|| Refusal::new(Diagnosis::INTERNAL_ERROR, "a second first contact"))?;
        let parts = Parts {
            own_bell,
            peer_bell,
            witness: witness(),
        };
        Ok((
            memory,
            self.engine
                .first_contact(peer, Side::Client, Some(link_id), parts)?,
        ))
    }

    /// SMC-R: goes on with the link as far as it can; whether anything has happened. All must be done by `due`.
    pub fn progress(&mut self, now: Duration, due: Duration) -> bool {
        let Some(link) = self.link.as_mut() else {
            return false;
        };
        let refused = match link.step(now, due) {
            Ok(None) => return false,
            Ok(Some(Wish::Answer(answer))) => self.handshake.confirm(OwnEnd::R {
                end: answer.end,
                direct: answer.direct,
            }),
            Ok(Some(Wish::Linked(made))) => {
                self.made = Some(*made);
                self.handshake.linked()
            }
            Err(refusal) => {
                self.refuse(refusal);
                Ok(())
            }
        };
        if let Err(misuse) = refused {
            self.refuse(Refusal::new(Diagnosis::INTERNAL_ERROR, misuse));
        }
        self.advance();
        true
    }

    /// SMC-R: whether the link of a first contact has come up.
    pub fn is_linked(&self) -> bool {
        self.link.as_ref().is_some_and(ClientLink::is_up)
    }

    /// What a link has to be waited for: a descriptor with something to read, and the moment in any case.
    pub fn link_waits(&self) -> Option<(RawFd, Option<Duration>)> {
        self.link.as_ref()?.waits()
    }

    fn advance(&mut self) {
        while let Some(event) = self.handshake.poll_event() {
            match event {
                ClientEvent::Accepted(accepted) => self.accept(accepted),
                ClientEvent::Done(outcome) => self.end(outcome),
            }
        }
    }

    fn accept(&mut self, accepted: Accepted) {
        match (accepted.peer, self.link.as_mut()) {
            (PeerEnd::R(peer), Some(link)) => link.handle_accepted(accepted, peer),
            _ => self.accepted = Some(accepted),
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = Some(Ended::of(outcome, self.refusal.as_ref()));
        if !matches!(outcome, Outcome::Established(_)) {
            self.made = None;
        }
        self.release();
    }

    /// Lets go of what nobody will use any more; an endpoint that was made stays.
    pub fn release(&mut self) {
        self.own = None;
        self.bell = None;
        self.known = None;
        self.link = None;
    }

    /// The time for the whole set-up is over: it fails, unless all is said already. What is not transmitted yet is taken
    /// back, be it a Confirm or a Decline, for the server may have given up meanwhile and would not read it as one.
    pub fn give_up(&mut self) {
        let mut takes_back = false;
        while self.handshake.poll_transmit().is_some() {
            takes_back = true;
        }
        if self.ended.is_some() && !takes_back {
            return;
        }
        self.ended = Some(Ended::Failed {
            text: "the set-up was not done in time".to_owned(),
        });
        self.made = None;
        self.accepted = None;
        self.release();
    }

    /// How many bytes to read from TCP now; 0: do not read.
    pub fn wanted(&self) -> usize {
        self.handshake.wanted()
    }

    /// Takes in bytes of the TCP stream; none at all stands for its end.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.handshake.handle_eof();
        } else {
            self.handshake.handle_bytes(bytes);
        }
        self.advance();
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
