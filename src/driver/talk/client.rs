//! The client's part of a talk.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::line::{Line, Sent};
use super::{Apart, Ending, Event, Wait};
use crate::driver::Endpoint;
use crate::driver::setup::{ClientSetup, Ended, Established};
use crate::fabric::Stream;
use crate::fabric::shm::{Meeting, Packet, meeting};
use crate::wire::clc::Diagnosis;

/// One connection being made, at the end that connects.
#[derive(Debug)]
pub struct ClientTalk {
    setup: ClientSetup,
    line: Line,
    meeting: Option<Meeting>,
    /// Until when the Hello may come, while it is waited for.
    hello_until: Option<Duration>,
    /// Whether the Proposal went out before there was a rendezvous connection: then CLC has the last word.
    has_proposed: bool,
    /// When all must be done.
    due: Duration,
    ending: Option<Ending>,
}

impl ClientTalk {
    /// A talk over `stream` that must be done when `due` comes. Unless [`Self::meet`] follows, the first step proposes: that
    /// is for a server that is known to speak CLC.
    pub fn new(setup: ClientSetup, stream: Stream, due: Duration) -> Self {
        Self {
            setup,
            line: Line::new(stream),
            meeting: None,
            hello_until: None,
            has_proposed: false,
            due,
            ending: None,
        }
    }

    /// The server has called; its Hello may come until `until`.
    pub fn meet(&mut self, meeting: Meeting, until: Duration) {
        self.meeting = Some(meeting);
        self.hello_until = Some(until.min(self.due));
    }

    /// Goes on as far as possible; `None` when the talk is over.
    pub fn step(&mut self, now: Duration) -> Option<Wait> {
        loop {
            let wait = match (&self.ending, self.hello_until) {
                (Some(_), _) => return None,
                (None, Some(until)) => self.take_hello(now, until),
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

    fn take_hello(&mut self, now: Duration, until: Duration) -> Option<Wait> {
        let packet = self.meeting.as_ref()?.take();
        if let Ok(None) = packet
            && now < until
        {
            return self.packet(until);
        }
        self.hello_until = None;
        if let Err(apart) = self.answer_hello(packet, now) {
            // A server that has the Proposal already sees the end of this, and declines.
            self.meeting = None;
            if !self.has_proposed {
                self.ending = Some(Ending::Apart(apart));
            }
        }
        None
    }

    /// Hello and Go: after `Ok` the server's queue has the Go, and from then on TCP carries CLC.
    fn answer_hello(
        &mut self,
        packet: std::io::Result<Option<Packet>>,
        now: Duration,
    ) -> Result<(), Apart> {
        let meeting = self.meeting.as_ref().ok_or(Apart::Stopped)?;
        let hello = packet
            .map_err(|error| system(&error))?
            .ok_or(Apart::TimedOut)?;
        if now >= self.due {
            return Err(Apart::TimedOut);
        }
        if hello.is_end() {
            return Err(Apart::Stopped);
        }
        if let Err(incompatible) = self.setup.handle_hello(&hello.bytes) {
            // Who does not get it finds out by the end of the connection.
            let _ = meeting.send(&incompatible.frame(), &[]);
            return Err(Apart::Incompatible(incompatible));
        }
        let (frame, fds) = self.setup.go().map_err(|error| system(&error))?;
        meeting.send(&frame, &fds).map_err(|error| {
            if meeting::is_gone(&error) {
                Apart::Stopped
            } else {
                system(&error)
            }
        })
    }

    fn exchange(&mut self, now: Duration) -> Option<Wait> {
        if now >= self.due {
            // What has come to a good end by itself counts.
            while self.setup.progress(now, self.due) {}
            // The last moment at which a Confirm can be taken back.
            self.setup.give_up();
        }
        self.has_proposed = true;
        match self.line.send(|| self.setup.poll_transmit()) {
            Sent::Part if now >= self.due => {
                self.ending = Some(Ending::late());
                return None;
            }
            Sent::Part => return self.wait(self.line.writable()),
            Sent::Broken => self.setup.handle_bytes(&[]),
            Sent::All => {}
        }
        if let Some(ended) = self.setup.ended() {
            self.ending = Some(Ending::Setup(ended.clone()));
            return None;
        }
        if self.setup.wants_memory() {
            self.take_memory(now)
        } else {
            self.receive(now)
        }
    }

    /// The Memory was sent before the Accept that has just come.
    fn take_memory(&mut self, now: Duration) -> Option<Wait> {
        let Some(meeting) = &self.meeting else {
            self.setup.decline(Diagnosis::NO_SMC_D_V2_DEVICE);
            return None;
        };
        match meeting.take() {
            Err(_) => self.setup.decline(Diagnosis::OUT_OF_MEMORY),
            Ok(None) if now < self.due => return self.packet(self.due),
            Ok(None) => self.setup.give_up(),
            Ok(Some(packet)) if packet.is_end() => {
                self.setup.decline(Diagnosis::NO_SMC_D_V2_DEVICE);
            }
            Ok(Some(packet)) => {
                self.setup
                    .handle_memory(&packet.bytes, packet.fds, || meeting.witness());
            }
        }
        None
    }

    /// What TCP brings, a late Decline above all, comes before what a link has become. Its end does not: a server that knows of the
    /// link may close at once.
    fn receive(&mut self, now: Duration) -> Option<Wait> {
        match self.line.take(self.setup.wanted()) {
            Some(bytes) if !(bytes.is_empty() && self.setup.is_linked()) => {
                self.setup.handle_bytes(&bytes);
            }
            // The next turn says what came of it.
            _ if self.setup.progress(now, self.due) => {}
            Some(_) => self.setup.handle_bytes(&[]),
            None if now < self.due => return Some(self.wait_for_both()),
            None => self.setup.give_up(),
        }
        None
    }

    /// For TCP if anything is awaited from there, and for a link that comes up.
    fn wait_for_both(&self) -> Wait {
        let tcp = (self.setup.wanted() > 0).then(|| self.line.readable());
        Wait::for_both(tcp.flatten(), self.setup.link_waits(), self.due)
    }

    fn wait(&self, event: Option<Event>) -> Option<Wait> {
        Some(Wait {
            events: vec![event?],
            until: self.due,
        })
    }

    fn packet(&self, until: Duration) -> Option<Wait> {
        let fd = self.meeting.as_ref()?.as_fd().as_raw_fd();
        Some(Wait {
            events: vec![Event::Readable(fd)],
            until,
        })
    }
}

fn system(error: &std::io::Error) -> Apart {
    Apart::System(error.raw_os_error().unwrap_or(0))
}
