//! The server's part of a set-up.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::link::{ServerLink, Wish};
use super::{
    Bell, Dmb, Ended, Endpoint, Established, Far, Incompatible, Offer, Options, OwnMemory, Refusal,
    decode, exactly,
};
use crate::driver::endpoint::Buffers;
use crate::driver::engine::{Engine, Parts};
use crate::driver::group::{GroupKey, Membership};
use crate::mem::header::{LAYOUT_HASH, Side};
use crate::mem::memfd::overcommit_is_strict;
use crate::proto::error::ApiMisuse;
use crate::proto::handshake::{
    Confirmed, Declined, Device, Outcome, OwnEnd, Path, PeerEnd, Proposed, ServerEvent,
    ServerHandshake,
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
    /// What came with the client's Go, or what is wrong with it.
    client: Option<Result<Client, Refusal>>,
    /// Memory that was made while there was time.
    own: Option<OwnMemory>,
    offered: Option<Offered>,
    group: Option<Membership>,
    /// Whether memory is offered at all.
    has_memory: bool,
    link: Option<ServerLink>,
    refusal: Option<Refusal>,
    ended: Option<Ended>,
    made: Option<(Endpoint, Established)>,
}

/// What the client's Go has brought.
#[derive(Debug)]
struct Client {
    engine: EngineId,
    token: u64,
    size: SizeCode,
    dmb: Dmb,
    /// Until the offer.
    contact: Option<Contact>,
}

/// How the client and this end are tied together.
#[derive(Debug)]
enum Contact {
    /// By a link group that both know.
    Known(Membership),
    /// By a new one, made of the client's bell and a pidfd of its process.
    First {
        bell: OwnedFd,
        witness: Option<OwnedFd>,
    },
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
    pub fn new(engine: Arc<Engine>, options: Options, offer: Offer, now: Duration) -> Self {
        let local = offer.local(&engine, Side::Server);
        Self {
            engine,
            has_memory: offer.memory,
            link: offer.rdma.map(|rdma| ServerLink::new(rdma, options)),
            options,
            handshake: ServerHandshake::new(local, now),
            proposed: None,
            client: None,
            own: None,
            offered: None,
            group: None,
            refusal: None,
            ended: None,
            made: None,
        }
    }

    /// Where the client has connected from: not asked where it does not matter. To be told before it proposes.
    pub fn set_host(&mut self, host: impl FnOnce() -> Option<SocketAddr>) {
        if let Some(link) = &mut self.link {
            link.set_host(host());
        }
    }

