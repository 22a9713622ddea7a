//! A list with a greatest length.

use std::ops::Deref;

use crate::wire::InvalidMessage;
use crate::wire::prim::Reader;

/// At most `MAX` values, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Few<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Few<T, MAX> {
    /// The list of these values; `None` when there are more than `MAX`.
    #[must_use]
    pub fn new(values: Vec<T>) -> Option<Self> {
        if values.len() <= MAX {
            Some(Self(values))
        } else {
            None
        }
    }

    /// A list of one value.
    #[must_use]
    pub fn one(value: T) -> Self {
        const { assert!(MAX > 0) }
        Self(vec![value])
    }

    /// Reads `count` values with `one`; `field` is the name of the count.
    pub(in crate::wire) fn read(
        reader: &mut Reader<'_>,
        field: &'static str,
        count: u8,
        one: impl Fn(&mut Reader<'_>) -> Result<T, InvalidMessage>,
    ) -> Result<Self, InvalidMessage> {
        reader.at_most(field, count.into(), MAX as u64)?;
        (0..count)
            .map(|_| one(reader))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The length as the message's byte counts it.
    pub(in crate::wire) fn count(&self) -> u8 {
        const { assert!(MAX <= 255) }
        self.0.len() as u8
    }
}

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for Few<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_at_its_limit() {
        let list = Few::<_, 2>::new(vec![1, 2]).unwrap();
        assert_eq!((&list[..], list.count()), (&[1, 2][..], 2));
        assert_eq!(Few::<_, 2>::new(vec![1, 2, 3]), None);
        assert_eq!(Few::<_, 2>::one(7)[..], [7]);
        assert!(Few::<u8, 2>::default().is_empty());
    }
}
