#![forbid(unsafe_code)]
//! Deterministic machines that deal in numbers: no sockets, no clock, no bytes of the application.
//!
//! The contract of this layer:
//! * **Time is an argument.** No machine reads a clock; one that waits names its deadline, and the caller comes back.
//! * **What comes from the peer is checked here** and answered by an error that blames it ([`error`]); such an error
//!   leaves the machine as it was. Nothing that a peer sends can make a machine panic.
//! * **What comes from the caller is trusted.** A count that was never offered is a bug of the caller and panics; each
//!   method says so.
//! * The methods of a machine are getters, `handle_*` (what comes in), commands (what the application wants) and what
//!   must go out now (`poll_*`, `take_*`), in this order.

pub mod close;
pub mod connection;
pub mod error;
pub mod handshake;
pub mod link;
pub mod position;
pub mod stats;
mod window;
