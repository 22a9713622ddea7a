//! Set-ups for Python: bytes, frames and descriptors go in and out, nothing waits.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use super::endpoint::{Endpoint, Facts, SpinTimes};
use super::engine::Engine;
use super::fds::{adopt, numbers};
use crate::driver;
use crate::driver::setup::{self, Ended, Established, Incompatible, Options, moment};
use crate::proto::error::ApiMisuse;
use crate::wire::SizeCode;
use crate::wire::clc::Diagnosis;

/// Spinning in place never takes longer than this, however long polling may take.
const INLINE_MAX: Duration = Duration::from_micros(5);

/// ("established" | "declined" | "failed", diagnosis code, text).
type Outcome = (&'static str, u32, String);

/// The making of a connection at the end that connects. Moments are seconds of any one clock.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct ClientSetup {
    machine: Mutex<setup::ClientSetup>,
    engine: Py<Engine>,
    deadline: Duration,
    reason: Mutex<Option<Incompatible>>,
}

#[pymethods]
impl ClientSetup {
    /// Allocates the own memory: a ring of `rmb_size` bytes, all pages at once with `preallocate`.
    ///
    /// ValueError for a size that is not 16 KiB x 2^n up to 512 MiB; OSError for EMFILE, ENFILE, ENOMEM, ENOSPC.
    #[new]
    fn new(
        engine: Py<Engine>,
        rmb_size: u32,
        now: f64,
        timeout: f64,
        preallocate: bool,
    ) -> PyResult<Self> {
        let options = options(rmb_size, preallocate)?;
        let machine =
            setup::ClientSetup::new(Arc::clone(&engine.get().driver), options, moment(now))?;
        Ok(Self {
            machine: Mutex::new(machine),
            engine,
            deadline: moment(now + timeout),
            reason: Mutex::default(),
        })
    }

    /// Takes in the server's Hello. None if the two can do it, else the Stop to send, and `reason()` tells why.
    fn hello<'py>(&self, py: Python<'py>, frame: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let incompatible = self.machine(py).handle_hello(frame).err()?;
        let stop = PyBytes::new(py, &incompatible.frame());
        *self
            .reason
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner) = Some(incompatible);
        Some(stop)
    }

    /// ("version" | "protocol", text) once `hello` has found the two incompatible.
    fn reason(&self, py: Python<'_>) -> Option<(&'static str, String)> {
        self.reason
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(reason)
    }

    /// The Go frame and the descriptors that travel with it; they stay this object's.
    fn go<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Vec<RawFd>)> {
        let machine = self.machine(py);
        let (frame, fds) = machine.go().map_err(misused)?;
        Ok((PyBytes::new(py, &frame), numbers(&fds)))
    }

    /// Whether the server's Memory frame must be received before anything else.
    fn wants_memory(&self, py: Python<'_>) -> bool {
        self.machine(py).wants_memory()
    }

    /// Takes in the Memory frame, its descriptors (whatever happens they are taken) and a pidfd of the server's process.
    #[pyo3(signature = (frame, fds, peer_pidfd=None))]
    fn memory(&self, py: Python<'_>, frame: &[u8], fds: Vec<RawFd>, peer_pidfd: Option<RawFd>) {
        let (fds, witness) = (adopt(fds), adopt(peer_pidfd.into_iter().collect()).pop());
        self.machine(py).handle_memory(frame, fds, witness);
    }

    /// How many bytes to read from TCP next; 0: none now.
    fn wanted(&self, py: Python<'_>) -> usize {
        self.machine(py).wanted()
    }

    /// Takes in bytes from TCP, at most `wanted()`; b"" stands for the end of the stream.
    fn receive(&self, py: Python<'_>, data: &[u8], _now: f64) -> PyResult<()> {
        let mut machine = self.machine(py);
        check_wanted(data, machine.wanted())?;
        machine.handle_bytes(data);
        Ok(())
    }

    /// Bytes to write to TCP now; b"" if there are none.
    fn transmit<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.machine(py).poll_transmit().unwrap_or_default())
    }

    /// The moment at which to call `timeout`: one for the whole set-up, whatever CLC message is waited for.
    fn deadline(&self) -> f64 {
        self.deadline.as_secs_f64()
    }

    /// It is `now`. A set-up that is due fails, see `give_up`.
    fn timeout(&self, py: Python<'_>, now: f64) {
        if moment(now) >= self.deadline {
            self.give_up(py);
        }
    }

    /// Fails, unless all is said already. What `transmit` has not given away yet is taken back, be it a Confirm.
    fn give_up(&self, py: Python<'_>) {
        self.machine(py).give_up();
    }

    /// Declines the server's Accept with a diagnosis code, if there is one.
    fn decline(&self, py: Python<'_>, code: u32) {
        self.machine(py).decline(Diagnosis(code));
    }

    /// How it has ended: None, or ("established" | "declined" | "failed", code, text).
    fn outcome(&self, py: Python<'_>) -> Option<Outcome> {
        self.machine(py).ended().map(outcome)
    }

    /// The endpoint of an established connection; once. `spin_us` bounds how long its waits look before they sleep.
    fn finish(&self, py: Python<'_>, spin_us: f64) -> PyResult<Endpoint> {
        let made = self.machine(py).finish();
        endpoint(py, &self.engine, made, spin_us)
    }
}

