//! The server's part of a talk.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::line::{Line, Sent};
use super::{Apart, Ending, Event, Wait};
use crate::driver::Endpoint;
use crate::driver::rdma::TCP_GRACE;
use crate::driver::setup::{Ended, Established, Incompatible, ServerSetup};
use crate::fabric::Stream;
use crate::fabric::shm::{Meeting, Packet, meeting};
use crate::wire::EngineId;
use crate::wire::clc::Diagnosis;

/// How long after its Decline a server looks whether a client that had hung up has given up, and TCP ends as well.
const GRACE: Duration = Duration::from_millis(50);

/// One connection being made, at the end that accepts.
#[derive(Debug)]
pub struct ServerTalk {
    setup: ServerSetup,
    line: Line,
    meeting: Option<Meeting>,
    /// Until when the Go may come, while it is waited for.
    go_until: Option<Duration>,
    /// When all must be done.
    due: Duration,
    /// Until when a client that has hung up the rendezvous connection may end TCP as well, or one that has ended TCP may have its
    /// link come up.
    gone_until: Option<Duration>,
    ending: Option<Ending>,
}

impl ServerTalk {
    /// A talk over `stream` that must be done when `due` comes. Unless [`Self::meet`] follows, a Proposal is awaited: that is
    /// for a client that is known to speak CLC.
    pub fn new(mut setup: ServerSetup, stream: Stream, due: Duration) -> Self {
        setup.set_host(|| stream.host());
        Self {
            setup,
            line: Line::new(stream),
            meeting: None,
            go_until: None,
            due,
            gone_until: None,
            ending: None,
        }
    }

    /// Says Hello to the client that was called; its Go may come until `until`. False when it has gone.
    pub fn meet(&mut self, meeting: Meeting, until: Duration) -> bool {
        let is_there = meeting.send(&self.setup.hello(), &[]).is_ok();
        self.meeting = Some(meeting);
        self.go_until = Some(until.min(self.due));
        is_there
    }

    /// Whom the Proposal names, when it has come before the rendezvous connection: [`Self::meet`] or [`Self::decline`].
    pub fn wants_meeting(&self) -> Option<EngineId> {
        (self.meeting.is_none() && self.setup.wants_go())
            .then(|| self.setup.proposed_engine())
            .flatten()
    }

    /// Declines what was proposed, now or as soon as it is; nothing when the client has the word, or all is over.
    pub fn decline(&mut self, diagnosis: Diagnosis, now: Duration) {
        // An error says that there is nothing to decline any more.
        let _ = self.setup.decline(diagnosis, now);
    }

    /// The client that the Proposal names cannot be met: another way that it offers is taken, or `diagnosis` declines.
    pub fn pass_over_memory(&mut self, diagnosis: Diagnosis, now: Duration) {
        self.setup.pass_over_memory(diagnosis, now);
    }

    /// Goes on as far as possible; `None` when the talk is over.
    pub fn step(&mut self, now: Duration) -> Option<Wait> {
        loop {
            let wait = match (&self.ending, self.go_until) {
                (Some(_), _) => return None,
                (None, Some(until)) => self.take_go(now, until),
                (None, None) => self.exchange(now),
            };
            if wait.is_some() {
                return wait;
            }
        }
    }

    /// Lets go of both sockets, and of memory that nobody will use: whatever was not said yet stays unsaid.
    pub fn release(&mut self) {
        self.setup.release();
        self.line.release();
        self.meeting = None;
        self.ending.get_or_insert_with(Ending::late);
    }

    /// How it has ended, if it has.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The endpoint of an established connection; once.
    pub fn finish(&mut self) -> Option<(Endpoint, Established)> {
        matches!(self.ending, Some(Ending::Setup(Ended::Established)))
            .then(|| self.setup.finish())
            .flatten()
    }

    fn take_go(&mut self, now: Duration, until: Duration) -> Option<Wait> {
        let meeting = self.meeting.as_ref()?;
        let mut packet = meeting.take();
        if let Ok(None) = packet {
            if now < until {
                self.setup.prepare();
                return Some(Wait {
                    events: vec![Event::Readable(meeting.as_fd().as_raw_fd())],
                    until,
                });
            }
            // After this the client cannot send: either its Go is here by now, or it gets an error.
            meeting.stop_listening();
            packet = match meeting.take() {
                Ok(Some(packet)) if packet.is_end() => Ok(None),
                other => other,
            };
        }
        self.go_until = None;
        if self.setup.wants_go() {
            self.take_late_go(packet, now);
        } else {
            self.take_first_go(packet, now);
        }
        None
    }

    /// The Go of a client that proposes once it has sent it, and not before.
    fn take_first_go(&mut self, packet: std::io::Result<Option<Packet>>, now: Duration) {
        match packet {
            // A Go has come, and so will the Proposal.
            Err(_) => self.decline(Diagnosis::OUT_OF_MEMORY, now),
            Ok(None) => self.ending = Some(Ending::Apart(Apart::TimedOut)),
            Ok(Some(packet)) if packet.is_end() => {
                self.ending = Some(Ending::Apart(Apart::Stopped));
            }
            Ok(Some(packet)) => {
                if let Err(incompatible) = self.handle_go(packet, now) {
                    self.ending = Some(Ending::Apart(Apart::Incompatible(incompatible)));
                }
            }
        }
    }

