//! Shared memory between two processes: buffers, doorbells, and when to ring them.

pub mod bell;
pub mod dmb;
pub mod signal;
pub mod waker;

pub use bell::Bell;
pub use dmb::Dmb;
pub use waker::{Wake, Waker};
