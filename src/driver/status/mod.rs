//! The status page of this process: who has which row, and the counters of all.
//!
//! A row has one writer, its connection, and none waits for a reader. What is not of one connection is written under the
//! page's lock. A process that gets no page, or no row, counts on, unseen.

mod read;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::mem::fork;
use crate::mem::status::Shown;
use crate::wire::status::{
    CAPACITY, HEAD_WORDS, Head, LEN, Path, REASONS, ROW_WORDS, Row, TOTALS_IN_ROW, Totals, head,
    row,
};

pub use read::{Foreign, Snapshot, Unreadable};

/// The name of the memfd, by which it is found in `/proc/PID/fd`.
pub const NAME: &str = "smcfast-status";

/// The words of one row.
pub(super) type Words = [AtomicU64; ROW_WORDS];

/// The page. There is one in each process, made at its first connection or listener.
#[derive(Debug)]
pub struct Status {
    shown: Shown,
    generation: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    free: Vec<usize>,
    /// Rows from here on were never in use.
    used: usize,
    /// Words whose memory was taken.
    taken: usize,
}

/// A place in the page for one connection or listener; it is free again when this drops.
#[derive(Debug)]
pub struct Place {
    status: Arc<Status>,
    at: Option<(usize, &'static Words)>,
    /// What the connection has done: stays in the sums.
    totals: Totals,
}

impl Status {
    /// The page of the process `pid`, of this `package` version. One that others cannot see, if the system refuses it.
    ///
    /// # Errors
    /// There is not even memory for that; EINVAL on kernels older than 4.14.
    pub fn new(pid: u32, package: &str) -> io::Result<Self> {
        let shown = Shown::create(NAME, LEN).or_else(|_| Shown::private(LEN))?;
        let mut table = Table::default();
        let shown = match shown.take(0, HEAD_WORDS) {
            Ok(taken) => {
                table.taken = taken;
                shown
            }
            Err(_) => Shown::private(LEN)?,
        };
        let status = Self {
            shown,
            generation: fork::generation()?,
            table: Mutex::new(table),
        };
        let head = Head {
            id: 0,
            pid,
            begun: now(),
            package: package.to_owned(),
            used: 0,
            hidden: 0,
            totals: Totals::default(),
            paths: [0; 4],
            forbidden: 0,
            failed: 0,
            other: 0,
            reasons: Vec::new(),
        };
        // The magic word comes last: who finds the page has the rest as well.
        for (index, word) in head.encode().into_iter().enumerate().rev() {
            status.shown.words()[index].store(word, Ordering::Release);
        }
        Ok(status)
    }

    /// Whether this process made the page; false in a forked child, which must make its own.
    pub fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    /// Whether others can see the page.
    pub fn is_shared(&self) -> bool {
        self.shown.is_shared()
    }

    /// A new descriptor of the page, for reading only.
    ///
    /// # Errors
    /// Those of [`Shown::reopen`].
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        self.shown.reopen()
    }

    /// The page can be had at the name with this number.
    pub fn set_id(&self, id: u64) {
        if self.is_ours() {
            self.head(head::ID).store(id, Ordering::Release);
        }
    }

    /// One more stream on `path`.
    pub fn count_stream(&self, path: Path) {
        self.count(|status| status.add(head::PATHS + path as usize, 1));
    }

    /// One more connection that can only be TCP: a stream, or refused if `forbidden`.
    pub fn count_fallback(&self, code: u32, forbidden: bool) {
        self.count(|status| {
            status.add_reason(code);
            status.add(
                if forbidden {
                    head::FORBIDDEN
                } else {
                    head::PATHS + Path::Tcp as usize
                },
                1,
            );
        });
    }

    /// One more connection that its handshake has spoiled.
    pub fn count_failure(&self, code: u32) {
        self.count(|status| {
            status.add_reason(code);
            status.add(head::FAILED, 1);
        });
    }

