#![forbid(unsafe_code)]
//! The TCP option of SMC on sockets of ordinary programs: a sock_ops program in the kernel, and its loader.
//!
//! `tcp_option.bpf.c` is the program, `tcp_option.bpf.o` what was compiled of it; docs/option.md has the rules it keeps.
//!
//! * [`marks`]: which sockets take part, and what became of the option on them.
//! * [`program`]: the program, attached for as long as this process lives.
//! * [`installed`]: the same in a file system of its own, for all processes that may open it.
//! * [`cgroup`]: where it is attached.
//!
//! Nothing here waits. What goes wrong is an [`Error`] that says what was being done.

pub mod cgroup;
pub mod error;
pub mod installed;
pub mod marks;
pub mod program;

pub use error::Error;
pub use marks::{Marks, State};
pub use program::Program;
