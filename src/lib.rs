//! smcfast: Shared Memory Communications in user space.
//!
//! The layers, and who may import whom (`tests/arrows.rs` holds the arrows):
//!
//! ```text
//! wire <---- proto <----.
//!                        driver <---- python (pyo3) <---- python/smcfast
//! mem  <---- fabric <---'                |
//!                                        bpf (the TCP option)
//! ```
//!
//! * [`wire`]: bytes to values and back. No state, no I/O, no unsafe.
//! * [`proto`]: deterministic machines that deal in numbers: no sockets, no clock (time is an argument), no unsafe.
//! * [`mem`]: the unsafe island for memory: mappings, copies from memory that a peer may write, atomics.
//! * [`fabric`]: moves bytes and wakes peers; knows nothing of SMC.
//! * [`driver`]: where protocol and memory meet: engines, link groups, connections.
//! * [`bpf`]: the TCP option of SMC, by a program in the kernel.
//! * `python`: the only pyo3 code: a list and conversions (feature `python`).

pub mod bpf;
pub mod driver;
pub mod fabric;
pub mod mem;
pub mod proto;
#[cfg(feature = "python")]
mod python;
pub mod wire;
