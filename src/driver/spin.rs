//! Whether to spin before sleeping: a wake-up across idle cores costs 20 to 30 microseconds, so a short look pays.

use super::quota;
use crate::mem::Header;
use crate::mem::sync::Ordering;

/// After k failed spins in a row the next 2^k - 1 waits sleep at once; k stops here.
const BACK_OFF_MAX: u32 = 6;

/// The spinning habits of one connection; and of one engine, for its handshakes.
#[derive(Debug, Default)]
pub(super) struct Spin {
    failed: u32,
    skip: u32,
}

impl Spin {
    /// Whether to spin for a peer of which it is not known where it runs; if it is here, failures soon end it.
    pub(super) fn worth_trying(&mut self) -> bool {
        quota::allows_two_cpus() && self.is_due()
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        is_due
    }

    /// Whether this wait should spin. Publishes where this end runs and looks at where the peer does.
    pub(super) fn worthwhile(&mut self, header: &Header) -> bool {
        let mine = quota::cpu_word();
        let word = &header.mine().cpu;
        if word.load(Ordering::Relaxed) != mine {
            word.store(mine, Ordering::Relaxed);
        }
        if !quota::run_together(mine, header.theirs().cpu.load(Ordering::Relaxed))
            || !quota::allows_two_cpus()
        {
            return false;
        }
        self.is_due()
    }

    /// What was waited for came while spinning.
    pub(super) fn succeeded(&mut self) {
        self.failed = 0;
    }

    /// It did not come in time.
    pub(super) fn failed(&mut self) {
        self.failed = (self.failed + 1).min(BACK_OFF_MAX);
        self.skip = (1 << self.failed) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::shm::Dmb;
    use crate::mem::header::Side;

    #[test]
    fn failures_back_off_and_one_success_forgives() {
        let (dmb, _fd) = Dmb::create(16 << 10, false).expect("a DMB");
        let header = dmb.header(Side::Server);
        let mut spin = Spin::default();
        if !spin.worthwhile(&header) {
            eprintln!("not checked: the CPU quota here is below two");
            return;
        }
        for k in 1..=8u32 {
            spin.failed();
            let skipped = (0..1000).take_while(|_| !spin.worthwhile(&header)).count();
            assert_eq!(skipped, (1 << k.min(BACK_OFF_MAX)) - 1);
        }
        spin.succeeded();
        spin.failed();
        assert_eq!(spin.skip, 1);
    }

    #[test]
    fn a_peer_on_the_same_cpu_is_not_spun_for() {
        let (dmb, _fd) = Dmb::create(16 << 10, false).expect("a DMB");
        let (server, client) = (dmb.header(Side::Server), dmb.header(Side::Client));
        let mut spin = Spin::default();
        // Where this thread runs may change at any time, so the peer claims every CPU in turn: at one of them it is the same.
        let same = (1..=4096).any(|cpu| {
            client.mine().cpu.store(cpu, Ordering::Relaxed);
            !spin.worthwhile(&server)
        });
        assert!(same);
    }
}
