//! Set-ups for Python: sockets go in, endpoints come out, and nothing waits.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::endpoint::{DeviceFacts, Endpoint, Facts, SpinTimes};
use super::engine::Engine;
use super::errors::{from_system, inherited};
use super::fds::{self, adopt};
use super::gate::{detached, locked};
use super::offer::RdmaOffer;
use crate::driver;
use crate::driver::setup::{self, Ended, Established, Far, Offer, Options, moment};
use crate::driver::talk::{self, Apart, ClientTalk, Ending, Event, ServerTalk};
use crate::fabric::Stream;
use crate::fabric::shm::Meeting;
use crate::wire::SizeCode;
use crate::wire::clc::Diagnosis;

/// Spinning in place never takes longer than this, however long polling may take.
const INLINE_MAX: Duration = Duration::from_micros(5);

/// What a step waits for: descriptors with something to read, descriptors with room, and the moment when that is over.
type Wait = (Vec<RawFd>, Vec<RawFd>, f64);

/// ("established" | "declined" | "failed", or why the two part before CLC; diagnosis code; text).
type Outcome = (&'static str, u32, String);

/// The making of a connection at the end that connects. Moments are seconds of any one clock.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct ClientSetup {
    talk: Mutex<ClientTalk>,
    engine: Py<Engine>,
    has_device: bool,
}

#[pymethods]
impl ClientSetup {
    /// Offers SMC-D if `memory` is set, and SMC-R over `rdma`. For the former the own memory is allocated: a ring of `rmb_size`
    /// bytes, all pages at once with `preallocate`. `tcp` is duplicated.
    ///
    /// ValueError for a size that is not 16 KiB x 2^n up to 512 MiB; OSError for EMFILE, ENFILE, ENOMEM, ENOSPC.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one call, from one place")]
    #[pyo3(signature = (engine, tcp, rmb_size, now, timeout, preallocate, memory=true, rdma=None))]
    fn new(
        engine: Py<Engine>,
        tcp: RawFd,
        rmb_size: u32,
        now: f64,
        timeout: f64,
        preallocate: bool,
        memory: bool,
        rdma: Option<&Bound<'_, RdmaOffer>>,
    ) -> PyResult<Self> {
        let options = options(rmb_size, preallocate)?;
        let driver = Arc::clone(&engine.get().driver);
        let setup = setup::ClientSetup::new(driver, options, offer(memory, rdma), moment(now))
            .map_err(|error| from_system(&error))?;
        let talk = ClientTalk::new(setup, stream(tcp)?, moment(now + timeout));
        Ok(Self {
            talk: Mutex::new(talk),
            engine,
            has_device: rdma.is_some(),
        })
    }

    /// Takes over the rendezvous connection, on which the server says Hello until `until`. Without it the first step proposes.
    fn meet(&self, py: Python<'_>, conn: RawFd, until: f64) -> PyResult<()> {
        let meeting = Meeting::new(adopt(conn)?);
        locked(py, &self.talk).meet(meeting, moment(until));
        Ok(())
    }

    /// Goes on as far as possible; what to wait for before the next step, None when it is over. RuntimeError in a forked child.
    fn step(&self, py: Python<'_>, now: f64) -> PyResult<Option<Wait>> {
        if !self.engine.get().driver.is_ours() {
            return Err(inherited());
        }
        Ok(step(py, &self.talk, self.has_device, |talk| {
            talk.step(moment(now))
        }))
    }

    /// Lets go of both sockets: whatever was not said yet stays unsaid.
    fn release(&self, py: Python<'_>) {
        locked(py, &self.talk).release();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A task that waits in this set-up is in a cycle with its loop's engine.
        visit.call(&self.engine)
    }

    /// How it has ended: None, or ("established" | "declined" | "failed", code, text), or before the first CLC byte
    /// ("discovery_timeout" | "peer_stopped" | "version" | "protocol", 0, text), ("system", errno, "").
    fn outcome(&self, py: Python<'_>) -> Option<Outcome> {
        locked(py, &self.talk).ending().map(outcome)
    }

    /// The endpoint of an established connection; once. `spin_us` bounds how long its waits look before they sleep.
    fn finish(&self, py: Python<'_>, spin_us: f64) -> PyResult<Endpoint> {
        let made = locked(py, &self.talk).finish();
        endpoint(py, &self.engine, made, spin_us)
    }
}

/// The making of a connection at the end that accepts. Moments are seconds of any one clock.
#[pyclass(frozen, module = "smcfast._core")]
pub(super) struct ServerSetup {
    talk: Mutex<ServerTalk>,
    engine: Py<Engine>,
    has_device: bool,
}

#[pymethods]
impl ServerSetup {
    /// Waits for a client; what it may have is as for `ClientSetup`. Memory is allocated while its Go is awaited. `tcp` is
    /// duplicated.
    ///
    /// ValueError for a size that is not 16 KiB x 2^n up to 512 MiB; OSError for EMFILE, ENFILE.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one call, from one place")]
    #[pyo3(signature = (engine, tcp, rmb_size, now, timeout, preallocate, memory=true, rdma=None))]
    fn new(
        engine: Py<Engine>,
        tcp: RawFd,
        rmb_size: u32,
        now: f64,
        timeout: f64,
        preallocate: bool,
        memory: bool,
        rdma: Option<&Bound<'_, RdmaOffer>>,
    ) -> PyResult<Self> {
        let options = options(rmb_size, preallocate)?;
        let driver = Arc::clone(&engine.get().driver);
        let setup = setup::ServerSetup::new(driver, options, offer(memory, rdma), moment(now));
        let talk = ServerTalk::new(setup, stream(tcp)?, moment(now + timeout));
        Ok(Self {
            talk: Mutex::new(talk),
            engine,
            has_device: rdma.is_some(),
        })
    }

