//! A place in a link group: what a connection has before it knows the peer's end.

use std::io;
use std::num::{NonZeroU8, NonZeroU32};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Identity;
use super::group::{Group, LinkState};
use super::lane::Lane;
use super::member::Seen;
use super::nudge::Nudge;
use super::pool::Ring;
use crate::fabric::rdma::Access;
use crate::mem::header::Header;
use crate::wire::SizeCode;
use crate::wire::clc::{Mtu, SmcR, U24};

/// Whether the peer knows the key of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It was told, and has not answered yet.
    Waiting,
    /// It knows it.
    Confirmed,
    /// It has no room for it, or does not want it.
    Refused,
    /// It has not answered in time, to this or to a question before it; or the link is down.
    Silent,
}

/// A receive buffer, registered, and a token. Dropping it gives it back; the peer is asked to forget a key that it may know.
#[derive(Debug)]
pub struct Place {
    group: Arc<Group>,
    token: NonZeroU32,
    header: Header,
    rmb: Ring,
    news: Arc<Nudge>,
    /// The send ring, the size of the peer's, and what is seen of both.
    prepared: Option<(Ring, SizeCode, Arc<Seen>)>,
    is_attached: bool,
}

impl Place {
    pub(super) fn new(
        group: Arc<Group>,
        token: NonZeroU32,
        header: Header,
        rmb: Ring,
        news: Arc<Nudge>,
    ) -> Self {
        Self {
            group,
            token,
            header,
            rmb,
            news,
            prepared: None,
            is_attached: false,
        }
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Becomes readable when [`Self::link`] or [`Self::key_state`] may have changed; asking either makes it unreadable. Each
    /// place has its own, so that several set-ups of a group can wait at once.
    pub fn news_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// How the link of the group stands.
    pub fn link(&self) -> LinkState {
        self.take_news();
        self.group.link()
    }

    /// This end, for the Accept or the Confirm, which names `mtu`. From here on the peer may know the buffer.
    pub fn end(&self, mtu: Mtu) -> SmcR {
        let port = &self.group.port;
        port.with(&self.group, |body, _, _| body.tells(self.token));
        let (pair, packet) = self.group.pair;
        // Both are numbers of 24 bits by the words of the device.
        let u24 = |number: u32| U24::new(number & 0xff_ffff).unwrap_or_default();
        SmcR {
            peer_id: port.peer_id(),
            gid: port.own().gid,
            mac: port.own().mac,
            qp_number: u24(pair),
            rkey: self.rmb.key,
            rmbe_index: NonZeroU8::MIN,
            alert_token: self.token,
            size: self.rmb.size,
            mtu,
            rmb_address: self.rmb.address,
            psn: u24(packet),
        }
    }

    /// Reuse of a group: tells the peer the key by CONFIRM_RKEY, unless it knows it. To be called before the Accept or the
    /// Confirm goes out, which waits for [`Self::key_state`].
    ///
    /// # Errors
    /// `NotConnected`: the link is not up.
    pub fn tell_key(&self) -> io::Result<()> {
        let port = &self.group.port;
        let told = port.with(&self.group, |body, _, now| body.tell_key(self.token, now));
        told.unwrap_or(Err(io::ErrorKind::NotConnected.into()))
    }

    /// What has become of [`Self::tell_key`].
    pub fn key_state(&self) -> KeyState {
        self.take_news();
        let port = &self.group.port;
        let state = port.with(&self.group, |body, _, _| {
            body.member(self.token).map(|member| member.key)
        });
        match state.flatten() {
            Some(state) if !self.group.is_dead() => state,
            _ => KeyState::Silent,
        }
    }

    /// What comes behind this makes the descriptor readable again.
    fn take_news(&self) {
        if self.group.port.is_ours() {
            self.news.take();
        }
    }

    /// What makes [`Self::news_fd`] readable, for others to ring.
    pub fn news(&self) -> Arc<Nudge> {
        Arc::clone(&self.news)
    }

    /// The peer's end is known: takes a send ring of at most `send` bytes for it, while there is still time to decline. The
    /// group is connected.
    ///
    /// # Errors
    /// ENOMEM as for [`Group::place`]; `QuotaExceeded`: the peer has too many keys; `InvalidData`: its buffer lies where none
    /// can be; `NotConnected`: the group is dead, or was not connected.
    pub fn prepare(&mut self, peer: &SmcR, send: SizeCode) -> io::Result<()> {
        self.group.stock(send.min(peer.size), Access::Local)?;
        let port = &self.group.port;
        let prepared = port.with(&self.group, |body, _, _| {
            body.prepare(self.token, peer, send)
        });
        let prepared = prepared.unwrap_or(Err(io::ErrorKind::NotConnected.into()));
        self.keep(prepared, peer)
    }

    /// First contact: connects the group, see [`Group::connect`], and prepares before its first message goes out. The result is
    /// that of [`Self::prepare`].
    ///
    /// # Errors
    /// Those of [`Group::connect`].
    pub fn connect(
        &mut self,
        peer: &SmcR,
        who: Identity,
        direct: bool,
        send: SizeCode,
    ) -> io::Result<io::Result<()>> {
        if let Err(error) = self.group.stock(send.min(peer.size), Access::Local) {
            return Ok(Err(error));
        }
        let token = self.token;
        let prepared = self
            .group
            .connect_with(peer, who, direct, |body| body.prepare(token, peer, send))?;
        Ok(self.keep(prepared, peer))
    }

    fn keep(&mut self, prepared: io::Result<(Ring, Arc<Seen>)>, peer: &SmcR) -> io::Result<()> {
        let (ring, seen) = prepared?;
        self.prepared = Some((ring, peer.size, seen));
        Ok(())
    }

    /// The connection, once [`Self::prepare`] was done. What the peer has already sent is in its header. It sends when the
    /// link is up.
    ///
    /// # Errors
    /// `NotConnected`: the group is dead; `InvalidInput`: nothing was prepared.
    pub fn attach(mut self) -> io::Result<Lane> {
        if self.group.is_dead() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let Some((ring, peer_size, seen)) = self.prepared.take() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let port = &self.group.port;
        port.with(&self.group, |body, _, _| body.attach(self.token));
        self.is_attached = true;
        Ok(Lane::new(
            Arc::clone(&self.group),
            self.token,
            self.header.clone(),
            (self.rmb.clone(), ring, peer_size),
            seen,
        ))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_attached {
            let port = &self.group.port;
            port.with(&self.group, |body, _, now| {
                body.leave(self.token, now);
            });
        }
    }
}
