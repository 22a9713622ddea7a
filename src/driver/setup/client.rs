//! The client's part of a set-up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Bell, Dmb, Ended, Endpoint, Established, Incompatible, Options, OwnMemory, Refusal, decode,
    exactly, host_name,
};
use crate::driver::endpoint::Buffers;
use crate::driver::engine::{Engine, Parts};
use crate::driver::group::Membership;
use crate::mem::header::{LAYOUT_HASH, Side};
use crate::proto::error::ApiMisuse;
use crate::proto::handshake::{
    Accepted, ClientEvent, ClientHandshake, Local, Outcome, OwnEnd, PeerEnd,
};
use crate::proto::position::RingSize;
use crate::wire::EngineId;
use crate::wire::clc::{Diagnosis, SmcD};
use crate::wire::rendezvous::Frame;

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
    refusal: Option<Refusal>,
    ended: Option<Ended>,
    made: Option<(Endpoint, Established)>,
}

impl ClientSetup {
    /// Allocates the own memory and doorbell, and has the Proposal ready; the time for the Accept begins to run.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, ENOSPC.
    pub fn new(engine: Arc<Engine>, options: Options, now: Duration) -> std::io::Result<Self> {
        let local = Local::same_host(engine.id(), host_name());
        Ok(Self {
            own: Some(OwnMemory::new(options)?),
            bell: Some(Bell::create()?),
            handshake: ClientHandshake::new(local, now),
            engine,
            peer: None,
            known: None,
            accepted: None,
            refusal: None,
            ended: None,
            made: None,
        })
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
        self.known = self.engine.join_any(peer, Side::Client);
        self.peer = Some(peer);
        Ok(())
    }

    /// The Go, and the descriptors that travel with it.
    ///
    /// # Errors
    /// There was no Hello, or the set-up is over.
    pub fn go(&self) -> Result<(Vec<u8>, [BorrowedFd<'_>; 2]), ApiMisuse> {
        let (Some(own), Some(bell), Some(_)) = (&self.own, &self.bell, &self.peer) else {
            return Err(ApiMisuse {
                call: "go",
                reason: "there was no Hello, or the set-up is over",
            });
        };
        let known_link = self.known.as_ref().map_or(0, |group| group.key().link_id);
        let frame = Frame::Go {
            engine: self.engine.id(),
            token: own.token,
            known_link,
            size: own.size,
        };
        Ok((frame.encode(LAYOUT_HASH), [own.fd.as_fd(), bell.as_fd()]))
    }

    /// Whether the server's Memory has to be received now.
    pub fn wants_memory(&self) -> bool {
        self.accepted.is_some() && self.ended.is_none()
    }

    /// Takes in the server's Memory and answers the Accept: with a Confirm, or with a Decline that tells what is wrong.
    pub fn handle_memory(&mut self, frame: &[u8], fds: Vec<OwnedFd>, witness: Option<OwnedFd>) {
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
        witness: Option<OwnedFd>,
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
            peer,
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
        witness: Option<OwnedFd>,
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
            witness,
        };
        Ok((
            memory,
            self.engine
                .first_contact(peer, Side::Client, Some(link_id), parts)?,
        ))
    }

    fn advance(&mut self) {
        while let Some(event) = self.handshake.poll_event() {
            match event {
                ClientEvent::Accepted(accepted) => self.accepted = Some(accepted),
                ClientEvent::Done(outcome) => self.end(outcome),
            }
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = Some(Ended::of(outcome, self.refusal.as_ref()));
        if !matches!(outcome, Outcome::Established(_)) {
            self.made = None;
        }
        self.release();
    }

    /// Lets go of what nobody will use any more.
    fn release(&mut self) {
        self.own = None;
        self.bell = None;
        self.known = None;
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

    /// It is `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.handshake.handle_timeout(now);
        self.advance();
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
