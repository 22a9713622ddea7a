//! A list that goes on in the next message.

use std::ops::Deref;

use crate::wire::InvalidMessage;
use crate::wire::clc::Few;
use crate::wire::prim::Reader;

/// The first values of what is left of a list, up to `MAX` of them, and how many follow in further messages.
///
/// On the wire the count is that of all that is left, those here included.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch<T, const MAX: usize> {
    here: Few<T, MAX>,
    following: u8,
}

impl<T: Clone, const MAX: usize> Batch<T, MAX> {
    /// The batch to send of what is left; `None` when that is more than the 255 that can be counted.
    #[must_use]
    pub fn of(left: &[T]) -> Option<Self> {
        let (here, following) = left.split_at(left.len().min(MAX));
        u8::try_from(left.len()).ok()?;
        Some(Self {
            here: Few::new(here.to_vec())?,
            following: following.len() as u8,
        })
    }
}

impl<T, const MAX: usize> Batch<T, MAX> {
    /// How many values come in further messages.
    #[must_use]
    pub const fn following(&self) -> u8 {
        self.following
    }

    /// The count of the message.
    pub(super) fn count(&self) -> u8 {
        self.here.count() + self.following
    }

    /// Reads the values that a count of `left` puts into this message.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        left: u8,
        one: impl Fn(&mut Reader<'_>) -> Result<T, InvalidMessage>,
    ) -> Result<Self, InvalidMessage> {
        const { assert!(MAX <= 255) }
        let here = left.min(MAX as u8);
        Ok(Self {
            here: Few::read(reader, "count", here, one)?,
            following: left - here,
        })
    }
}

impl<T, const MAX: usize> Default for Batch<T, MAX> {
    fn default() -> Self {
        Self {
            here: Few::default(),
            following: 0,
        }
    }
}

impl<T, const MAX: usize> Deref for Batch<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_what_fits_and_counts_the_rest() {
        let batch = |left: &[u16]| Batch::<_, 2>::of(left).unwrap();
        assert_eq!(batch(&[]), Batch::default());
        assert_eq!((&batch(&[1])[..], batch(&[1]).following()), (&[1][..], 0));
        assert_eq!(batch(&[1, 2]).following(), 0);
        let all: Vec<_> = (0..255).collect();
        assert_eq!(
            (&batch(&all)[..], batch(&all).following()),
            (&[0, 1][..], 253)
        );
        assert_eq!(batch(&all).count(), 255);
        assert_eq!(Batch::<_, 2>::of(&[0; 256]), None);
    }
}
