//! The machine of one link.

use std::collections::VecDeque;
use std::num::NonZeroU8;
use std::time::Duration;

use super::event::{Cause, KeyAnswer, LinkEvent, Misbehaviour};
use super::keys::{Flow, Flows, PeerKeys};
use crate::proto::error::ApiMisuse;
use crate::proto::handshake::Side;
use crate::wire::clc::{Few, Gid, Mac, U24, Version};
use crate::wire::llc::{
    AddLink, Batch, ConfirmLink, ConfirmRkey, DeleteLink, DeleteReason, DeleteRkey, Doomed, Key,
    KeyTurn, Limits, Message, NoEyecatcher, OtherKeys, RejectReason, ReqAddLink, TestLink, Turn,
};

/// How long a question waits for its answer (kernel 6.12).
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client waits for the first CONFIRM_LINK (kernel 6.12).
pub const CONFIRM_WAIT: Duration = Duration::from_secs(4);
/// How long a server waits with its CONFIRM_LINK: the kernel's client throws away what comes before it has returned from
/// sending its CLC Confirm.
pub const CONFIRM_DELAY: Duration = Duration::from_millis(2);
/// When a server asks once more, in case the first was thrown away. A second CONFIRM_LINK harms nobody.
pub const CONFIRM_REPEAT: Duration = Duration::from_secs(1);
/// How many messages may wait to be sent before a peer's further questions are too many: the kernel has as many places
/// to send from, and asks one question at a time of each kind.
pub const MAX_PENDING: usize = 16;

/// Our end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnLink {
    /// The MAC of the port.
    pub mac: Mac,
    /// The GID of the port.
    pub gid: Gid,
    /// The queue pair.
    pub qp_number: U24,
    /// What we call the link: for people.
    pub user_id: u32,
    /// The version of the group, and what it may have.
    pub limits: Limits,
    /// How long nothing may be heard before the peer is asked; `None` never asks.
    pub test_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Client: the server's CONFIRM_LINK is due by then.
    Asked(Duration),
    /// Client: the caller has to confirm.
    Confirmable,
    /// Server: to ask then, for the first or the last time.
    Asking { at: Duration, last: bool },
    /// Server: asked for the last time; the answer is due by then.
    Waiting(Duration),
    /// Connections may use the link.
    Up(Pulse),
    /// Server: asked by the client to end it for this reason; its answer to our request is due by then.
    Ending(DeleteReason, Duration),
    /// The end.
    Down,
}

