//! The atomics of everything that two processes share; under `cfg(loom)` the model checker's own.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// The two places that need a fence between their own store and the load of the peer's.
#[derive(Debug, Clone, Copy)]
pub enum Site {
    /// A sleeper that arms.
    Arm = 1,
    /// A publisher that looks for sleepers.
    Publish = 2,
}

/// A sequentially consistent fence.
#[cfg(not(loom))]
#[inline]
pub fn full_fence(_: Site) {
    fence(Ordering::SeqCst);
}

/// As above; the model checker's test leaves one out to show that the loss is then found.
#[cfg(loom)]
pub fn full_fence(site: Site) {
    if WITHOUT_FENCE.load(core::sync::atomic::Ordering::Relaxed) & site as u8 == 0 {
        fence(Ordering::SeqCst);
    }
}

/// Bits of the [`Site`]s whose fence is left out; set by the model checker's test alone.
#[cfg(loom)]
pub static WITHOUT_FENCE: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);
