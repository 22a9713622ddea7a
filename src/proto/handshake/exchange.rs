//! What both machines have in common: messages in and out, events, a deadline.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Declined, Failure, Outcome, Side};
use crate::wire::InvalidMessage;
use crate::wire::clc::{self, Decline, HEADER_LEN, Kind, Message};

/// How long a side waits for each CLC message (kernel 6.12).
pub const CLC_TIMEOUT: Duration = Duration::from_secs(6);

/// The exchange of messages over one TCP connection; `E` are the events of the machine.
#[derive(Debug)]
pub(super) struct Exchange<E> {
    /// The message that is due, besides a Decline; none while the caller has the word.
    due: Option<Kind>,
    received: Vec<u8>,
    /// Bytes of the message that is being received; of its header, as long as no more is known.
    length: usize,
    transmit: VecDeque<Vec<u8>>,
    events: VecDeque<E>,
    deadline: Option<Duration>,
    ended: bool,
}

impl<E: From<Outcome>> Exchange<E> {
    pub(super) fn new() -> Self {
        Self {
            due: None,
            received: Vec::new(),
            length: HEADER_LEN,
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            deadline: None,
            ended: false,
        }
    }

    /// Waits for a message; none is late after `deadline`.
    pub(super) fn wait_for(&mut self, kind: Kind, deadline: Option<Duration>) {
        self.due = Some(kind);
        self.deadline = deadline;
    }

    /// Reads nothing from now on.
    pub(super) fn wait_for_caller(&mut self) {
        self.due = None;
        self.deadline = None;
    }

    /// The last event. Nothing comes after it.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.wait_for_caller();
        self.events.push_back(outcome.into());
        self.ended = true;
    }

    /// Declines, and ends.
    pub(super) fn decline(&mut self, decline: Decline) {
        let Decline {
            diagnosis,
            out_of_sync,
            ..
        } = decline;
        self.send(&Message::Decline(decline));
        self.end(Outcome::Declined(Declined {
            by: Side::Us,
            diagnosis,
            out_of_sync,
        }));
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        if !self.ended {
            self.end(Outcome::Failed(failure));
        }
    }

    pub(super) fn send(&mut self, message: &Message) {
        self.transmit.push_back(message.encode());
    }

    pub(super) fn report(&mut self, event: E) {
        self.events.push_back(event);
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmit.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<E> {
        self.events.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Fails if a message is late. Returns whether it does.
    pub(super) fn handle_timeout(&mut self, now: Duration) -> bool {
        let late = self
            .due
            .filter(|_| self.deadline.is_some_and(|deadline| deadline <= now));
        if let Some(kind) = late {
            self.fail(Failure::TimedOut(kind));
        }
        late.is_some()
    }

    pub(super) fn wanted(&self) -> usize {
        if self.due.is_some() {
            self.length - self.received.len()
        } else {
            0
        }
    }

    /// Takes in bytes; returns a message when it is whole.
    ///
    /// Panics if there are more bytes than `wanted`.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<Message>, InvalidMessage> {
        assert!(bytes.len() <= self.wanted(), "more bytes than were wanted");
        let Some(due) = self.due else { return Ok(None) };
        self.received.extend_from_slice(bytes);
        if self.length == HEADER_LEN
            && let Some(header) = self.received.first_chunk()
        {
            self.length = clc::peek_length(header, due)?;
        }
        if self.received.len() < self.length {
            return Ok(None);
        }
        let message = Message::decode(&self.received)?;
        self.received.clear();
        self.length = HEADER_LEN;
        Ok(Some(message))
    }
}
