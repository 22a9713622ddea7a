//! The unsafe island for memory: mappings, copies from and to memory that another process may write, atomics.
//!
//! Contract of the layer:
//!
//! * It knows where bytes and words lie, and nothing of what they mean: that is the protocol's business.
//! * Every offset and length is checked here against the mapping, whoever computed it; out of bounds is a panic of the
//!   caller's mistake, never an access (callers validate what comes from a peer before they come here).
//! * No Rust reference is ever made to bytes that a peer may write, except to atomics. Their address is given out only as
//!   that of a [`Lent`], to Python.
//! * A mapping belongs to the process that made it: after a fork the child does not have it ([`fork`]), and every access is
//!   guarded by the generation check of its owner.
//!
//! `docs/safety.md` argues each unsafe block together.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "smcfast's core needs Linux; on other systems use the Python package without it: every stream is TCP"
);

mod copy;
pub mod fork;
pub mod header;
mod lent;
pub mod memfd;
pub mod region;
mod source;
pub mod status;
pub mod sync;
mod target;
pub mod thread;
pub mod ticks;

pub use header::{Half, Header};
pub use lent::Lent;
pub use memfd::Memory;
pub use region::Region;
pub use source::Source;
pub use target::Target;