/// What is known of the peer's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pulse {
    /// Last heard of then.
    Heard(Duration),
    /// Asked then, and not heard of since.
    Tested(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// One link, from its first CONFIRM_LINK to its end. See the [module](super) for how to drive it.
#[derive(Debug)]
pub struct Link {
    role: Role,
    own: OwnLink,
    /// A client learns it from the server.
    number: Option<NonZeroU8>,
    state: State,
    peer_keys: PeerKeys,
    flows: Flows,
    /// When the answer to the first of `flows` is due.
    flow_deadline: Option<Duration>,
    transmit: VecDeque<Message>,
    events: VecDeque<LinkEvent>,
}

impl Link {
    /// The client's machine, made before it sends its CLC Confirm.
    #[must_use]
    pub fn client(own: OwnLink, now: Duration) -> Self {
        Self::new(Role::Client, own, None, State::Asked(now + CONFIRM_WAIT))
    }

    /// The server's machine of link `number`, made when the CLC Confirm has come and the queue pair is ready to send.
    #[must_use]
    pub fn server(own: OwnLink, number: NonZeroU8, now: Duration) -> Self {
        let at = now + CONFIRM_DELAY;
        let state = State::Asking { at, last: false };
        Self::new(Role::Server, own, Some(number), state)
    }

    fn new(role: Role, own: OwnLink, number: Option<NonZeroU8>, state: State) -> Self {
        Self {
            role,
            own,
            number,
            state,
            peer_keys: PeerKeys::default(),
            flows: Flows::default(),
            flow_deadline: None,
            transmit: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The number of the link; a client has none before the server has asked.
    #[must_use]
    pub const fn number(&self) -> Option<NonZeroU8> {
        self.number
    }

    /// Whether connections may use the link.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Where the peer's buffer with this key starts; `None` when the key is unknown, or was taken back.
    #[must_use]
    pub fn peer_address(&self, rkey: u32) -> Option<u64> {
        self.peer_keys.address(rkey)
    }

    /// How many keys of the peer are known.
    #[must_use]
    pub fn peer_keys(&self) -> usize {
        self.peer_keys.len()
    }

    /// Takes in a message that came on this link. What is out of place is passed over, as the kernel does; what is
    /// against the rules ends the group.
    pub fn handle_message(&mut self, message: &Message, now: Duration) {
        if self.state == State::Down {
            return;
        }
        self.handle_heard(now);
        if message.version() != self.version() {
            return self.misbehaved(Misbehaviour::OtherVersion);
        }
        match message {
            Message::ConfirmLink(message) => self.confirm_link(message, now),
            Message::AddLink(message) => self.add_link(message),
            Message::DeleteLink(message) => self.delete_link(message, now),
            Message::ReqAddLink(message) => self.req_add_link(message),
            Message::ConfirmRkey(message) => self.confirm_rkey(message, now),
            Message::DeleteRkey(message) => self.delete_rkey(message, now),
            Message::TestLink(message) => self.test_link(message),
            // Parts of dialogues that a group of one link does not begin.
            Message::AddLinkCont(_) | Message::ConfirmRkeyCont(_) => {}
        }
    }

    /// Something else came on this link, a CDC: the peer lives.
    pub fn handle_heard(&mut self, now: Duration) {
        if let State::Up(pulse) = &mut self.state {
            *pulse = Pulse::Heard(now);
        }
    }

    /// The queue pair, the port or the device is broken: nothing can be sent any more.
    pub fn handle_path_lost(&mut self) {
        self.transmit.clear();
        self.down(Cause::PathLost);
    }

    /// Does what is due. Early and repeated calls do nothing.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.state {
            State::Asked(due) | State::Waiting(due) if due <= now => self.down(Cause::Unconfirmed),
            State::Asking { at, last } if at <= now => {
                self.send_confirm_link(Turn::Request);
                self.state = if last {
                    State::Waiting(now + RESPONSE_TIMEOUT)
                } else {
                    let at = now + CONFIRM_REPEAT;
                    State::Asking { at, last: true }
                };
            }
            State::Up(Pulse::Tested(then)) if then + RESPONSE_TIMEOUT <= now => {
                self.down(Cause::Silent);
            }
            State::Up(Pulse::Heard(then))
                if self.own.test_after.is_some_and(|after| then + after <= now) =>
            {
                let version = self.version();
                self.transmit.push_back(Message::TestLink(TestLink {
                    version,
                    turn: Turn::Request,
                    user_data: [0; 16],
                }));
                self.state = State::Up(Pulse::Tested(now));
            }
            State::Ending(reason, due) if due <= now => self.ended(Side::Peer, reason),
            _ => {}
        }
        if self.flow_deadline.is_some_and(|due| due <= now) {
            self.flow_ended(KeyAnswer::Silent, now);
        }
    }

    /// Client: the queue pair is ready to send and the buffer registered. Answers the server; the link is up.
    ///
    /// # Errors
    /// [`ApiMisuse`] unless [`LinkEvent::Confirmable`] was the last event.
    pub fn confirm(&mut self, now: Duration) -> Result<(), ApiMisuse> {
        if self.state != State::Confirmable {
            return Err(ApiMisuse {
                call: "confirm",
                reason: "the server has not asked, or was answered",
            });
        }
        self.send_confirm_link(Turn::Response);
        self.up(now);
        Ok(())
    }

    /// Adds a key that the peer told in its CLC Accept or Confirm. Returns whether there was room.
    pub fn learn_key(&mut self, key: Key) -> bool {
        self.peer_keys.learn(key)
    }

    /// Tells the peer a key of ours, after what was told before; [`LinkEvent::KeyAnswered`] follows.
    ///
    /// # Errors
    /// [`ApiMisuse`] unless the link is up.
    pub fn confirm_key(&mut self, key: Key, now: Duration) -> Result<(), ApiMisuse> {
        self.begin("confirm_key", Flow::Confirm(key), now)
    }

    /// Takes back a key of ours, after what was told before; [`LinkEvent::KeyDeleted`] follows.
    ///
    /// # Errors
    /// [`ApiMisuse`] unless the link is up.
    pub fn delete_key(&mut self, rkey: u32, now: Duration) -> Result<(), ApiMisuse> {
        self.begin("delete_key", Flow::Delete(rkey), now)
    }

    /// Ends the group for this reason. There is no answer to wait for.
    pub fn end(&mut self, reason: DeleteReason, orderly: bool) {
        if self.state != State::Down {
            self.send_delete(Turn::Request, Doomed::All, orderly, reason);
            self.ended(Side::Us, reason);
        }
    }

    /// The next message to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        self.transmit.pop_front()
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let due = match self.state {
            State::Asked(due) | State::Waiting(due) | State::Ending(_, due) => Some(due),
            State::Asking { at, .. } => Some(at),
            State::Up(Pulse::Tested(then)) => Some(then + RESPONSE_TIMEOUT),
            State::Up(Pulse::Heard(then)) => self.own.test_after.map(|after| then + after),
            State::Confirmable | State::Down => None,
        };
        [due, self.flow_deadline].into_iter().flatten().min()
    }
}

