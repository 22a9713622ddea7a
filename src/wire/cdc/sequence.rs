//! The number of a CDC of SMC-R.

/// Numbers the CDCs of one connection and one direction: the first is 1, and 0 follows upon 65535 (RFC 7609 A.4).
///
/// Numbers are compared by their distance, as the kernel does: of two numbers less than 32768 apart the one that is
/// reached by counting up is the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Sequence(pub u16);

impl Sequence {
    /// The number of the first CDC.
    pub const FIRST: Self = Self(1);

    /// The number of the next CDC. A validation of a failover takes none.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether a CDC with this number is older than one with `last`: the kernel drops it whole, cursors and flags. An
    /// equal number is not behind.
    #[must_use]
    pub const fn is_behind(self, last: Self) -> bool {
        (self.0.wrapping_sub(last.0) as i16) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_follows_upon_the_greatest_number() {
        assert_eq!(Sequence::FIRST.next(), Sequence(2));
        assert_eq!(Sequence(u16::MAX).next(), Sequence(0));
    }

    #[test]
    fn what_is_behind_is_told_by_the_distance() {
        assert!(Sequence(1).is_behind(Sequence(2)));
        assert!(!Sequence(2).is_behind(Sequence(2)));
        assert!(!Sequence(3).is_behind(Sequence(2)));
        assert!(Sequence(u16::MAX).is_behind(Sequence(0)));
        assert!(!Sequence(0).is_behind(Sequence(u16::MAX)));
        assert!(!Sequence(32767).is_behind(Sequence(0)));
        assert!(Sequence(32768).is_behind(Sequence(0)));
    }
}
