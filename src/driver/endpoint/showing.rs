//! What an endpoint shows of itself in the status page.
//!
//! The row's words are this endpoint's alone to write. Each is stored behind those that it follows from, which are those in
//! front of it in the row: SYNC POINT with `status::read`, which loads them the other way round.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use super::{Ending, Endpoint};
use crate::mem::header::Side;
use crate::proto::close;
use crate::wire::SizeCode;
use crate::wire::status::{Kind, Role, Row, State, TOTALS_IN_ROW, Totals, row};

use super::super::status::{self, Status};

impl Endpoint {
    /// Shows this end in `status` from now on, until it drops. Its TCP connection has these addresses.
    pub fn show(
        &mut self,
        status: &Arc<Status>,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) {
        let key = self.medium.key();
        let role = match key.side {
            Side::Server => Role::Server,
            Side::Client => Role::Client,
        };
        let size = |bytes: u32| {
            (0..=SizeCode::MAX.code())
                .filter_map(SizeCode::new)
                .find(|code| code.bytes() == bytes)
        };
        let row = Row {
            local,
            remote,
            link_group: key.link_id,
            own_size: size(self.own_size.bytes()),
            peer_size: size(self.peer_size.bytes()),
            opened: status::now(),
            engine: key.peer,
            ..Row::new(Kind::Connection, role, self.path(), State::Active)
        };
        self.place = Some(status.place(&row));
        self.show_all();
    }

    /// Bytes were written.
    #[inline]
    pub(super) fn show_written(&self) {
        if let Some(words) = self.place.as_ref().and_then(|place| place.words()) {
            let stats = self.connection.stats();
            words[row::SENT].store(stats.bytes_sent, Release);
            words[row::ACKNOWLEDGED].store(stats.bytes_acknowledged, Release);
            words[row::WRITES].store(stats.writes, Release);
        }
    }

    /// Bytes were read.
    #[inline]
    pub(super) fn show_read(&self) {
        if let Some(words) = self.place.as_ref().and_then(|place| place.words()) {
            let stats = self.connection.stats();
            words[row::RECEIVED].store(stats.bytes_received, Release);
            words[row::READ].store(stats.bytes_read, Release);
            words[row::READS].store(stats.reads, Release);
        }
    }

    pub(super) fn show_backlog(&self) {
        self.show_word(row::BACKLOG, self.backlog.len() as u64);
    }

    pub(super) fn show_wakeups(&self) {
        self.show_word(row::WAKEUPS_SENT, self.counters.wakeups_sent);
    }

    pub(super) fn show_spins(&self) {
        self.show_word(row::SPINS, self.counters.spins);
    }

    fn show_word(&self, at: usize, value: u64) {
        if let Some(words) = self.place.as_ref().and_then(|place| place.words()) {
            words[at].store(value, Release);
        }
    }

    /// Something has happened that does not happen with each byte.
    pub(super) fn show_all(&self) {
        let Some(words) = self.place.as_ref().and_then(|place| place.words()) else {
            return;
        };
        let stats = self.connection.stats();
        words[row::SENT].store(stats.bytes_sent, Release);
        words[row::ACKNOWLEDGED].store(stats.bytes_acknowledged, Release);
        words[row::RECEIVED].store(stats.bytes_received, Release);
        words[row::READ].store(stats.bytes_read, Release);
        for (at, value) in TOTALS_IN_ROW.into_iter().zip(self.totals()) {
            words[at].store(value, Release);
        }
        words[row::BACKLOG].store(self.backlog.len() as u64, Release);
        words[row::STATE].store(self.state() as u64, Release);
    }

    /// The row is free again.
    pub(super) fn leave(&mut self) {
        let totals = self.totals();
        if let Some(place) = self.place.take() {
            place.give_back(totals);
        }
    }

    fn totals(&self) -> Totals {
        let counters = self.counters();
        [
            counters.stats.bytes_sent,
            counters.stats.bytes_received,
            counters.stats.writes,
            counters.stats.reads,
            counters.wakeups_sent,
            counters.wakeups_received,
            counters.spins,
            counters.stalls_write,
            counters.stalls_read,
        ]
    }

    fn state(&self) -> State {
        if self.ending == Ending::Closed {
            return State::Closed;
        }
        match self.connection.state() {
            close::State::Active => State::Active,
            close::State::PeerCloseWait1 => State::PeerCloseWait1,
            close::State::PeerCloseWait2 => State::PeerCloseWait2,
            close::State::AppCloseWait1 => State::AppCloseWait1,
            close::State::AppCloseWait2 => State::AppCloseWait2,
            close::State::AppFinCloseWait => State::AppFinCloseWait,
            close::State::PeerFinCloseWait => State::PeerFinCloseWait,
            close::State::ProcessAbort => State::ProcessAbort,
            close::State::PeerAbortWait => State::PeerAbortWait,
            close::State::Closed => State::Closed,
        }
    }
}
