//! Bytes that the application has written and that do not yet fit into the peer's ring.

use std::collections::{TryReserveError, VecDeque};

use crate::mem::Source;

/// A chunk grows up to so many bytes before the next one is begun.
const CHUNK: usize = 64 << 10;

/// A queue of bytes. Its memory is freed as it empties.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are gone already.
    gone: usize,
    len: usize,
}

impl Backlog {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Errors
    /// There is no memory for them; nothing was appended.
    pub(super) fn push(&mut self, bytes: Source<'_>) -> Result<(), TryReserveError> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.chunks.back_mut() {
            Some(last) if last.len() + bytes.len() <= CHUNK => bytes.append_to(last)?,
            _ => {
                let mut chunk = Vec::new();
                bytes.append_to(&mut chunk)?;
                self.chunks.push_back(chunk);
            }
        }
        self.len += bytes.len();
        Ok(())
    }

    /// The first bytes, as many as lie together. Empty only if the backlog is.
    pub(super) fn front(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| &chunk[self.gone..])
    }

    /// Drops the first `n` bytes, all of them from [`Self::front`].
    pub(super) fn drop_front(&mut self, n: usize) {
        assert!(
            n <= self.front().len(),
            "dropping {n} of {} bytes",
            self.front().len()
        );
        self.gone += n;
        self.len -= n;
        if self.front().is_empty() {
            self.chunks.pop_front();
            self.gone = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_memory_goes() {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut backlog = Backlog::default();
        let mut out = Vec::new();
        for part in data.chunks(7_001) {
            backlog.push(part.into()).expect("memory");
            let n = backlog.front().len().min(5_003);
            out.extend_from_slice(&backlog.front()[..n]);
            backlog.drop_front(n);
        }
        while !backlog.is_empty() {
            assert!(!backlog.front().is_empty());
            let n = backlog.front().len();
            out.extend_from_slice(backlog.front());
            backlog.drop_front(n);
        }
        assert!(out == data);
        assert_eq!(
            (backlog.len(), backlog.chunks.len(), backlog.gone),
            (0, 0, 0)
        );
    }

    #[test]
    fn small_writes_share_chunks() {
        let mut backlog = Backlog::default();
        for _ in 0..2048 {
            backlog.push((&[0u8; 64][..]).into()).expect("memory");
        }
        assert_eq!((backlog.len(), backlog.chunks.len()), (128 << 10, 2));
        backlog.push((&[][..]).into()).expect("memory");
        assert_eq!(backlog.chunks.len(), 2);
        backlog.clear();
        assert!(backlog.is_empty());
    }
}
