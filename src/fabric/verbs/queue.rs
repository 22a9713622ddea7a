//! The completion queue of a port, and the channel that wakes for it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi;
use super::context::{Context, Handle, close, set_nonblocking};
use super::library::{done, made, released};
use crate::fabric::rdma::{Completion, POLL_MAX, Status};

/// Places of a completion queue, where the device has so many. Each post that is under way needs one, whether it is to be
/// reported or not: when a pair breaks, all are. These are enough for 128 pairs of 64 sends and 64 receives; more would be locked
/// memory (64 bytes each) that hardly anybody uses.
pub(super) const PLACES: u32 = 16384;

/// A channel, destroyed after the queue that uses it.
#[derive(Debug)]
struct Channel {
    handle: Handle<abi::Channel>,
    fd: RawFd,
    context: Arc<Context>,
}

/// Where all pairs of a port report what has become of their posts.
#[derive(Debug)]
pub(super) struct Queue {
    handle: Handle<abi::Queue>,
    channel: Channel,
    /// Places that no pair has reserved.
    free: AtomicU32,
}

/// Places of a queue, given back when dropped.
#[derive(Debug)]
pub(super) struct Places {
    queue: Arc<Queue>,
    count: u32,
}

impl Channel {
    fn new(context: Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open device.
        let channel =
            made(unsafe { (context.functions()?.ibv_create_comp_channel)(context.get()) })?;
        // SAFETY: made just now; the number does not change.
        let fd = unsafe { (*channel.as_ptr()).fd };
        let channel = Self {
            handle: Handle::new(channel),
            fd,
            context,
        };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        match self.context.functions() {
            Ok(functions) => {
                // SAFETY: made by `new`, destroyed once; its queue has gone before, or was never made.
                let result = unsafe { (functions.ibv_destroy_comp_channel)(self.handle.get()) };
                released(result, "ibv_destroy_comp_channel");
            }
            Err(_) => close(self.fd),
        }
    }
}

impl Queue {
    /// A queue of at most [`PLACES`].
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub(super) fn new(context: Arc<Context>) -> io::Result<Arc<Self>> {
        let most = u32::try_from(context.device_state()?.max_cqe).unwrap_or(0);
        let places = i32::try_from(most.min(PLACES)).map_err(|_| io::ErrorKind::InvalidInput)?;
        let channel = Channel::new(context)?;
        let context = &channel.context;
        // SAFETY: an open device and a channel on it. The queue's own context is not used.
        let queue = unsafe {
            (context.functions()?.ibv_create_cq)(
                context.get(),
                places,
                null_mut(),
                channel.handle.get(),
                0,
            )
        };
        let queue = made(queue)?;
        // SAFETY: made just now; the number changes only when the queue is resized, which is never.
        let granted = unsafe { (*queue.as_ptr()).cqe };
        Ok(Arc::new(Self {
            handle: Handle::new(queue),
            channel,
            free: AtomicU32::new(u32::try_from(granted).unwrap_or(0)),
        }))
    }

    pub(super) fn get(&self) -> *mut abi::Queue {
        self.handle.get()
    }

    fn context(&self) -> &Context {
        &self.channel.context
    }

    /// Keeps `count` places for the posts of one pair, so that the queue never overruns.
    ///
    /// # Errors
    /// `QuotaExceeded`: there are not so many.
    pub(super) fn reserve(self: &Arc<Self>, count: u32) -> io::Result<Places> {
        let less = |free: u32| free.checked_sub(count);
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map_err(|free| {
                let text =
                    format!("the completion queue has {free} places left, a pair needs {count}");
                io::Error::new(io::ErrorKind::QuotaExceeded, text)
            })?;
        Ok(Places {
            queue: Arc::clone(self),
            count,
        })
    }

    /// Becomes readable when a report has come after [`Self::arm`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Has the next report wake, whether solicited or not.
    pub(super) fn arm(&self) -> io::Result<()> {
        self.context().check()?;
        let arm = self
            .context()
            .calls()
            .req_notify_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: a queue of this context that has not been destroyed.
        done(unsafe { arm(self.get(), 0) })
    }

    /// Takes and acknowledges an event of the channel; returns whether there was one. There is no second one unless somebody has
    /// armed the queue twice, and that one would wake again.
    pub(super) fn take_events(&self) -> io::Result<bool> {
        let functions = self.context().functions()?;
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is open, and does not block; the call writes two pointers.
        let result = unsafe {
            (functions.ibv_get_cq_event)(
                self.channel.handle.get(),
                &raw mut queue,
                &raw mut context,
            )
        };
        if result == 0 {
            // SAFETY: the channel has one queue, this one; one of its events was taken just now, and not before.
            unsafe { (functions.ibv_ack_cq_events)(self.get(), 1) };
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        }
    }

    /// Appends at most [`POLL_MAX`] reports to `found`, and returns how many.
    pub(super) fn poll(&self, found: &mut Vec<Completion>) -> io::Result<usize> {
        self.context().check()?;
        let poll = self
            .context()
            .calls()
            .poll_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        let mut reports = [const { MaybeUninit::<abi::Report>::uninit() }; POLL_MAX];
        // SAFETY: a queue of this context that has not been destroyed; there is room for so many reports.
        let count = unsafe { poll(self.get(), POLL_MAX as i32, reports.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(io::Error::other("the completion queue is broken"));
        };
        for report in &reports[..count] {
            // SAFETY: one of the first `count`, which the call has written.
            found.push(unsafe { completion(report.as_ptr()) });
        }
        Ok(count)
    }
}

/// A report in our words. Those of receives have the number of their place, those of posts the number of the post.
///
/// # Safety
/// `report` was written by ibv_poll_cq. Of its fields a provider writes only those that its manual calls valid, hence no
/// reference is made to the others.
unsafe fn completion(report: *const abi::Report) -> Completion {
    // SAFETY: this, the pair and the number are valid whatever became of the work.
    let status = unsafe { (*report).status };
    // SAFETY: see above.
    let pair = unsafe { (*report).qp_num };
    // SAFETY: see above.
    let id = unsafe { (*report).wr_id };
    if status != 0 {
        return Completion::Failed {
            pair,
            status: Status(status),
        };
    }
    // SAFETY: valid when the work has succeeded.
    if unsafe { (*report).opcode } & abi::REPORT_RECEIVE == 0 {
        return Completion::Sent { pair, id };
    }
    Completion::Received {
        pair,
        slot: id as u32,
        // SAFETY: valid for a receive that has succeeded.
        len: unsafe { (*report).byte_len },
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // In a forked child nothing: its memory and the kernel's queue are the parent's.
        if let Ok(functions) = self.context().functions() {
            // SAFETY: made by `new`, destroyed once; its pairs refer to it, and have gone; all its events are acknowledged.
            let result = unsafe { (functions.ibv_destroy_cq)(self.get()) };
            released(result, "ibv_destroy_cq");
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.queue.free.fetch_add(self.count, Ordering::Relaxed);
    }
}
