//! The dialogues of LLC on one link: who asks what, which answer is due, and how long one waits for it.
//!
//! ```text
//!          client                                              server
//!          Link::client                                        Link::server
//!  event Confirmable  <--- CONFIRM_LINK request, link n ---
//!             confirm  --- CONFIRM_LINK response, link n --->  event Up
//!            event Up
//!                          TEST_LINK, CONFIRM_RKEY, DELETE_RKEY, by either
//!                     <--- ADD_LINK offer ---                  (other servers only)
//!                      --- rejection --->
//!          event Down <--- DELETE_LINK --->                    event Down
//! ```
//!
//! A group has one link here: offers of another are rejected, which every server puts up with, and the end of the link
//! is that of the group. The state is kept for each link, so that a group of several has several of these machines.
//!
//! Whatever the application does, a peer gets its answers: the kernel waits 2 s for one, and then gives up the connection
//! (CONFIRM_RKEY) or the link (TEST_LINK). So the caller, after each `handle_*` and each command, sends all of
//! `poll_transmit` and takes all of `poll_event`, and calls `handle_timeout` when the moment of `poll_timeout` has come.
//! What a group ends with is in `poll_transmit` behind the event [`LinkEvent::Down`]: it is sent if it still can be.
//!
//! Moments are durations since any one fixed moment of the caller's.

mod event;
mod keys;
mod machine;

pub use event::{Cause, KeyAnswer, LinkEvent, Misbehaviour};
pub use keys::MAX_KEYS;
pub use machine::{
    CONFIRM_DELAY, CONFIRM_REPEAT, CONFIRM_WAIT, Link, MAX_PENDING, OwnLink, RESPONSE_TIMEOUT,
};
