//! An end on shared memory for threads that wait: each call does its work in the thread that makes it.
//!
//! The doorbell of a connection made for this (its engine has no other) is in several epoll sets, each of which reports each
//! ring: one for those who read, one for those who write, and one for the lamp. So no sleeper takes another's wake-up. Of
//! several threads that wait for the same, any may take it: whoever goes while others wait rings for them.
//!
//! Armed are: the reader's word while somebody sleeps for bytes or the lamp shows none, the writer's likewise.

mod waiting;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::buffer::{Count, NewBytes, with_bytes, with_target};
use super::endpoint::{DETACH_MIN, Endpoint, Inner};
use super::errors::{from_fault_of_socket, from_system};
use super::fds;
use super::gate::{detached, locked};
use super::lamps::Lamps;
use crate::driver::endpoint::{Fault, Incoming};
use crate::driver::lamp;
use crate::fabric::shm::{Interest, Waker};
use crate::mem::{Source, Target};
use waiting::{Patience, Sleepers, What};

/// Bytes that are copied at once, so that the other direction, and the peer, have their turn.
const PIECE: usize = 256 << 10;
const EBADF: i32 = 9;

/// One end of a connection for blocking calls. `tcp` is the connection beside it: its socket stays open until `close` has
/// returned.
///
/// A timeout is None (no end), 0 (never waits: BlockingIOError) or seconds (TimeoutError). All methods may be called in any
/// thread, at the same time too. RuntimeError in a forked child.
#[pyclass(frozen, weakref, module = "smcfast._core")]
pub(super) struct Channel {
    endpoint: Py<Endpoint>,
    tcp: RawFd,
    readers: Sleepers,
    writers: Sleepers,
    /// The set of those who wait for room; made by the first.
    room: OnceLock<Waker>,
    lamp: Mutex<Option<Lit>>,
    is_lit: AtomicBool,
    is_closed: AtomicBool,
    /// The application reads no more: what comes counts as the end.
    is_deaf: AtomicBool,
}

struct Lit {
    lamps: Arc<lamp::Lamps>,
    lamp: Arc<lamp::Lamp>,
}

#[pymethods]
impl Channel {
    /// ValueError for an end that is not on shared memory; OSError: ENOSPC, ENOMEM.
    #[new]
    fn new(py: Python<'_>, endpoint: Py<Endpoint>, tcp: RawFd) -> PyResult<Self> {
        let end = endpoint.get();
        if end.ours(py)?.end.shared_group().is_none() {
            return Err(PyValueError::new_err("blocking calls need shared memory"));
        }
        let driver = &end.engine.get().driver;
        fds::with(tcp, |tcp| driver.watch(tcp, Interest::Readable, 0))
            .map_err(|error| from_system(&error))?;
        Ok(Self {
            endpoint,
            tcp,
            readers: Sleepers::default(),
            writers: Sleepers::default(),
            room: OnceLock::new(),
            lamp: Mutex::new(None),
            is_lit: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
        })
    }

    /// 1 to `n` bytes, b"" at the end of the stream.
    fn recv<'py>(
        &self,
        py: Python<'py>,
        n: Count,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let Count(n) = n;
        let patience = Patience::new(timeout);
        self.check(py)?;
        let received = self.receive(py, &patience, n, |there| {
            let mut bytes = NewBytes::new(py, there)?;
            bytes.fill(there, |target| self.read(py, target))?;
            Ok(bytes.finish().into_bound(py))
        });
        self.done(py);
        Ok(received?.unwrap_or_else(|| PyBytes::new(py, b"")))
    }

    /// Fills up to `n` bytes of a writable buffer (0: all of it): so many, 0 at the end of the stream.
    fn recv_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        n: usize,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let patience = Patience::new(timeout);
        self.check(py)?;
        with_target(buffer, |target| {
            if n > target.len() {
                return Err(PyValueError::new_err(
                    "buffer too small for requested bytes",
                ));
            }
            let most = if n == 0 { target.len() } else { n };
            let mut target = Some(target.split_at(most).0);
            let received = self.receive(py, &patience, most, |there| {
                let (head, rest) = target.take().map(|all| all.split_at(there)).unzip();
                target = rest;
                head.map_or(Ok(()), |head| self.read(py, head))?;
                Ok(there)
            });
            self.done(py);
            Ok(received?.unwrap_or(0))
        })
    }

    /// Takes at least one byte of `data`, or none of an empty one: so many.
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        self.write(py, data, timeout, false)
    }

    /// Takes all of `data`. After an error nobody knows how much of it.
    fn sendall(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.write(py, data, timeout, true).map(drop)
    }

    /// Ends the own stream behind what was sent.
    fn shutdown_write(&self, py: Python<'_>) -> PyResult<()> {
        self.check(py)?;
        let mut inner = self.endpoint.get().ours(py)?;
        inner.end.write_eof();
        self.wake(&inner);
        drop(inner);
        self.done(py);
        Ok(())
    }

    /// Reads no more: what is there can be read still, then it is the end.
    fn shutdown_read(&self, py: Python<'_>) -> PyResult<()> {
        self.check(py)?;
        self.is_deaf.store(true, Ordering::SeqCst);
        self.wake(&*self.endpoint.get().ours(py)?);
        self.done(py);
        Ok(())
    }

    /// Closes behind what was sent, and wakes who waits here. With bytes unread, the peer sees a reset.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let mut inner = self.endpoint.get().ours(py)?;
        inner.end.refresh();
        inner.end.close();
        self.wake(&inner);
        let driver = &self.endpoint.get().engine.get().driver;
        let out = fds::with(self.tcp, |tcp| {
            driver.unwatch(tcp);
            if let Some(room) = self.room.get() {
                room.remove(tcp);
            }
            Ok(())
        });
        drop(inner);
        debug_assert!(out.is_ok(), "a socket that is open has a number");
        let lit = locked(py, &self.lamp).take();
        if let Some(Lit { lamps, lamp }) = lit {
            let _ = fds::with(self.tcp, |tcp| {
                lamps.put_out(&lamp, tcp);
                Ok(())
            });
        }
        Ok(())
    }

    /// A descriptor that selectors can poll: readable while a `recv` would not wait, writable while a `send` would not. It is of
    /// no other use.
    fn fileno(&self, py: Python<'_>, lamps: &Lamps) -> PyResult<RawFd> {
        let mut lit = locked(py, &self.lamp);
        // Behind the lock: a `close` that this does not see waits for the lock, to put the lamp out.
        self.check(py)?;
        if let Some(lit) = &*lit {
            return Ok(lit.lamp.fd().as_raw_fd());
        }
        let mut inner = self.endpoint.get().ours(py)?;
        let lamps = Arc::clone(&lamps.0);
        let users = self.users();
        let lamp = fds::with(self.tcp, |tcp| lamps.light(&mut inner.end, tcp, users))
            .map_err(|error| from_system(&error))?;
        let number = lamp.fd().as_raw_fd();
        *lit = Some(Lit { lamps, lamp });
        self.is_lit.store(true, Ordering::SeqCst);
        Ok(number)
    }
}

