//! Shared memory between two processes: buffers, doorbells, when to ring them, and the connection that hands them over.

pub mod bell;
pub mod dmb;
pub mod meeting;
pub mod signal;
pub mod waker;

pub use bell::{Bell, ring};
pub use dmb::Dmb;
pub use meeting::{Meeting, Packet};
pub use waker::{Interest, Wake, Waker};
