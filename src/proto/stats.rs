//! Counters of one connection.

/// What a connection has done since it began. All values only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes written into the peer's ring.
    pub bytes_sent: u64,
    /// Those that the peer has told to have read.
    pub bytes_acknowledged: u64,
    /// Bytes that the peer has written into the own ring.
    pub bytes_received: u64,
    /// Bytes that the application has read; the rest of the received ones is readable.
    pub bytes_read: u64,
    /// Calls of [`Connection::produced`](super::connection::Connection::produced).
    pub writes: u64,
    /// Calls of [`Connection::consumed`](super::connection::Connection::consumed).
    pub reads: u64,
    /// Consumer cursors announced that released something.
    pub updates: u64,
    /// Times that the application wanted to write more than the peer had room for.
    pub write_blocks: u64,
}

/// The counters that do not follow from positions.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) updates: u64,
    pub(super) write_blocks: u64,
}
