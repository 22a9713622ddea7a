//! The guard: a thread that does for the links what cannot wait, whatever the event loop does.
//!
//! It exists while there are groups. It keeps the time of the links, and looks whether what has come is served: a completion event that
//! the loop has left for [`PATIENCE`] is served here, so that a peer's questions are answered in time (the kernel waits 2 s,
//! and then resets every connection of the group). It never touches Python.
//!
//! So as not to wake with the loop at every event, it does not look at the descriptor of a port again before the
//! patience with its last event is over.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};

use super::nudge::Nudge;
use super::port::{self, Port};
use super::standing::Wakes;
use crate::driver::clock;
use crate::fabric::rdma::Nic;
use crate::mem::fork;

/// How long the event loop may leave a completion event.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);
/// The guard sleeps, and nothing is due.
const NEVER: u64 = u64::MAX;
/// The guard is awake, and does not know yet until when it will sleep.
const AWAKE: u64 = 0;

/// The thread and what it looks after.
#[derive(Debug)]
pub(super) struct Guard {
    /// Wakes it; made with the first thread.
    bell: OnceLock<Nudge>,
    /// Until when it sleeps, in nanoseconds of the clock.
    until: AtomicU64,
    groups: AtomicUsize,
    ports: Mutex<Vec<Weak<Port>>>,
    thread: Mutex<Thread>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Thread {
    /// One that has ended, too, until it was joined.
    handle: Option<JoinHandle<()>>,
    runs: bool,
    is_over: bool,
}

/// A port that the guard looks after.
struct Watch {
    port: Arc<Port>,
    /// An event: how often the port had been served when it was seen, and when patience is over.
    seen: Option<(u64, Duration)>,
}

impl Guard {
    /// A guard that does not run.
    ///
    /// # Errors
    /// The fork generation is not to be had.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            bell: OnceLock::new(),
            until: AtomicU64::new(AWAKE),
            groups: AtomicUsize::new(0),
            ports: Mutex::default(),
            thread: Mutex::default(),
            generation: fork::generation()?,
        })
    }

    /// Looks after `port` as well.
    pub(super) fn add_port(&self, port: &Arc<Port>) {
        let mut ports = lock(&self.ports);
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Arc::downgrade(port));
        drop(ports);
        self.poke();
    }

    /// There is one group more: from the first one on the thread runs.
    ///
    /// # Errors
    /// EAGAIN: no thread is to be had; EMFILE.
    pub(super) fn add_group(self: &Arc<Self>) -> io::Result<()> {
        self.groups.fetch_add(1, Ordering::SeqCst);
        let begun = self.begin();
        if begun.is_err() {
            self.groups.fetch_sub(1, Ordering::SeqCst);
        }
        begun
    }

    /// There are so many groups less: without any the thread ends.
    pub(super) fn remove_groups(&self, number: usize) {
        if number > 0 && self.groups.fetch_sub(number, Ordering::SeqCst) == number {
            self.poke();
        }
    }

    fn begin(self: &Arc<Self>) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if thread.runs {
            return Ok(());
        }
        if let Some(ended) = thread.handle.take() {
            // It has said that it ends, and does nothing more that could fail.
            let _ = ended.join();
        }
        if self.bell.get().is_none() {
            // Under the lock of `thread`, so nobody else sets it.
            let _ = self.bell.set(Nudge::new()?);
        }
        let guard = Arc::clone(self);
        let builder = std::thread::Builder::new().name("smcfast-guard".into());
        thread.handle = Some(builder.spawn(move || guard.run())?);
        thread.runs = true;
        Ok(())
    }

    /// Whether this process made it; a forked child has no thread.
    pub(super) fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    /// Ends the thread, and waits for it.
    pub(super) fn end(&self) {
        let mut thread = lock(&self.thread);
        thread.is_over = true;
        let handle = thread.handle.take();
        drop(thread);
        self.poke();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
    }

    /// Something is due then: wakes the thread if it would sleep longer.
    #[inline]
    pub(super) fn hasten(&self, due: Duration) {
        // SYNC POINT with `sleep`: what is due was noted before under the port's lock.
        let until = self.until.load(Ordering::SeqCst);
        if until == AWAKE || nanoseconds(due) < until {
            self.poke();
        }
    }

    fn poke(&self) {
        if let Some(bell) = self.bell.get() {
            bell.give();
        }
    }

    /// The thread.
    fn run(&self) {
        // Signals are for the threads of the program.
        let _ = SigSet::all().thread_block();
        let mut watches = Vec::new();
        while let Some(bell) = self.bell.get() {
            // SYNC POINT with `hasten`: from here on everything that comes anew pokes.
            self.until.store(AWAKE, Ordering::SeqCst);
            bell.take();
            if self.is_done() {
                return;
            }
            self.refresh(&mut watches);
            let due = self.serve(&mut watches);
            self.sleep(bell, &mut watches, due);
        }
    }

    /// Whether the thread has nothing to do any more.
    fn is_done(&self) -> bool {
        let mut thread = lock(&self.thread);
        let done = thread.is_over || self.groups.load(Ordering::SeqCst) == 0;
        thread.runs = !done;
        done
    }

    /// Learns of new ports, and lets go of those that nobody else has.
    fn refresh(&self, watches: &mut Vec<Watch>) {
        let ports: Vec<Arc<Port>> = lock(&self.ports)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|port| !port.is_gone())
            .collect();
        watches.retain(|watch| ports.iter().any(|port| Arc::ptr_eq(port, &watch.port)));
        for port in ports {
            if !watches.iter().any(|watch| Arc::ptr_eq(&port, &watch.port)) {
                watches.push(Watch { port, seen: None });
            }
        }
    }

    /// Does what is due; returns when the next is.
    fn serve(&self, watches: &mut [Watch]) -> Option<Duration> {
        let now = clock::now();
        for watch in watches.iter_mut() {
            if let Some((served, due)) = watch.seen
                && due <= now
            {
                if watch.port.served() == served {
                    watch.port.serve_all(&mut Wakes::Ring);
                }
                watch.seen = None;
            }
        }
        let dues = watches.iter().flat_map(|watch| {
            let patience = watch.seen.map(|(_, due)| due);
            [patience, watch.port.handle_timeout(now)]
        });
        dues.flatten().min()
    }

    /// Sleeps until something is due, an event comes, or somebody pokes.
    fn sleep(&self, bell: &Nudge, watches: &mut [Watch], due: Option<Duration>) {
        self.until
            .store(due.map_or(NEVER, nanoseconds), Ordering::SeqCst);
        // Their devices are kept while they are polled, and not longer.
        let quiet: Vec<(usize, Arc<dyn Nic>)> = (0..watches.len())
            .filter(|at| watches[*at].seen.is_none())
            .filter_map(|at| Some((at, watches[at].port.nic().ok()?)))
            .collect();
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        for (_, nic) in &quiet {
            let fds_of = port::fds(&**nic);
            fds.extend(fds_of.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let timeout = due.map(|due| clock::timespec(due.saturating_sub(clock::now())));
        // What fails is interrupted: then everything is looked at once more.
        let _ = poll(&mut fds, timeout.as_ref());
        let came: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let patient = clock::now() + PATIENCE;
        for (of_port, (at, _)) in came[1..].chunks(2).zip(quiet) {
            if of_port.contains(&true) {
                let watch = &mut watches[at];
                watch.seen = Some((watch.port.served(), patient));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64 // of five hundred years
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(thread) = self.thread.get_mut()
            && let Some(handle) = thread.handle.take()
        {
            // Of a forked child's parent, where there is nothing to detach; or the thread's own, which drops the last guard.
            std::mem::forget(handle);
        }
    }
}
