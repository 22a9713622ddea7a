//! An RDMA fabric within one process, for tests: deterministic, and as strict as a real one where strictness shows mistakes.
//!
//! Pairs find each other by GID and number. Bytes are read from the sender's memory only when they travel, and travel only
//! when the peer is ready; a write is checked for its key, its range and what the memory was registered for, and breaks both
//! pairs if it may not be. Everything travels at once unless [`Fabric::set_chaos`] says otherwise, so that a test without
//! threads sees the same each time.
//!
//! What goes wrong with real devices, a test does by the methods of [`Fabric`].

mod chaos;
mod nic;
mod pair;
mod world;

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use self::nic::LoopbackNic;
use self::world::{Place, World};
use super::rdma::{Nic, Status, Trouble};

/// How long a device searches for the address of a peer, as hosts do.
const SEARCH: Duration = Duration::from_secs(1);

/// A fabric: ports that reach each other, and what is wrong with them.
#[derive(Debug, Clone, Default)]
pub struct Fabric(Arc<Shared>);

/// What ports, memory and pairs of a fabric refer to.
#[derive(Debug, Default)]
struct Shared {
    world: Mutex<World>,
    /// A device has found the addresses of its peers.
    found: Condvar,
    pins: Mutex<Option<Pins>>,
}

/// What is called while memory is pinned, or let go of.
struct Pins(Arc<dyn Fn() + Send + Sync>);

impl Debug for Pins {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pins")
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        // Nothing panics in the middle of a change.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins memory, or lets go of some.
    fn pin(&self) {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let pins = pins.as_ref().map(|pins| Arc::clone(&pins.0));
        if let Some(pins) = pins {
            pins();
        }
    }

    /// The world, once the device at `place` finds its peers; an error when that takes too long.
    fn world_with_routes(&self, place: Place) -> io::Result<MutexGuard<'_, World>> {
        let seeks = |world: &mut World| world.port(place).seeks;
        let waited = self
            .found
            .wait_timeout_while(self.world(), SEARCH, seeks)
            .unwrap_or_else(PoisonError::into_inner);
        match waited {
            (_, timeout) if timeout.timed_out() => Err(Errno::HOSTUNREACH.into()),
            (world, _) => Ok(world),
        }
    }
}

impl Fabric {
    /// A fabric without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// A port 1 of a new device with this name and this table of GIDs, MTU 1024.
    ///
    /// # Errors
    /// EMFILE.
    pub fn nic(&self, device: &str, gids: &[[u8; 16]]) -> io::Result<Arc<dyn Nic>> {
        Ok(Arc::new(LoopbackNic::new(
            Arc::clone(&self.0),
            device,
            gids,
        )?))
    }

    /// From here on messages and completions are late: each waits with this probability, in percent, until
    /// [`Self::step`].
    pub fn set_chaos(&self, seed: u64, percent: u32) {
        self.0.world().chaos.set(seed, percent);
    }

    /// Lets some of what waits go on. Returns whether more waits that could go on.
    pub fn step(&self) -> bool {
        self.0.world().step()
    }

    /// Keeps a device's reports of what was sent back, or lets them come.
    pub fn hold(&self, device: &str, holds: bool) {
        self.0.world().hold(device, holds);
    }

    /// Cuts a device off, so that nothing reaches it or leaves it and nothing tells of that; or mends it.
    pub fn cut(&self, device: &str, is_cut: bool) {
        self.0.world().cut(device, is_cut);
    }

    /// Has a device post no more receives, so that whoever sends to it has to wait; or lets it.
    pub fn starve(&self, device: &str, starves: bool) {
        self.0.world().starve(device, starves);
    }

    /// Has a device search for the addresses of its peers, for a second and in vain, so that connecting takes as long; or lets it
    /// find them.
    pub fn seek(&self, device: &str, seeks: bool) {
        self.0.world().seek(device, seeks);
        self.0.found.notify_all();
    }

    /// Has a device make no more pairs than these at a time, as if its completion queue had no places for others.
    pub fn limit_pairs(&self, device: &str, most: usize) {
        self.0.world().limit_pairs(device, most);
    }

    /// Has this called whenever memory is registered or let go of: what happens meanwhile, for which a kernel may take its time.
    pub fn while_pinning(&self, what: impl Fn() + Send + Sync + 'static) {
        let mut pins = self.0.pins.lock().unwrap_or_else(PoisonError::into_inner);
        *pins = Some(Pins(Arc::new(what)));
    }

    /// Has a device give the numbers of pairs that are gone to the next ones, at once.
    pub fn reuse_numbers(&self, device: &str) {
        self.0.world().reuse_numbers(device);
    }

    /// Has a device register no more memory; or lets it.
    pub fn exhaust(&self, device: &str, is_exhausted: bool) {
        self.0.world().exhaust(device, is_exhausted);
    }

    /// Breaks a pair, with this status.
    pub fn fail(&self, device: &str, pair: u32, status: Status) {
        self.0.world().fail(device, pair, status);
    }

    /// Has a device report this. [`Trouble::Gone`] also breaks its completion queue.
    pub fn trouble(&self, device: &str, trouble: Trouble) {
        self.0.world().trouble(device, trouble);
    }

    /// Takes the GIDs from a device.
    pub fn forget_gids(&self, device: &str) {
        self.0.world().forget_gids(device);
    }

    /// Has a pair receive these bytes, as if its peer had sent them.
    pub fn say(&self, device: &str, pair: u32, bytes: &[u8]) {
        self.0.world().say(device, pair, bytes);
    }

    /// Whether a pair is connected, and may send.
    pub fn sends(&self, device: &str, pair: u32) -> bool {
        self.0.world().sends(device, pair)
    }

    /// The messages that a pair has sent since the last call, as they left.
    pub fn heard(&self, device: &str, pair: u32) -> Vec<Vec<u8>> {
        self.0.world().heard(device, pair)
    }

    /// The numbers of the pairs of a device that exist.
    pub fn pairs(&self, device: &str) -> Vec<u32> {
        self.0.world().pairs_of(device)
    }

    /// Whether peers may write memory of a device with this key.
    pub fn is_writable(&self, device: &str, key: u32) -> bool {
        self.0.world().is_writable(device, key)
    }

    /// Whether anybody has a device open.
    pub fn is_open(&self, device: &str) -> bool {
        self.0.world().is_open(device)
    }

    /// How many pieces of memory of a device are registered.
    pub fn registered(&self, device: &str) -> usize {
        self.0.world().registered(device)
    }
}

#[cfg(test)]
mod tests;