    /// A place for `row`, whose counters it takes over. If there is none left the place shows nothing.
    pub fn place(self: &Arc<Self>, row: &Row) -> Place {
        let at = if self.is_ours() {
            self.claim(row)
        } else {
            None
        };
        Place {
            status: Arc::clone(self),
            at,
            totals: Totals::default(),
        }
    }

    fn claim(&self, row: &Row) -> Option<(usize, &'static Words)> {
        let mut table = self.table();
        let Some(index) = self.free_row(&mut table) else {
            self.writing(|status| status.add(head::HIDDEN, 1));
            return None;
        };
        let words = self.row(index)?;
        rewrite(words, &row.encode());
        if index == table.used {
            table.used += 1;
            self.head(head::USED)
                .store(table.used as u64, Ordering::Release);
        }
        Some((index, words))
    }

    fn free_row(&self, table: &mut Table) -> Option<usize> {
        if let Some(index) = table.free.pop() {
            return Some(index);
        }
        let end = HEAD_WORDS + (table.used + 1) * ROW_WORDS;
        if table.used == CAPACITY {
            return None;
        }
        table.taken = table.taken.max(self.shown.take(table.taken, end).ok()?);
        Some(table.used)
    }

    fn row(&self, index: usize) -> Option<&'static Words> {
        self.shown.words()[HEAD_WORDS + index * ROW_WORDS..].first_chunk()
    }

    fn release(&self, at: Option<(usize, &'static Words)>, totals: Totals) {
        if !self.is_ours() {
            return;
        }
        let mut table = self.table();
        self.writing(|status| {
            for (index, value) in totals.into_iter().enumerate() {
                status.add(head::TOTALS + index, value);
            }
            match at {
                Some((index, words)) => {
                    rewrite(words, &[0; ROW_WORDS]);
                    table.free.push(index);
                }
                None => status.add(head::HIDDEN, 1u64.wrapping_neg()),
            }
        });
    }

    fn count(&self, change: impl FnOnce(&Self)) {
        if self.is_ours() {
            let _table = self.table();
            self.writing(change);
        }
    }

    /// Changes counters of the head; the lock is held. SYNC POINT with `read::head`.
    fn writing(&self, change: impl FnOnce(&Self)) {
        let generation = self.head(head::GENERATION);
        let before = generation.load(Ordering::Relaxed);
        generation.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        generation.store(before.wrapping_add(2), Ordering::Release);
    }

    fn add_reason(&self, code: u32) {
        let pairs = (0..REASONS).map(|pair| head::REASONS + 2 * pair);
        for at in pairs {
            let count = self.head(at + 1).load(Ordering::Relaxed);
            if count == 0 {
                self.head(at).store(code.into(), Ordering::Release);
            }
            if count == 0 || self.head(at).load(Ordering::Relaxed) == u64::from(code) {
                return self.add(at + 1, 1);
            }
        }
        self.add(head::OTHER, 1);
    }

    fn add(&self, at: usize, value: u64) {
        let word = self.head(at);
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(value),
            Ordering::Release,
        );
    }

    fn head(&self, at: usize) -> &AtomicU64 {
        &self.shown.words()[at]
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The words to write, if there are any.
    pub(super) fn words(&self) -> Option<&'static Words> {
        self.at.map(|(_, words)| words)
    }

    /// Gives the place back. What the connection has done stays in the sums.
    pub(super) fn give_back(mut self, totals: Totals) {
        self.totals = totals;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.status.release(self.at, self.totals);
    }
}

/// Gives a row another meaning. SYNC POINT with `read::row`.
fn rewrite(words: &Words, values: &[u64; ROW_WORDS]) {
    let generation = &words[row::GENERATION];
    let before = generation.load(Ordering::Relaxed);
    generation.store(before.wrapping_add(1), Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(values).skip(1) {
        word.store(*value, Ordering::Release);
    }
    generation.store(before.wrapping_add(2), Ordering::Release);
}

/// The totals of one row's words.
fn totals_of(words: &[u64; ROW_WORDS]) -> Totals {
    TOTALS_IN_ROW.map(|at| words[at])
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests;