/// What a peer's messages do.
impl Link {
    fn confirm_link(&mut self, message: &ConfirmLink, now: Duration) {
        match (self.role, message.turn, self.state) {
            (Role::Client, Turn::Request, State::Asked(_)) => {
                if self.refuses_eyecatchers(message) {
                    return;
                }
                self.number = Some(message.link);
                self.state = State::Confirmable;
                self.events.push_back(LinkEvent::Confirmable);
            }
            // The server was not sure whether it had asked.
            (Role::Client, Turn::Request, State::Up(_)) if self.number == Some(message.link) => {
                let response = self.confirm_link_message(Turn::Response);
                self.answer(response);
            }
            (
                Role::Server,
                Turn::Response,
                State::Asking { last: true, .. } | State::Waiting(_),
            ) => {
                if self.refuses_eyecatchers(message) {
                    return;
                }
                if self.number != Some(message.link) {
                    return self.misbehaved(Misbehaviour::OtherNumber);
                }
                self.up(now);
            }
            _ => {}
        }
    }

    fn refuses_eyecatchers(&mut self, message: &ConfirmLink) -> bool {
        let uses = message.no_eyecatcher.is_empty();
        if uses {
            self.down(Cause::Eyecatcher);
        }
        uses
    }

    /// A client's wish, and answers to what was not offered, are passed over: a server gives no link besides.
    fn add_link(&mut self, message: &AddLink) {
        if let (Role::Client, AddLink::Offer { link, mtu }) = (self.role, message) {
            let reason = if mtu.is_some() {
                RejectReason::NO_ALTERNATE_PATH
            } else {
                RejectReason::INVALID_MTU
            };
            self.answer(Message::AddLink(link.reject(*mtu, reason)));
        }
    }

    fn req_add_link(&mut self, message: &ReqAddLink) {
        if let (Role::Server, ReqAddLink::Request(_)) = (self.role, message) {
            self.answer(Message::ReqAddLink(ReqAddLink::Response));
        }
    }