    /// The Go of a client that has proposed already: whatever is wrong is said in the Decline.
    fn take_late_go(&mut self, packet: std::io::Result<Option<Packet>>, now: Duration) {
        match packet {
            Err(_) => self.decline(Diagnosis::OUT_OF_MEMORY, now),
            Ok(None) => self.time_is_up(now),
            Ok(Some(packet)) if packet.is_end() => {
                self.decline(Diagnosis::NO_SMC_D_V2_DEVICE, now);
            }
            Ok(Some(packet)) => {
                if self.handle_go(packet, now).is_err() {
                    self.decline(Diagnosis::VERSION_MISMATCH, now);
                }
            }
        }
    }

    fn handle_go(&mut self, packet: Packet, now: Duration) -> Result<(), Incompatible> {
        let meeting = self.meeting.as_ref();
        let witness = || meeting.and_then(Meeting::witness);
        self.setup
            .handle_go(&packet.bytes, packet.fds, witness, now)
    }

    fn exchange(&mut self, now: Duration) -> Option<Wait> {
        self.send_memory(now);
        match self.line.send(|| self.setup.poll_transmit()) {
            Sent::Part if now >= self.due => {
                self.ending = Some(Ending::late());
                return None;
            }
            Sent::Part => return self.wait(self.line.writable()),
            Sent::Broken => self.setup.handle_bytes(&[], now),
            Sent::All => {}
        }
        if self.setup.ended().is_some() {
            return self.end(now);
        }
        if self.setup.wants_go() {
            return self.await_meeting(now);
        }
        self.receive(now)
    }

    /// The Accept comes only behind a Memory that was sent.
    fn send_memory(&mut self, now: Duration) {
        let (Some(memory), Some(meeting)) = (self.setup.memory(), &self.meeting) else {
            return;
        };
        let (frame, fds) = memory;
        let sent = meeting.send(&frame, &fds);
        match sent {
            // The Memory was due a moment ago, so the call is not misplaced.
            Ok(()) => drop(self.setup.handle_memory_sent(now)),
            Err(error) if meeting::is_gone(&error) => {
                self.gone_until = Some(now + GRACE);
                self.decline(Diagnosis::NO_SMC_D_V2_DEVICE, now);
            }
            Err(_) => self.decline(Diagnosis::OUT_OF_MEMORY, now),
        }
    }

    /// A client that gives up closes TCP right behind the rendezvous connection: nobody is to be served there.
    fn end(&mut self, now: Duration) -> Option<Wait> {
        let mut ended = self.setup.ended()?.clone();
        if let (Some(until), Ended::Declined { .. }) = (self.gone_until, &ended) {
            match self.line.has_ended() {
                None if now < until => {
                    let events = vec![self.line.readable()?];
                    return Some(Wait { events, until });
                }
                Some(true) => {
                    ended = Ended::Failed {
                        text: "the client gave up".to_owned(),
                    };
                }
                None | Some(false) => {}
            }
        }
        self.ending = Some(Ending::Setup(ended));
        None
    }

    fn await_meeting(&mut self, now: Duration) -> Option<Wait> {
        if now < self.due {
            return self.wait(Some(Event::Meeting));
        }
        self.time_is_up(now);
        None
    }

    /// What TCP brings, a late Decline above all, comes before what a link has become.
    fn receive(&mut self, now: Duration) -> Option<Wait> {
        match self.line.take(self.setup.wanted()) {
            Some(bytes) if bytes.is_empty() && self.setup.is_confirmed() => {
                return self.await_link(now);
            }
            Some(bytes) => self.setup.handle_bytes(&bytes, now),
            // The next turn says what came of it.
            None if self.setup.progress(now, self.due) => {}
            None if now < self.due => {
                let tcp = (self.setup.wanted() > 0).then(|| self.line.readable());
                let link = self.setup.link_waits();
                return Some(Wait::for_both(tcp.flatten(), link, self.due));
            }
            None => self.time_is_up(now),
        }
        None
    }

    /// TCP has ended behind the Confirm: a client whose link is up may close at once, and that may overtake its last word on the
    /// link. Without a link nobody is to be served.
    fn await_link(&mut self, now: Duration) -> Option<Wait> {
        let last = self.due.min(now + TCP_GRACE);
        let until = *self.gone_until.get_or_insert(last);
        if self.setup.progress(now, until) {
            return None;
        }
        if now < until {
            return Some(Wait::for_both(None, self.setup.link_waits(), until));
        }
        self.setup.handle_bytes(&[], now);
        None
    }

    /// Declined if that is possible, else failed.
    fn time_is_up(&mut self, now: Duration) {
        let diagnosis = if self.setup.wants_go() {
            Some(Diagnosis::NO_SMC_D_V2_DEVICE)
        } else {
            self.setup.late_diagnosis()
        };
        let is_declined = diagnosis.is_some_and(|diagnosis| {
            self.setup.decline(diagnosis, now).is_ok() && self.setup.ended().is_some()
        });
        if !is_declined {
            self.setup.give_up();
        }
    }

    fn wait(&self, event: Option<Event>) -> Option<Wait> {
        Some(Wait {
            events: vec![event?],
            until: self.due,
        })
    }
}
