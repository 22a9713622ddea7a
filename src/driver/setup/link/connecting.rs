//! The queue pair of a first contact being connected, in a thread: the host may have to ask for the peer's address, for up to a
//! second, and a peer may name one that nobody has.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::Builder;

use nix::sys::signal::SigSet;

use super::{Options, Refusal, no_buffer, no_pair};
use crate::driver::rdma::{Group, Identity, Nudge, Place};
use crate::wire::clc::{Diagnosis, SmcR};

/// A group that is being connected, with what its first connection sends from. It ends if that fails.
#[derive(Debug)]
pub(super) struct Connecting {
    group: Arc<Group>,
    news: Arc<Nudge>,
    outcome: Receiver<Result<Place, Refusal>>,
}

impl Connecting {
    pub(super) fn new(
        mut place: Place,
        peer: SmcR,
        who: Identity,
        direct: bool,
        options: Options,
    ) -> Result<Self, Refusal> {
        let (group, news) = (Arc::clone(place.group()), place.news());
        let (tell, outcome) = sync_channel(1);
        let bell = Arc::clone(&news);
        let connect = move || {
            // Signals are for the threads of the program.
            let _ = SigSet::all().thread_block();
            let connected = connect(&mut place, &peer, who, direct, options);
            // Who has been let go of meanwhile hears of nothing.
            let _ = tell.send(connected.map(|()| place));
            bell.give();
        };
        let thread = Builder::new().name("smcfast-connect".into()).spawn(connect);
        thread.map_err(|error| Refusal::new(Diagnosis::OUT_OF_MEMORY, error))?;
        Ok(Self {
            group,
            news,
            outcome,
        })
    }

    /// The place, once the group is connected; an error when the time for that is over.
    pub(super) fn look(&self, is_late: bool) -> Result<Option<Place>, Refusal> {
        self.news.take();
        match self.outcome.try_recv() {
            Ok(connected) => connected.map(Some),
            Err(TryRecvError::Empty) if !is_late => Ok(None),
            Err(_) => Err(no_pair(&io::ErrorKind::TimedOut.into())),
        }
    }

    /// Becomes readable when it is time to look.
    pub(super) fn news(&self) -> RawFd {
        self.news.as_raw_fd()
    }

    /// The group.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }
}

fn connect(
    place: &mut Place,
    peer: &SmcR,
    who: Identity,
    direct: bool,
    options: Options,
) -> Result<(), Refusal> {
    let prepared = place.connect(peer, who, direct, options.size);
    let connected = match prepared {
        Ok(prepared) => prepared.map_err(|error| no_buffer(&error)),
        Err(error) => Err(no_pair(&error)),
    };
    if connected.is_err() {
        place.group().end();
    }
    connected
}
