//! What comes in and goes out on the link of a group.

use std::time::Duration;

use super::Body;
use crate::driver::rdma::standing::Wakes;
use crate::fabric::rdma::Status;
use crate::proto::link::{Cause, Misbehaviour};
use crate::wire::Received;
use crate::wire::cdc::RdmaCdc;
use crate::wire::llc::{DeleteReason, Key};

impl Body {
    /// A message has come. [`Self::settle`] must follow.
    pub(in crate::driver::rdma) fn handle_received(
        &mut self,
        slot: u32,
        len: u32,
        wakes: &mut Wakes<'_>,
        now: Duration,
    ) {
        self.has_received = true;
        let received = self.pair.received(slot, len);
        let decoded = match received.short() {
            Some(bytes) => Received::decode(bytes),
            None => Received::decode(&received.to_vec()),
        };
        let Some(link) = self.link.as_mut().filter(|_| !self.standing.is_dead()) else {
            return;
        };
        match decoded {
            Ok(Received::Llc(message)) => link.handle_message(&message, now),
            Ok(Received::Unknown(_)) => link.handle_heard(now),
            Ok(Received::Cdc(cdc)) => {
                link.handle_heard(now);
                self.handle_cdc(&cdc, wakes, now);
            }
            Err(invalid) => self.misbehaved(Misbehaviour::Malformed(invalid), wakes, now),
        }
    }

    fn handle_cdc(&mut self, cdc: &RdmaCdc, wakes: &mut Wakes<'_>, now: Duration) {
        if let Some(member) = self.members.get_mut(&cdc.token) {
            member.handle_cdc(cdc, &self.standing, wakes);
            self.part(cdc.token, now);
        }
    }

    /// The posts up to `id` are done. [`Self::settle`] must follow.
    pub(in crate::driver::rdma) fn handle_sent(
        &mut self,
        id: u64,
        wakes: &mut Wakes<'_>,
        now: Duration,
    ) {
        while let Some(carried) = self.queue.done(id) {
            if let Some(carried) = carried
                && let Some(member) = self.members.get_mut(&carried.token)
            {
                member.handle_done(carried.upto, &self.standing, wakes);
                self.part(carried.token, now);
            }
        }
    }

    /// The pair has failed. [`Self::settle`] must follow.
    pub(in crate::driver::rdma) fn handle_failed(
        &mut self,
        status: Status,
        wakes: &mut Wakes<'_>,
        now: Duration,
    ) {
        if status.is_flush() {
            self.is_flushed = true;
        } else {
            self.break_down(Cause::PairFailed(status.text()), wakes, now);
        }
    }

    /// Does what follows from what has come: posts receives again, answers, and sends what has waited.
    pub(in crate::driver::rdma) fn settle(&mut self, wakes: &mut Wakes<'_>, now: Duration) {
        if self.is_flushed && !self.is_broken {
            let cause = Cause::PairFailed(Status(5).text());
            self.break_down(cause, wakes, now);
        }
        if std::mem::take(&mut self.has_received)
            && !self.is_broken
            && self.pair.replenish().is_err()
        {
            self.break_down(Cause::PathLost, wakes, now);
        }
        self.pump(wakes, now);
        self.flush();
        match self.failed.take() {
            Some(Cause::Misbehaved(how)) => self.misbehaved(how, wakes, now),
            Some(cause) => self.break_down(cause, wakes, now),
            None => {}
        }
    }

    /// Sends what connections have to tell, one after the other, while there are places. False: that has failed, and
    /// [`Self::settle`] must follow.
    pub(in crate::driver::rdma) fn flush(&mut self) -> bool {
        let sent = self.send_data();
        self.failed = self.failed.or(sent.err());
        self.failed.is_none()
    }

    fn send_data(&mut self) -> Result<(), Cause> {
        if !self.is_up() || self.is_broken {
            return Ok(());
        }
        while self.queue.has_room()
            && let Some(token) = self.line.pop_front()
        {
            let Some(member) = self.members.get_mut(&token) else {
                continue;
            };
            let is_known = |key: &Key| {
                let address = self
                    .link
                    .as_ref()
                    .and_then(|link| link.peer_address(key.rkey));
                address == Some(key.address)
            };
            if !member.next_key().as_ref().is_none_or(is_known) {
                member.lose_key(&self.standing, &mut Wakes::Ring);
            }
            let is_awaited = !self.line.is_empty() || member.awaits_room();
            let Some(sending) = &mut member.sending else {
                continue;
            };
            let posted = sending.post(&mut *self.pair, &mut self.queue, is_awaited);
            posted.map_err(|_| Cause::PathLost)?;
            sending.is_queued = sending.is_dirty();
            if sending.is_queued {
                self.line.push_back(token);
            }
        }
        Ok(())
    }

    /// The peer has broken a rule: the group ends.
    fn misbehaved(&mut self, how: Misbehaviour, wakes: &mut Wakes<'_>, now: Duration) {
        self.die(how.into(), wakes, now);
        if let Some(link) = &mut self.link {
            link.end(DeleteReason::PROTOCOL_VIOLATION, false);
        }
        self.pump(wakes, now);
    }
}
