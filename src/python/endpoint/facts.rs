//! What is known of a connection when it is made, and stays.

use std::time::Duration;

/// What does not change.
pub(in crate::python) struct Facts {
    pub(in crate::python) eid: String,
    pub(in crate::python) version: u8,
    /// None for all but the first connection of a link group.
    pub(in crate::python) release: Option<u8>,
    /// The own GID in text, as its path writes it.
    pub(in crate::python) gid: String,
    pub(in crate::python) peer_gid: String,
    /// None in shared memory.
    pub(in crate::python) device: Option<DeviceFacts>,
    pub(in crate::python) spin: SpinTimes,
}

/// What a link runs over.
pub(in crate::python) struct DeviceFacts {
    pub(in crate::python) name: String,
    pub(in crate::python) port: u8,
    /// Bytes.
    pub(in crate::python) mtu: u32,
    /// The number of the own queue pair.
    pub(in crate::python) pair: u32,
}

/// How long to look before sleeping.
#[derive(Debug, Clone, Copy)]
pub(in crate::python) struct SpinTimes {
    /// Spinning in place, only for a loop with no other wait.
    pub(in crate::python) inline: Duration,
    /// Polling with the loop going on; zero turns both off.
    pub(in crate::python) poll: Duration,
}