impl ClientSetup {
    fn machine(&self, py: Python<'_>) -> MutexGuard<'_, setup::ClientSetup> {
        self.machine
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The making of a connection at the end that accepts. Moments are seconds of any one clock.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct ServerSetup {
    machine: Mutex<setup::ServerSetup>,
    engine: Py<Engine>,
    deadline: Duration,
}

#[pymethods]
impl ServerSetup {
    /// Waits for a client. Memory is allocated when it has proposed.
    ///
    /// ValueError for a size that is not 16 KiB x 2^n up to 512 MiB.
    #[new]
    fn new(
        engine: Py<Engine>,
        rmb_size: u32,
        now: f64,
        timeout: f64,
        preallocate: bool,
    ) -> PyResult<Self> {
        let options = options(rmb_size, preallocate)?;
        let machine =
            setup::ServerSetup::new(Arc::clone(&engine.get().driver), options, moment(now));
        Ok(Self {
            machine: Mutex::new(machine),
            engine,
            deadline: moment(now + timeout),
        })
    }

    /// The Hello frame, to be sent first.
    fn hello<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.machine(py).hello())
    }

    /// Takes in the client's answer to the Hello, its descriptors (whatever happens they are taken) and a pidfd of its process.
    ///
    /// None, or ("version" | "protocol", text) of a Stop: then both ends go on with plain TCP. After anything else the
    /// client's Proposal follows, and what is wrong is said in the Decline of it.
    #[pyo3(signature = (frame, fds, peer_pidfd, now))]
    fn go(
        &self,
        py: Python<'_>,
        frame: &[u8],
        fds: Vec<RawFd>,
        peer_pidfd: Option<RawFd>,
        now: f64,
    ) -> Option<(&'static str, String)> {
        let (fds, witness) = (adopt(fds), adopt(peer_pidfd.into_iter().collect()).pop());
        self.machine(py)
            .handle_go(frame, fds, witness, moment(now))
            .err()
            .as_ref()
            .map(reason)
    }

    /// The engine that the client's Proposal names, once it has come.
    fn peer_engine<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.machine(py)
            .proposed_engine()
            .map(|id| PyBytes::new(py, &id.0))
    }

    /// Whether a Proposal waits for the client's Go.
    fn wants_go(&self, py: Python<'_>) -> bool {
        self.machine(py).wants_go()
    }

