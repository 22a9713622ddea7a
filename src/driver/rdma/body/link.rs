//! The link of a group: from the connect to the end, and the keys that both ends tell each other.

use std::io;
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

use super::{Body, Peer};
use crate::driver::rdma::place::KeyState;
use crate::driver::rdma::standing::Wakes;
use crate::driver::rdma::{Identity, Side};
use crate::fabric::rdma::{Connecting, HEAD_LEN, Remote};
use crate::proto::link::{Cause, KeyAnswer, Link, LinkEvent};
use crate::wire::clc::SmcR;
use crate::wire::llc::Key;

impl Body {
    /// Begins to connect the pair to that of `peer`, with this MTU. [`Self::connected`] must follow the call.
    ///
    /// # Errors
    /// Those of the pair; `AlreadyExists`: it is connected, or dead.
    pub(in crate::driver::rdma) fn connecting(
        &mut self,
        peer: &SmcR,
        who: Identity,
        (mtu, direct): (u8, bool),
    ) -> io::Result<Connecting> {
        if self.peer.is_some() || self.standing.is_dead() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.peer = Some(Peer {
            who,
            gid: peer.gid,
            pair: peer.qp_number,
        });
        self.pair.connecting(&Remote {
            gid: peer.gid.0,
            number: peer.qp_number.get(),
            first_packet: peer.psn.get(),
            mtu,
            direct,
        })
    }

    /// The pair is connected: begins with the link.
    ///
    /// # Errors
    /// Those of the pair; `NotConnected`: the group is dead.
    pub(in crate::driver::rdma) fn connected(&mut self, now: Duration) -> io::Result<()> {
        if self.standing.is_dead() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.link = Some(match self.side {
            Side::Client => Link::client(self.own, now),
            Side::Server => {
                self.pair.ready_to_send()?;
                self.sends = true;
                Link::server(self.own, NonZeroU8::MIN, now)
            }
        });
        Ok(())
    }

    /// Tells the peer the key of a place, unless it knows it.
    ///
    /// # Errors
    /// `NotConnected`: the link is not up.
    pub(in crate::driver::rdma) fn tell_key(
        &mut self,
        token: NonZeroU32,
        now: Duration,
    ) -> io::Result<()> {
        let gone = io::ErrorKind::NotConnected;
        let member = self.members.get_mut(&token).ok_or(gone)?;
        let link = self.link.as_mut().ok_or(gone)?;
        if member.rmb.known {
            member.key = KeyState::Confirmed;
            return Ok(());
        }
        member.key = KeyState::Waiting;
        member.is_known = true;
        let key = Key {
            rkey: member.rmb.key(),
            address: member.rmb.memory.address(),
        };
        link.confirm_key(key, now).map_err(|_| gone.into())
    }

    /// Sends what the link has to say, and does what it tells.
    pub(super) fn pump(&mut self, wakes: &mut Wakes<'_>, now: Duration) {
        while let Some(event) = self.link.as_mut().and_then(Link::poll_event) {
            self.handle_event(event, wakes, now);
        }
        if let Err(cause) = self.send_messages() {
            self.break_down(cause, wakes, now);
        }
    }

    fn handle_event(&mut self, event: LinkEvent, wakes: &mut Wakes<'_>, now: Duration) {
        match event {
            LinkEvent::Confirmable => self.confirm(now),
            LinkEvent::Up => self.members.values().for_each(|one| one.tell_set_up()),
            LinkEvent::KeyAnswered { key, answer } => self.key_answered(key.rkey, answer),
            LinkEvent::KeyDeleted(key) => self.pool.forgotten(key),
            LinkEvent::Down(cause) => self.die(cause, wakes, now),
        }
    }

    /// The server has asked.
    fn confirm(&mut self, now: Duration) {
        let ready = self.pair.ready_to_send().is_ok();
        self.sends |= ready;
        let Some(link) = &mut self.link else {
            return;
        };
        if !ready || link.confirm(now).is_err() {
            link.handle_path_lost();
        }
    }

    fn key_answered(&mut self, key: u32, answer: KeyAnswer) {
        let mut members = self.members.values_mut();
        if let Some(member) = members.find(|member| member.rmb.key() == key) {
            member.rmb.known = answer == KeyAnswer::Confirmed;
            member.key = match answer {
                KeyAnswer::Confirmed => KeyState::Confirmed,
                KeyAnswer::Refused { .. } => KeyState::Refused,
                KeyAnswer::Silent => KeyState::Silent,
            };
            member.tell_set_up();
        }
    }

    /// Sends as many messages as there are places for; the others stay with the link, which counts them.
    fn send_messages(&mut self) -> Result<(), Cause> {
        let Some(link) = self.link.as_mut().filter(|_| self.sends && !self.is_broken) else {
            return Ok(());
        };
        while self.queue.has_place()
            && let Some(message) = link.poll_transmit()
        {
            let bytes = message.encode();
            debug_assert!(bytes.len() <= HEAD_LEN, "{message:?}");
            let posted = self.pair.post(&[], &bytes, self.queue.next_id(), true);
            posted.map_err(|_| Cause::PathLost)?;
            self.queue.posted(1, true, None);
        }
        Ok(())
    }
}
