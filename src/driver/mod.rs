#![forbid(unsafe_code)]
//! Where protocol and memory meet.
//!
//! * [`engine`]: one for each event loop: its id, its link groups, the one fd that wakes it.
//! * [`group`]: what the connections between two engines share: doorbells, a witness of the peer's death.
//! * [`setup`]: how two ends become a connection.
//! * [`endpoint`]: one end of an established connection.
//!
//! Nothing here waits or knows an event loop: what must be waited for is armed, and the wake-up fd tells.

mod backlog;
pub mod endpoint;
pub mod engine;
pub mod group;
mod quota;
pub mod setup;
mod spin;

pub use endpoint::Endpoint;
pub use engine::Engine;
pub use group::LinkGroup;
