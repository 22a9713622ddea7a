//! Keys: those that the peer lets us use, and ours that it is to learn or to forget.

use std::collections::{BTreeMap, VecDeque};

use super::event::KeyAnswer;
use crate::wire::clc::Few;
use crate::wire::llc::{DeletedV1, DeletedV2, Key};

/// How many keys of the peer a group knows, as many as it can have connections. Linux has as many places.
pub const MAX_KEYS: usize = 255;

/// The peer's buffers that may be written, by key.
#[derive(Debug, Default)]
pub(super) struct PeerKeys(BTreeMap<u32, u64>);

impl PeerKeys {
    /// Learns a key; one that is known takes the new address. Returns whether there was room.
    pub(super) fn learn(&mut self, key: Key) -> bool {
        let room = self.0.len() < MAX_KEYS || self.0.contains_key(&key.rkey);
        if room {
            self.0.insert(key.rkey, key.address);
        }
        room
    }

    pub(super) fn address(&self, rkey: u32) -> Option<u64> {
        self.0.get(&rkey).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets keys, and says which were unknown as version 1 does: bit 7 for the first of at most eight.
    pub(super) fn forget_v1(&mut self, keys: &Few<u32, 8>) -> DeletedV1 {
        let unknown = (0..).zip(keys.iter()).fold(0u8, |mask, (at, rkey)| {
            if self.0.remove(rkey).is_some() {
                mask
            } else {
                mask | 0x80 >> at
            }
        });
        match unknown {
            0 => DeletedV1::All,
            mask => DeletedV1::Unknown(mask),
        }
    }

    /// Forgets keys, and says how many were unknown.
    pub(super) fn forget_v2(&mut self, keys: &Few<u32, 255>) -> DeletedV2 {
        let unknown = keys
            .iter()
            .filter(|rkey| self.0.remove(rkey).is_none())
            .count();
        match unknown {
            0 => DeletedV2::All,
            number => DeletedV2::Unknown(number as u8), // of 255 at most
        }
    }
}

/// What the peer is to do with a key of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Confirm(Key),
    Delete(u32),
}

/// The answer to a DELETE_RKEY that was given up. No answer names a key: Linux clears them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Late {
    #[default]
    None,
    /// The next answer is this one, and not that of the flow under way.
    Expected,
    /// It came during the flow that is under way; if that gets none, it was its own.
    Came,
}

/// The flows of our keys, one after the other, as the kernel has it.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// The first is the one that is under way.
    queue: VecDeque<Flow>,
    late: Late,
}

impl Flows {
    /// Queues a flow; returns it when it can begin at once.
    pub(super) fn add(&mut self, flow: Flow) -> Option<Flow> {
        self.queue.push_back(flow);
        (self.queue.len() == 1).then_some(flow)
    }

    /// The flow that is under way.
    pub(super) fn current(&self) -> Option<Flow> {
        self.queue.front().copied()
    }

    /// Whether the answer to a DELETE_RKEY that has come is that of the flow under way.
    pub(super) fn is_deleted(&mut self) -> bool {
        if self.late == Late::Expected {
            self.late = Late::Came;
            return false;
        }
        matches!(self.current(), Some(Flow::Delete(_)))
    }

    /// Ends the flow that is under way with this answer, and returns it.
    pub(super) fn finish(&mut self, answer: KeyAnswer) -> Option<Flow> {
        let ended = self.queue.pop_front();
        let is_given_up = answer == KeyAnswer::Silent && matches!(ended, Some(Flow::Delete(_)));
        self.late = match self.late {
            Late::Came => Late::None,
            _ if is_given_up => Late::Expected,
            late => late,
        };
        ended
    }

    /// Ends the questions that wait behind the flow that is under way, and returns them. Keys are taken back all the same.
    pub(super) fn give_up_questions(&mut self) -> VecDeque<Flow> {
        let is_question = |flow: &Flow| matches!(flow, Flow::Confirm(_));
        let all = std::mem::take(&mut self.queue);
        let (questions, rest) = all.into_iter().partition(is_question);
        self.queue = rest;
        questions
    }
}

impl Flow {
    /// The event of a flow that has ended.
    pub(super) const fn ended(self, answer: KeyAnswer) -> super::LinkEvent {
        match self {
            Self::Confirm(key) => super::LinkEvent::KeyAnswered { key, answer },
            Self::Delete(rkey) => super::LinkEvent::KeyDeleted(rkey),
        }
    }
}