    fn confirm_rkey(&mut self, message: &ConfirmRkey, now: Duration) {
        let answer = match message.turn {
            KeyTurn::Request => {
                let turn = if self.peer_keys.learn(message.key) {
                    KeyTurn::Confirmed
                } else {
                    KeyTurn::Refused { retry: true }
                };
                let mut response = message.clone();
                response.turn = turn;
                return self.answer(Message::ConfirmRkey(response));
            }
            KeyTurn::Confirmed => KeyAnswer::Confirmed,
            KeyTurn::Refused { retry } => KeyAnswer::Refused { retry },
        };
        // An answer that is late is to an earlier question.
        if self.flows.current() == Some(Flow::Confirm(message.key)) {
            self.flow_ended(answer, now);
        }
    }

    fn delete_rkey(&mut self, message: &DeleteRkey, now: Duration) {
        match message {
            DeleteRkey::RequestV1(keys) => {
                let result = self.peer_keys.forget_v1(keys);
                let keys = keys.clone();
                self.answer(Message::DeleteRkey(DeleteRkey::ResponseV1 { keys, result }));
            }
            DeleteRkey::RequestV2(keys) => {
                let result = self.peer_keys.forget_v2(keys);
                let count = keys.len() as u8; // of 255 at most
                self.answer(Message::DeleteRkey(DeleteRkey::ResponseV2 {
                    count,
                    result,
                }));
            }
            // Whether the key was known does not matter: it is not any more.
            DeleteRkey::ResponseV1 { .. } | DeleteRkey::ResponseV2 { .. } => {
                if self.flows.is_deleted() {
                    self.flow_ended(KeyAnswer::Confirmed, now);
                }
            }
        }
    }

    fn test_link(&mut self, message: &TestLink) {
        if message.turn == Turn::Request {
            let turn = Turn::Response;
            self.answer(Message::TestLink(TestLink { turn, ..*message }));
        }
    }

    fn delete_link(&mut self, message: &DeleteLink, now: Duration) {
        let DeleteLink {
            doomed,
            orderly,
            reason,
            ..
        } = *message;
        match (self.role, message.turn, doomed) {
            (_, Turn::Response, _) => {
                if let State::Ending(reason, _) = self.state {
                    self.ended(Side::Peer, reason);
                }
            }
            (Role::Client, Turn::Request, Doomed::All) => self.ended(Side::Peer, reason),
            // The kernel's server says the same before it goes.
            (Role::Server, Turn::Request, Doomed::All) => {
                self.send_delete(Turn::Request, doomed, true, reason);
                self.ended(Side::Peer, reason);
            }
            (Role::Client, Turn::Request, Doomed::Link(number)) => {
                let known = self.number == Some(number);
                let result = if known {
                    DeleteReason::DONE
                } else {
                    DeleteReason::UNKNOWN_LINK
                };
                let response = self.delete_message(Turn::Response, doomed, orderly, result);
                self.answer(response);
                if known {
                    self.ended(Side::Peer, reason);
                }
            }
            // The server performs what a client wants by asking for it. It is silent about a link that it does not
            // have, and about one that it is about to end.
            (Role::Server, Turn::Request, Doomed::Link(number)) => {
                let known = self.number == Some(number);
                if known && !matches!(self.state, State::Ending(..)) {
                    self.send_delete(Turn::Request, doomed, orderly, reason);
                    self.state = State::Ending(reason, now + RESPONSE_TIMEOUT);
                }
            }
        }
    }
}

/// What goes out, and how it ends.
impl Link {
    const fn version(&self) -> Version {
        match self.own.limits {
            Limits::V1 { .. } => Version::V1,
            Limits::V2 { .. } => Version::V2,
        }
    }

    /// Queues an answer, unless the peer asks without taking any.
    fn answer(&mut self, message: Message) {
        if self.transmit.len() < MAX_PENDING {
            self.transmit.push_back(message);
        } else {
            self.misbehaved(Misbehaviour::TooManyQuestions);
        }
    }

