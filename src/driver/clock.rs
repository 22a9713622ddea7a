//! The one clock of the core.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rustix::event::Timespec;

/// The time since the system has started, without the time that it was suspended: CLOCK_MONOTONIC, which is also Python's
/// `time.monotonic`.
///
/// The C library asks: rustix looks for the vDSO by itself, and does not survive that under valgrind.
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from) // no system lacks it
}

/// So long, for poll(2).
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::now;

    #[test]
    fn it_does_not_go_backwards() {
        let before = now();
        assert!(now() >= before);
        assert!(!before.is_zero());
    }
}
