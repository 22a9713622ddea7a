//! Real RDMA devices, over the system's libibverbs: the second unsafe island.
//!
//! ```text
//! Library         loaded at first need, never unloaded
//!  `- Context       an opened device
//!      |- Queue       of a port, with its channel
//!      |- Protection  a domain
//!      |   |- Registration
//!      |   `- Queues      a pair, which refers to Protection and Queue
//! ```
//!
//! Only `receives`, `pair`, `queue`, `domain`, `context`, `library` (and `fake`, for tests) have unsafe code. Contract of the island:
//!
//! * What is made refers by an `Arc` to what it was made on, so all is destroyed in the reverse order, whoever lets go first.
//! * In a forked child nothing of the library is called: whatever would has asked [`crate::mem::fork`] before. Objects that are
//!   dropped there close their descriptors, and leave the rest to the parent.
//! * No call waits, except for the kernel's own work; connecting a pair may wait a second for the peer's Ethernet address.
//! * Nothing is printed, whatever is missing: [`Unavailable`] is the reason.
//!
//! `docs/safety.md` argues the unsafe blocks together.

mod abi;
mod context;
mod domain;
mod error;
mod library;
mod listing;
mod nic;
mod pair;
mod queue;
mod receives;
mod troubles;

pub use error::Unavailable;
pub use listing::{Listed, ListedGid, ListedPort, devices, library_path};
pub use nic::open;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