    /// Makes the own memory while the client takes its time; not if that means all its pages.
    pub fn prepare(&mut self) {
        if self.has_memory
            && self.own.is_none()
            && !self.options.preallocate
            && !overcommit_is_strict()
        {
            // What is lacking is found out when it is needed.
            self.own = make_memory(self.options).ok();
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
    /// `witness` gets a pidfd of the client's process, at first contact.
    ///
    /// # Errors
    /// A Stop, of whatever version: no Proposal follows, both ends go on with plain TCP.
    pub fn handle_go(
        &mut self,
        frame: &[u8],
        fds: Vec<OwnedFd>,
        witness: impl FnOnce() -> Option<OwnedFd>,
        now: Duration,
    ) -> Result<(), Incompatible> {
        let attached = match decode(frame) {
            Ok(Frame::Stop { reason }) => return Err(Incompatible::Stopped { reason }),
            Err(incompatible) if is_stop(frame) => return Err(incompatible),
            Ok(go) => Client::attach(&self.engine, go, fds, witness),
            Err(incompatible) => Err(incompatible.into()),
        };
        self.client = Some(attached);
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
        self.proposed_engine().is_some()
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

    /// The client that has proposed cannot be met: what else it offers counts, and if that is nothing `diagnosis` declines.
    /// Nothing when no meeting is waited for.
    pub fn pass_over_memory(&mut self, diagnosis: Diagnosis, now: Duration) {
        if self.wants_go() && self.handshake.pass_over_d(diagnosis).is_ok() {
            self.advance(now);
        }
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

    /// Answers a Proposal of memory once the client's is there too: with an offer, or a Decline.
    fn answer(&mut self, now: Duration) {
        let Some(proposed) = self.proposed else {
            return;
        };
        if self.refusal.is_none() && self.offered.is_none() && proposed.own.path() == Path::D {
            self.refusal = self.offer().err();
        }
        if let Some(refusal) = &self.refusal {
            // An error would say that the handshake is over already, as by the end of TCP: then its outcome stands.
            let _ = self.handshake.decline(refusal.diagnosis);
        }
        self.advance(now);
    }

    fn offer(&mut self) -> Result<(), Refusal> {
        let proposed = self.proposed_engine();
        let client = match &mut self.client {
            None => return Ok(()),
            Some(Err(refusal)) => return Err(refusal.clone()),
            Some(Ok(client)) => client,
        };
        let own = self.own.take();
        if proposed != Some(client.engine) {
            return Err(Refusal::new(
                Diagnosis::INTERNAL_ERROR,
                "rendezvous Go: engine id: not the GID of the CLC Proposal",
            ));
        }
        let own = match own {
            Some(own) => own,
            None => make_memory(self.options)?,
        };
        let (group, bell) = match client.contact.take() {
            Some(Contact::Known(group)) => (group, None),
            Some(Contact::First { bell, witness }) => {
                let (group, bell) = first_contact(&self.engine, client.engine, bell, witness)?;
                (group, Some(bell))
            }
            None => return Err(Refusal::new(Diagnosis::INTERNAL_ERROR, "a second offer")),
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
                    if let Some(link) = &mut self.link {
                        link.handle_proposed(proposed);
                    }
                    self.answer(now);
                }
                ServerEvent::Confirmed(confirmed) => self.confirmed(&confirmed),
                ServerEvent::Done(outcome) => self.end(outcome),
            }
        }
    }

    /// SMC-R: goes on with the link as far as it can; whether anything has happened. All must be done by `due`.
    pub fn progress(&mut self, now: Duration, due: Duration) -> bool {
        if self.refusal.is_some() {
            return false;
        }
        let Some(link) = self.link.as_mut() else {
            return false;
        };
        let refused = match link.step(now, due) {
            Ok(None) => return false,
            Ok(Some(Wish::Answer(answer))) => {
                let own = OwnEnd::R {
                    end: answer.end,
                    direct: answer.direct,
                };
                self.handshake.accept(own, answer.first, now).err()
            }
            Ok(Some(Wish::Linked(made))) => {
                self.made = Some(*made);
                self.handshake.linked().err()
            }
            Err(refusal) => {
                self.refusal = Some(refusal);
                None
            }
        };
        if let Some(misuse) = refused {
            self.refusal = Some(Refusal::new(Diagnosis::INTERNAL_ERROR, misuse));
        }
        self.answer(now);
        true
    }

    /// What a link has to be waited for: a descriptor with something to read, and the moment in any case.
    pub fn link_waits(&self) -> Option<(RawFd, Option<Duration>)> {
        self.link.as_ref()?.waits()
    }

    /// SMC-R: whether the client's Confirm has come.
    pub fn is_confirmed(&self) -> bool {
        self.link.as_ref().is_some_and(ServerLink::is_confirmed)
    }

    /// What to decline with when the time is over and the client still does not know the key of the buffer.
    pub fn late_diagnosis(&self) -> Option<Diagnosis> {
        self.link_waits().map(|_| Diagnosis::BUFFER_REGISTRATION)
    }

    fn confirmed(&mut self, confirmed: &Confirmed) {
        match (confirmed.peer, self.link.as_mut()) {
            (PeerEnd::R(peer), Some(link)) => link.handle_confirmed(confirmed, peer),
            _ => self.confirmed_memory(confirmed),
        }
    }

    /// The Confirm must name the memory that came with the Go.
    fn confirmed_memory(&mut self, confirmed: &Confirmed) {
        let (Some(Ok(client)), Some(offered), Some(group)) =
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
        // A client that confirms has mapped this end's memory.
        if let Err(refused) = offered.own.dmb.keep(&offered.own.fd) {
            let text = refused.to_string();
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
            far: Far::Memory {
                peer: client.engine,
            },
        };
        self.made = Some((Endpoint::new(buffers, group), established));
    }

    /// Lets go of what nobody will use any more; an endpoint that was made stays.
    pub fn release(&mut self) {
        self.client = None;
        self.own = None;
        self.offered = None;
        self.group = None;
        self.link = None;
    }

    fn end(&mut self, outcome: Outcome) {
        if let (
            Outcome::Declined(Declined {
                out_of_sync: true, ..
            }),
            Some(link),
        ) = (&outcome, &self.link)
        {
            link.handle_out_of_sync();
        }
        self.release();
        if !matches!(outcome, Outcome::Established(_)) {
            self.made = None;
        }
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

    /// The time for the whole set-up is over: it fails, unless all is said already.
    pub fn give_up(&mut self) {
        self.handshake.handle_timeout(Duration::MAX);
        self.advance(Duration::MAX);
        if self.ended.is_none() {
            self.release();
            let text = "the set-up was not done in time".to_owned();
            self.ended = Some(Ended::Failed { text });
        }
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
    fn attach(
        engine: &Engine,
        frame: Frame,
        fds: Vec<OwnedFd>,
        witness: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<Self, Refusal> {
        let Frame::Go {
            engine: client,
            token,
            known_link,
            size,
        } = frame
        else {
            return Err(Incompatible::NotDue.into());
        };
        let [memory, bell] = exactly(fds)?;
        let dmb = Dmb::attach(memory, size.bytes() as usize)?;
        let known = engine.join(GroupKey {
            peer: client,
            side: Side::Server,
            link_id: known_link,
        });
        let contact = known.map_or_else(
            || Contact::First {
                bell,
                witness: witness(),
            },
            Contact::Known,
        );
        Ok(Self {
            engine: client,
            token,
            size,
            dmb,
            contact: Some(contact),
        })
    }
}

fn make_memory(options: Options) -> std::io::Result<OwnMemory> {
    let own = OwnMemory::new(options)?;
    own.dmb.header(Side::Server).initialise();
    Ok(own)
}

/// A new link group with the client, and the own bell to hand over.
fn first_contact(
    engine: &Engine,
    client: EngineId,
    bell: OwnedFd,
    witness: Option<OwnedFd>,
) -> Result<(Membership, OwnedFd), Refusal> {
    let peer_bell = Bell::check(bell)?;
    let own_bell = Bell::create()?;
    let to_send = own_bell.try_clone()?;
    let parts = Parts {
        own_bell,
        peer_bell,
        witness,
    };
    Ok((
        engine.first_contact(client, Side::Server, None, parts)?,
        to_send,
    ))
}
