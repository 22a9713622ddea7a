//! Bytes to values and back: CLC, LLC and CDC messages, the TCP option, the frames of the rendezvous connection, the words
//! of the status page.
//!
//! # Contract of the layer
//!
//! * **No state, no I/O, no clock, no unsafe.** Every function is a pure function of its arguments.
//! * **Whoever decodes checks every length.** A `decode` takes the bytes of one whole message, however hostile, and
//!   either returns a value or an [`InvalidMessage`] that names the message, the field and the fault. It never panics,
//!   never reads past the slice, and allocates no more than a message of the greatest legal length needs. How many
//!   bytes a message on a stream has is the answer of [`clc::peek_length`]; the caller reads exactly that many. On a
//!   queue pair it has as many as the completion says.
//! * **Values can only be legal.** Counts, codes and identifiers are types whose constructors refuse what the protocol
//!   refuses, so `encode` cannot fail and cannot panic.
//! * **Reserved bytes** are sent as zero and ignored on receipt. Hence `decode(encode(x)) == x` for every value, while
//!   `encode(decode(b))` equals `b` apart from the reserved bytes of `b`. Bits that a later version of the protocol may
//!   define inside a field that we do keep (flag sets, releases, feature masks, diagnosis codes) are retained.
//! * **Time and policy live above**: whether a legal message is welcome now is the business of [`crate::proto`].
//!
//! Offsets in comments are decimal, from the first byte of the message; "kernel" means Linux 6.12's `net/smc`.
#![forbid(unsafe_code)]

pub mod cdc;
pub mod clc;
mod engine_id;
mod error;
pub mod llc;
pub mod pretty;
mod prim;
mod received;
pub mod rendezvous;
mod size;
pub mod status;
pub mod tcpopt;

pub use engine_id::EngineId;
pub use error::{Fault, InvalidMessage};
pub use received::Received;
pub use size::SizeCode;
