#![deny(unsafe_code)]
//! Moves bytes and wakes peers; knows nothing of SMC.
//!
//! * [`loopback`]: an RDMA fabric within one process, for tests.
//! * [`rdma`]: what any RDMA fabric offers.
//! * [`shm`]: between processes of one host, through sealed anonymous memory and doorbells.
//! * [`sockdiag`]: whose is this TCP socket?
//! * [`stream`]: the TCP connection, for as long as a handshake takes.
//! * [`verbs`]: real RDMA devices; the only part with unsafe code.

pub mod loopback;
pub mod rdma;
pub mod shm;
pub mod sockdiag;
pub mod stream;
#[expect(unsafe_code, reason = "an island: docs/safety.md")]
pub mod verbs;

pub use stream::Stream;
