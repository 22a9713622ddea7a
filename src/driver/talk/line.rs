//! The TCP side of a talk: what could not be sent yet waits here.

use std::os::fd::{AsFd, AsRawFd};

use super::Event;
use crate::fabric::Stream;

/// The connection, and bytes for it.
#[derive(Debug)]
pub(super) struct Line {
    /// `None` once it was let go of.
    stream: Option<Stream>,
    unsent: Vec<u8>,
}

/// What has become of the bytes that were to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// There is no room for the rest.
    Part,
    /// The connection is broken.
    Broken,
}

impl Line {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream: Some(stream),
            unsent: Vec::new(),
        }
    }

    /// Sends what waits and what `next` has.
    pub(super) fn send(&mut self, mut next: impl FnMut() -> Option<Vec<u8>>) -> Sent {
        loop {
            if self.unsent.is_empty() {
                match next() {
                    Some(bytes) => self.unsent = bytes,
                    None => return Sent::All,
                }
            }
            match self
                .stream
                .as_ref()
                .and_then(|stream| stream.give(&self.unsent))
            {
                None => {
                    self.unsent.clear();
                    return Sent::Broken;
                }
                Some(0) if !self.unsent.is_empty() => return Sent::Part,
                Some(sent) => drop(self.unsent.drain(..sent)),
            }
        }
    }

    /// At most `wanted` bytes, see [`Stream::take`]; `None` as well when none are wanted.
    pub(super) fn take(&self, wanted: usize) -> Option<Vec<u8>> {
        if wanted == 0 {
            return None;
        }
        match &self.stream {
            Some(stream) => stream.take(wanted),
            None => Some(Vec::new()),
        }
    }

    /// See [`Stream::has_ended`].
    pub(super) fn has_ended(&self) -> Option<bool> {
        self.stream.as_ref().map_or(Some(true), Stream::has_ended)
    }

    /// Lets go of the connection, which goes on.
    pub(super) fn release(&mut self) {
        self.stream = None;
    }

    pub(super) fn readable(&self) -> Option<Event> {
        Some(Event::Readable(self.stream.as_ref()?.as_fd().as_raw_fd()))
    }

    pub(super) fn writable(&self) -> Option<Event> {
        Some(Event::Writable(self.stream.as_ref()?.as_fd().as_raw_fd()))
    }
}
