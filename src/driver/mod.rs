#![forbid(unsafe_code)]
//! Where protocol and memory meet.
//!
//! * [`engine`]: one for each event loop: its id, its link groups, the one fd that wakes it.
//! * [`group`]: what the connections between two engines share: doorbells, a witness of the peer's death.
//! * [`rdma`]: ports, link groups and connections over RDMA.
//! * [`setup`]: how two ends become a connection.
//! * [`talk`]: a set-up with its sockets.
//! * [`endpoint`]: one end of an established connection.
//! * [`lamp`]: a descriptor that shows an endpoint to selectors.
//! * [`clock`]: what time it is.
//! * [`status`]: what this process shows of its connections to tools.
//!
//! Nothing here waits or knows an event loop: what must be waited for is armed, and the wake-up fd tells.

mod backlog;
pub mod clock;
pub mod endpoint;
pub mod engine;
pub mod group;
pub mod lamp;
mod quota;
pub mod rdma;
pub mod setup;
mod spin;
pub mod status;
pub mod talk;

pub use endpoint::Endpoint;
pub use engine::Engine;
pub use group::LinkGroup;