/// One attempt, and what goes with it.
impl Channel {
    /// # Errors
    /// EBADF once it is closed; RuntimeError in a forked child.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.endpoint.get().ours(py)?);
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(PyOSError::new_err((EBADF, "Bad file descriptor")));
        }
        Ok(())
    }

    /// Waits until there is something to read, and has `take` take up to `n` bytes: so many are there, unless another thread has
    /// taken them meanwhile, which [`Self::read`] tells. None at the end of the stream.
    fn receive<T>(
        &self,
        py: Python<'_>,
        patience: &Patience,
        n: usize,
        mut take: impl FnMut(usize) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        if n == 0 {
            return Ok(None);
        }
        let mut waiting = None;
        loop {
            // One reads at a time; who holds this never waits for anything but a copy.
            let turn = locked(py, &self.readers.turn);
            let incoming = self.endpoint.get().ours(py)?.end.incoming(1);
            match incoming {
                Incoming::Bytes(there) => return take((there as usize).min(n)).map(Some),
                Incoming::End => {
                    drop(turn);
                    self.check(py)?;
                    return Ok(None);
                }
                Incoming::Fault(fault) => return Err(from_fault_of_socket(py, fault)),
                Incoming::Empty if self.is_deaf.load(Ordering::SeqCst) => return Ok(None),
                Incoming::Empty => drop(turn),
            }
            self.wait(py, What::Bytes, patience, &mut waiting)?;
        }
    }

    /// Fills `target` with bytes that are there.
    fn read(&self, py: Python<'_>, target: Target<'_>) -> PyResult<()> {
        self.endpoint.get().read_into(py, target)
    }

    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        all: bool,
    ) -> PyResult<usize> {
        let patience = Patience::new(timeout);
        self.check(py)?;
        with_bytes(data, |bytes| {
            let sent = self.write_bytes(py, &patience, bytes, all);
            self.done(py);
            sent
        })
    }

    fn write_bytes(
        &self,
        py: Python<'_>,
        patience: &Patience,
        bytes: Source<'_>,
        all: bool,
    ) -> PyResult<usize> {
        let mut waiting = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = self
                .write_piece(py, rest)?
                .map_err(|fault| self.send_error(py, fault))?;
            rest = rest.split_at(n).1;
            if n == 0 {
                self.wait(py, What::Room(rest.len()), patience, &mut waiting)?;
                continue;
            }
            if !all {
                break;
            }
            // The next wait is a new one, and looks first.
            waiting = None;
            if n == PIECE {
                py.check_signals()?;
            }
        }
        Ok(bytes.len() - rest.len())
    }

    fn write_piece(&self, py: Python<'_>, bytes: Source<'_>) -> PyResult<Result<usize, Fault>> {
        let piece = bytes.split_at(bytes.len().min(PIECE)).0;
        let mut inner = self.endpoint.get().ours(py)?;
        if piece.len() < DETACH_MIN {
            return Ok(inner.end.write_some(piece));
        }
        drop(inner);
        // The lock is taken and given back without the interpreter: nobody who holds it waits for us.
        Ok(detached(py, || {
            self.endpoint.get().lock_detached().end.write_some(piece)
        }))
    }

    fn send_error(&self, py: Python<'_>, fault: Fault) -> PyErr {
        match self.check(py) {
            Err(closed) => closed,
            Ok(()) => from_fault_of_socket(py, fault),
        }
    }

    /// Wakes who waits here: something has changed that the peer does not ring for.
    fn wake(&self, inner: &Inner) {
        if let Some(group) = inner.end.shared_group() {
            group.ring_here();
        }
    }

    /// The call is over: what the lamp shows is true again.
    fn done(&self, py: Python<'_>) {
        if !self.is_lit.load(Ordering::SeqCst) {
            return;
        }
        let lit = locked(py, &self.lamp);
        let Some(lit) = &*lit else { return };
        if let Ok(mut inner) = self.endpoint.get().ours(py) {
            lit.lamp.settle(&mut inner.end, self.users());
        }
    }

    /// Whom the lamp must not take a word from; under the endpoint's lock, under which they arm and leave.
    fn users(&self) -> lamp::Users {
        lamp::Users {
            deaf: self.is_deaf.load(Ordering::SeqCst),
            reading: self.readers.is_anybody(),
            writing: self.writers.is_anybody(),
        }
    }
}
