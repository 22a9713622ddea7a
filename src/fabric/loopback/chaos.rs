//! Chance, by a seed.

/// Whether things are late.
#[derive(Debug, Default)]
pub(super) struct Chaos {
    state: u64,
    percent: u32,
}

impl Chaos {
    pub(super) fn set(&mut self, seed: u64, percent: u32) {
        *self = Self {
            state: seed,
            percent,
        };
    }

    /// Whether the next thing is late.
    pub(super) fn is_late(&mut self) -> bool {
        self.percent > 0 && self.below(100) < u64::from(self.percent)
    }

    /// A number from 0 to `bound` - 1 (splitmix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