    /// Takes over the rendezvous connection and says Hello; the client answers until `until`. False when it has gone.
    /// Without it a Proposal is awaited.
    fn meet(&self, py: Python<'_>, conn: RawFd, until: f64) -> PyResult<bool> {
        let meeting = Meeting::new(adopt(conn)?);
        Ok(locked(py, &self.talk).meet(meeting, moment(until)))
    }

    /// The engine that a Proposal names, as long as it waits for a rendezvous connection: `meet` or `pass_over_memory`.
    fn wants_meeting<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let engine = locked(py, &self.talk).wants_meeting()?;
        Some(PyBytes::new(py, &engine.0))
    }

    /// Declines the client's Proposal with a diagnosis code, now or as soon as it comes; nothing when that is too late.
    fn decline(&self, py: Python<'_>, code: u32, now: f64) {
        locked(py, &self.talk).decline(Diagnosis(code), moment(now));
    }

    /// There is no rendezvous connection to be had: SMC-R, if the client offers it too, else a Decline with a diagnosis code.
    fn pass_over_memory(&self, py: Python<'_>, code: u32, now: f64) {
        locked(py, &self.talk).pass_over_memory(Diagnosis(code), moment(now));
    }

    /// Goes on as far as possible; what to wait for before the next step, None when it is over. Nothing to wait for but the
    /// moment: see `wants_meeting`. RuntimeError in a forked child.
    fn step(&self, py: Python<'_>, now: f64) -> PyResult<Option<Wait>> {
        if !self.engine.get().driver.is_ours() {
            return Err(inherited());
        }
        Ok(step(py, &self.talk, self.has_device, |talk| {
            talk.step(moment(now))
        }))
    }

    /// Lets go of both sockets: whatever was not said yet stays unsaid.
    fn release(&self, py: Python<'_>) {
        locked(py, &self.talk).release();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.engine)
    }

    /// How it has ended; as for `ClientSetup.outcome`.
    fn outcome(&self, py: Python<'_>) -> Option<Outcome> {
        locked(py, &self.talk).ending().map(outcome)
    }

    /// The endpoint of an established connection; once. `spin_us` bounds how long its waits look before they sleep.
    fn finish(&self, py: Python<'_>, spin_us: f64) -> PyResult<Endpoint> {
        let made = locked(py, &self.talk).finish();
        endpoint(py, &self.engine, made, spin_us)
    }
}

/// A step; without the interpreter's lock where there is a device, which takes its time to make queue pairs and to pin memory.
fn step<T: Send>(
    py: Python<'_>,
    talk: &Mutex<T>,
    has_device: bool,
    step: impl FnOnce(&mut T) -> Option<talk::Wait> + Send,
) -> Option<Wait> {
    let waits = if has_device {
        detached(py, || {
            step(&mut talk.lock().unwrap_or_else(PoisonError::into_inner))
        })
    } else {
        step(&mut locked(py, talk))
    };
    waits.map(wait)
}

fn stream(tcp: RawFd) -> PyResult<Stream> {
    let own = fds::with(tcp, |tcp| tcp.try_clone_to_owned());
    Ok(Stream::new(own.map_err(|error| from_system(&error))?))
}

fn wait(wait: talk::Wait) -> Wait {
    let (mut readable, mut writable) = (Vec::new(), Vec::new());
    for event in wait.events {
        match event {
            Event::Readable(fd) => readable.push(fd),
            Event::Writable(fd) => writable.push(fd),
            Event::Meeting => {}
        }
    }
    (readable, writable, wait.until.as_secs_f64())
}

fn offer(memory: bool, rdma: Option<&Bound<'_, RdmaOffer>>) -> Offer {
    let rdma = rdma.map(|rdma| rdma.get().offer());
    Offer { memory, rdma }
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

fn outcome(ending: &Ending) -> Outcome {
    match ending {
        Ending::Setup(Ended::Established) => ("established", 0, String::new()),
        Ending::Setup(Ended::Declined { diagnosis, text }) => {
            ("declined", diagnosis.0, text.clone())
        }
        Ending::Setup(Ended::Failed { text }) => ("failed", 0, text.clone()),
        Ending::Apart(Apart::System(errno)) => ("system", errno.cast_unsigned(), String::new()),
        Ending::Apart(Apart::TimedOut) => ("discovery_timeout", 0, String::new()),
        Ending::Apart(Apart::Stopped) => ("peer_stopped", 0, String::new()),
        Ending::Apart(Apart::Incompatible(incompatible)) => {
            let name = if incompatible.is_version() {
                "version"
            } else {
                "protocol"
            };
            (name, 0, incompatible.to_string())
        }
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
    let (gid, peer_gid, device) = match established.far {
        Far::Memory { peer } => (engine.get().driver.id().0, peer.0, None),
        Far::Link {
            device,
            port,
            gid,
            peer_gid,
            mtu,
            qp_number,
        } => {
            let device = DeviceFacts {
                name: device,
                port,
                mtu: mtu.bytes(),
                pair: qp_number.get(),
            };
            (gid.0, peer_gid.0, Some(device))
        }
    };
    let facts = Facts {
        eid: agreed
            .eid
            .map(|eid| eid.name().to_owned())
            .unwrap_or_default(),
        version: agreed.version as u8,
        release: agreed.release.map(|release| release.number()),
        gid: hex(&gid),
        peer_gid: hex(&peer_gid),
        device,
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
