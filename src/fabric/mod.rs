#![forbid(unsafe_code)]
//! Moves bytes and wakes peers; knows nothing of SMC.
//!
//! * [`shm`]: between processes of one host, through sealed anonymous memory and eventfds.

pub mod shm;
