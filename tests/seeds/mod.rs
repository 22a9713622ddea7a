//! Seeded random runs: reproducible, and a failure says how.
//!
//! `SMCFAST_SEEDS=n` runs n seeds instead of the default number, `SMCFAST_SEEDS=a..b` those from a on; `SMCFAST_SEED=x`
//! runs only the seed x.

#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "not every one of them uses all of it")]

use std::ops::RangeInclusive;

/// A small deterministic generator (splitmix64); the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of the range, all alike.
    pub fn range(&mut self, range: RangeInclusive<u32>) -> u32 {
        let (low, high) = (u64::from(*range.start()), u64::from(*range.end()));
        (low + self.next() % (high - low + 1)) as u32
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.range(0..=99) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.range(0..=from.len() as u32 - 1) as usize]
    }

    /// A number up to `max`: small, middling and large ones all occur often.
    pub fn skewed(&mut self, max: u32) -> u32 {
        let bits = 32 - max.leading_zeros();
        let shift = self.range(0..=bits);
        self.range(0..=max) >> shift
    }
}

/// Runs `test` for `default` seeds, or as the environment says.
pub fn for_each_seed(name: &str, default: u64, test: impl Fn(&mut Rng)) {
    let variable = |name| std::env::var(name).ok();
    let number = |text: &str| text.parse::<u64>().expect("SMCFAST_SEED or SMCFAST_SEEDS");
    let one = variable("SMCFAST_SEED").map(|text| number(&text)..number(&text) + 1);
    let several = variable("SMCFAST_SEEDS").map(|text| match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    });
    let seeds = one.or(several).unwrap_or(0..default);
    for seed in seeds.clone() {
        let _guard = Reproduce { name, seed };
        test(&mut Rng::new(seed));
    }
    println!("{name}: {} seeds", seeds.count());
}

/// Says how to run a failed seed again.
struct Reproduce<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Reproduce<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            eprintln!(
                "seed {seed} failed; to run it again: SMCFAST_SEED={seed} cargo test {name} -- --exact"
            );
        }
    }
}