    /// The Memory frame and the descriptors that travel with it; None if not due. `memory_sent` or `decline` follows.
    fn memory<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, Vec<RawFd>)> {
        let machine = self.machine(py);
        let (frame, fds) = machine.memory()?;
        Some((PyBytes::new(py, &frame), numbers(&fds)))
    }

    /// The Memory frame is in the client's queue, and `transmit()` has the Accept. RuntimeError when none was due.
    fn memory_sent(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.machine(py)
            .handle_memory_sent(moment(now))
            .map_err(misused)
    }

    /// How many bytes to read from TCP next; 0: none now.
    fn wanted(&self, py: Python<'_>) -> usize {
        self.machine(py).wanted()
    }

    /// Takes in bytes from TCP, at most `wanted()`; b"" stands for the end of the stream.
    fn receive(&self, py: Python<'_>, data: &[u8], now: f64) -> PyResult<()> {
        let mut machine = self.machine(py);
        check_wanted(data, machine.wanted())?;
        machine.handle_bytes(data, moment(now));
        Ok(())
    }

    /// Bytes to write to TCP now; b"" if there are none.
    fn transmit<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.machine(py).poll_transmit().unwrap_or_default())
    }

    /// The moment at which to call `timeout`: one for the whole set-up, whatever CLC message is waited for.
    fn deadline(&self) -> f64 {
        self.deadline.as_secs_f64()
    }

    /// It is `now`. A set-up that is due ends: declined if that is possible, else failed.
    fn timeout(&self, py: Python<'_>, now: f64) {
        let now = moment(now);
        if now < self.deadline {
            return;
        }
        let mut machine = self.machine(py);
        if !machine.wants_go() || machine.decline(Diagnosis::NO_SMC_D_V2_DEVICE, now).is_err() {
            machine.handle_timeout(Duration::MAX);
        }
    }

    /// Declines the client's Proposal with a diagnosis code, now or as soon as it comes.
    ///
    /// RuntimeError when the client has the Memory, or the set-up is over.
    fn decline(&self, py: Python<'_>, code: u32, now: f64) -> PyResult<()> {
        self.machine(py)
            .decline(Diagnosis(code), moment(now))
            .map_err(misused)
    }

    /// How it has ended: None, or ("established" | "declined" | "failed", code, text).
    fn outcome(&self, py: Python<'_>) -> Option<Outcome> {
        self.machine(py).ended().map(outcome)
    }

    /// The endpoint of an established connection; once. `spin_us` bounds how long its waits look before they sleep.
    fn finish(&self, py: Python<'_>, spin_us: f64) -> PyResult<Endpoint> {
        let made = self.machine(py).finish();
        endpoint(py, &self.engine, made, spin_us)
    }
}

impl ServerSetup {
    fn machine(&self, py: Python<'_>) -> MutexGuard<'_, setup::ServerSetup> {
        self.machine
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn options(rmb_size: u32, preallocate: bool) -> PyResult<Options> {
    let code = (0..=SizeCode::MAX.code())
        .filter_map(SizeCode::new)
        .find(|code| code.bytes() == rmb_size);
    let size = code.ok_or_else(|| {
        PyValueError::new_err(format!(
            "rmb_size: {rmb_size} bytes, must be 16384 x 2^n up to 536870912"
        ))
    })?;
    Ok(Options { size, preallocate })
}

fn check_wanted(data: &[u8], wanted: usize) -> PyResult<()> {
    if data.len() <= wanted {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{} bytes, at most {wanted} are wanted",
        data.len()
    )))
}

fn misused(misuse: ApiMisuse) -> PyErr {
    PyRuntimeError::new_err(misuse.to_string())
}

fn reason(incompatible: &Incompatible) -> (&'static str, String) {
    (
        if incompatible.is_version() {
            "version"
        } else {
            "protocol"
        },
        incompatible.to_string(),
    )
}

fn outcome(ended: &Ended) -> Outcome {
    match ended {
        Ended::Established => ("established", 0, String::new()),
        Ended::Declined { diagnosis, text } => ("declined", diagnosis.0, text.clone()),
        Ended::Failed { text } => ("failed", 0, text.clone()),
    }
}

fn endpoint(
    py: Python<'_>,
    engine: &Py<Engine>,
    made: Option<(driver::Endpoint, Established)>,
    spin_us: f64,
) -> PyResult<Endpoint> {
    let (end, established) = made
        .ok_or_else(|| PyRuntimeError::new_err("there is no established connection to finish"))?;
    let poll = moment(spin_us / 1e6);
    let agreed = established.agreed;
    let facts = Facts {
        eid: agreed
            .eid
            .map(|eid| eid.name().to_owned())
            .unwrap_or_default(),
        version: agreed.version as u8,
        release: agreed.release.map(|release| release.number()),
        gid: hex(&engine.get().driver.id().0),
        peer_gid: hex(&established.peer.0),
        link_group: end.group().key().link_id,
        spin: SpinTimes {
            inline: poll.min(INLINE_MAX),
            poll,
        },
    };
    Endpoint::new(engine.clone_ref(py), end, facts)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
