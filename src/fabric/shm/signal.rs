//! When a peer that may sleep must be woken: no wake-up is lost, and none is made for nothing.
//!
//! A sleeper arms a word with what it waits for (so many bytes to read, so much room to write), then looks once more and
//! only then sleeps. A publisher stores its cursor, then looks at the word. Each side stores one word and then loads the
//! other's; with a sequentially consistent fence between the two at *both* sides, at least one of them sees the other's
//! store: either the sleeper finds the data and does not sleep, or the publisher finds it armed and rings. Weaker orders
//! let both loads pass both stores, and the sleeper sleeps on data that is there. `tests/loom.rs` runs through all
//! orders that the memory model allows, and finds the loss when one fence is left out.
//!
//! The publisher takes the word back to 0 by an exchange, so that a sleeper costs one ring however often it is published
//! to; an early or double ring is harmless, since a sleeper that wakes looks again.

use crate::mem::sync::{AtomicU64, Ordering, Site, full_fence};

/// Arms `word` for a sleeper that needs `need` (not 0). Returns whether it may sleep; if not, what it needs is there and
/// the word is disarmed again. `have` loads what is there now from the peer's published cursor.
#[inline]
pub fn arm(word: &AtomicU64, need: u64, have: impl FnOnce() -> u64) -> bool {
    debug_assert_ne!(need, 0, "0 is the word of one who does not sleep");
    // SYNC POINT with `must_ring`: what the sleeper published before (its own cursor) is visible to who sees it armed.
    word.store(need, Ordering::Release);
    full_fence(Site::Arm);
    let sleeps = have() < need;
    if !sleeps {
        disarm(word);
    }
    sleeps
}

/// Takes the word back: the sleeper is awake, whoever woke it.
#[inline]
pub fn disarm(word: &AtomicU64) {
    word.store(0, Ordering::Relaxed);
}

/// Asked after a cursor was published: whether the sleeper behind `word` must be rung. True at most once for each arming.
/// `have` computes what the sleeper can now see; it is called only if there is a sleeper.
#[inline]
pub fn must_ring(word: &AtomicU64, have: impl FnOnce() -> u64) -> bool {
    full_fence(Site::Publish);
    // SYNC POINT with `arm`: Acquire pairs with its Release.
    let need = word.load(Ordering::Acquire);
    need != 0 && have() >= need && word.swap(0, Ordering::AcqRel) != 0
}