    fn confirm_link_message(&self, turn: Turn) -> Message {
        Message::ConfirmLink(ConfirmLink {
            turn,
            no_eyecatcher: NoEyecatcher::all(),
            mac: self.own.mac,
            gid: self.own.gid,
            qp_number: self.own.qp_number,
            link: self.number.unwrap_or(NonZeroU8::MIN), // known whenever this is sent
            user_id: self.own.user_id,
            limits: self.own.limits,
        })
    }

    fn send_confirm_link(&mut self, turn: Turn) {
        let message = self.confirm_link_message(turn);
        self.transmit.push_back(message);
    }

    fn delete_message(
        &self,
        turn: Turn,
        doomed: Doomed,
        orderly: bool,
        reason: DeleteReason,
    ) -> Message {
        Message::DeleteLink(DeleteLink {
            version: self.version(),
            turn,
            doomed,
            orderly,
            reason,
        })
    }

    fn send_delete(&mut self, turn: Turn, doomed: Doomed, orderly: bool, reason: DeleteReason) {
        let message = self.delete_message(turn, doomed, orderly, reason);
        self.transmit.push_back(message);
    }

    fn begin(&mut self, call: &'static str, flow: Flow, now: Duration) -> Result<(), ApiMisuse> {
        if !self.is_up() {
            let reason = "the link is not up";
            return Err(ApiMisuse { call, reason });
        }
        if let Some(flow) = self.flows.add(flow) {
            self.ask(flow, now);
        }
        Ok(())
    }

    fn ask(&mut self, flow: Flow, now: Duration) {
        let message = match (flow, self.version()) {
            (Flow::Confirm(key), version) => Message::ConfirmRkey(ConfirmRkey {
                turn: KeyTurn::Request,
                key,
                others: match version {
                    Version::V1 => OtherKeys::V1(Batch::default()),
                    Version::V2 => OtherKeys::V2(Few::default()),
                },
            }),
            (Flow::Delete(rkey), Version::V1) => {
                Message::DeleteRkey(DeleteRkey::RequestV1(Few::one(rkey)))
            }
            (Flow::Delete(rkey), Version::V2) => {
                Message::DeleteRkey(DeleteRkey::RequestV2(Few::one(rkey)))
            }
        };
        self.transmit.push_back(message);
        self.flow_deadline = Some(now + RESPONSE_TIMEOUT);
    }

    /// Tells how the flow under way has ended, and begins the next.
    fn flow_ended(&mut self, answer: KeyAnswer, now: Duration) {
        self.flow_deadline = None;
        let mut ended = Vec::from_iter(self.flows.finish(answer));
        if answer == KeyAnswer::Silent {
            // Who waits for its turn has waited already: with each for itself the last one would wait for all.
            ended.extend(self.flows.give_up_questions());
        }
        let events = ended.into_iter().map(|flow| flow.ended(answer));
        self.events.extend(events);
        if let Some(next) = self.flows.current() {
            self.ask(next, now);
        }
    }

    fn up(&mut self, now: Duration) {
        self.state = State::Up(Pulse::Heard(now));
        self.events.push_back(LinkEvent::Up);
    }

    fn misbehaved(&mut self, how: Misbehaviour) {
        // What waits is not taken anyway; the reason is told in its place.
        self.transmit.clear();
        self.send_delete(
            Turn::Request,
            Doomed::All,
            false,
            DeleteReason::PROTOCOL_VIOLATION,
        );
        self.down(Cause::Misbehaved(how));
    }

    fn ended(&mut self, by: Side, reason: DeleteReason) {
        self.down(Cause::Ended { by, reason });
    }

    fn down(&mut self, cause: Cause) {
        if self.state != State::Down {
            self.state = State::Down;
            self.flow_deadline = None;
            self.events.push_back(LinkEvent::Down(cause));
        }
    }
}
