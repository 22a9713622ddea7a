//! Reading a status page: the own one, or that of another process, which may say anything.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread::yield_now;

use thiserror::Error;

use super::{Status, totals_of};
use crate::mem::memfd::Refused;
use crate::mem::status::View;
use crate::wire::InvalidMessage;
use crate::wire::status::{HEAD_WORDS, Head, LEN, ROW_WORDS, Row, Totals, VERSION, head, row};

/// Vain looks at one page altogether, at generations that are odd or have changed. Those of a process that was stopped, or
/// has ended, in the middle of a change stay so.
const VAIN_LOOKS: u32 = 100_000;
/// Vain looks at one row.
const VAIN_LOOKS_AT_ROW: u32 = 1_000;

/// What a page said.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The head.
    pub head: Head,
    /// The rows in use, in the order of the page.
    pub rows: Vec<Row>,
    /// Rows that were never seen settled.
    pub unsettled: usize,
}

/// Why a page cannot be read.
#[derive(Debug, Error)]
pub enum Unreadable {
    /// The file is not one that may be mapped.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The page is of another version.
    #[error("status page: version {0}, this is {VERSION}")]
    Version(u32),
    /// It is no status page, or breaks its rules.
    #[error("{0}")]
    Invalid(InvalidMessage),
    /// The head was never seen settled.
    #[error("status page: its process does not finish changing it")]
    Unsettled,
}

impl From<InvalidMessage> for Unreadable {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Invalid(invalid)
    }
}

/// The status page of another process.
#[derive(Debug)]
pub struct Foreign(View);

impl Foreign {
    /// The page in the file behind `fd`.
    ///
    /// # Errors
    /// [`Unreadable`]: the file may shrink or is too short, or has no page of this version.
    pub fn open(fd: impl AsFd) -> Result<Self, Unreadable> {
        let start = View::map(&fd, 8 * HEAD_WORDS)?;
        let version = Head::version(&[start.load(head::MAGIC), start.load(head::VERSION)])?;
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        Ok(Self(View::map(&fd, LEN)?))
    }

    /// What it says now.
    ///
    /// # Errors
    /// [`Unreadable`]: it breaks the rules.
    pub fn read(&self) -> Result<Snapshot, Unreadable> {
        read(|index| self.0.load(index))
    }
}

impl Status {
    /// What the own page says now.
    ///
    /// # Errors
    /// None but for mistakes in this module.
    pub fn read(&self) -> Result<Snapshot, Unreadable> {
        read(self.load())
    }

    /// The head, with the totals of open connections in it as well.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn totals(&self) -> Result<Head, Unreadable> {
        // Nobody opens or ends a connection meanwhile.
        let _table = self.is_ours().then(|| self.table());
        let mut reader = Reader::new(self.load());
        let mut head = reader.head()?;
        for index in 0..head.used {
            if let Some(words) = reader.row(index) {
                add(&mut head.totals, totals_of(&words));
            }
        }
        Ok(head)
    }

    fn load(&self) -> impl Fn(usize) -> u64 {
        let words = self.shown.words();
        |index| words[index].load(Ordering::Acquire)
    }
}

fn add(sums: &mut Totals, values: Totals) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.wrapping_add(value);
    }
}

fn read(load: impl Fn(usize) -> u64) -> Result<Snapshot, Unreadable> {
    let mut reader = Reader::new(load);
    let head = reader.head()?;
    let mut rows = Vec::new();
    let mut unsettled = 0;
    for index in 0..head.used {
        match reader.row(index) {
            Some(words) => rows.extend(Row::decode(&words)?),
            None => unsettled += 1,
        }
    }
    Ok(Snapshot {
        head,
        rows,
        unsettled,
    })
}

/// Loads what a generation stands for, while that does not change.
struct Reader<L> {
    load: L,
    /// So many vain looks are left.
    patience: u32,
}

impl<L: Fn(usize) -> u64> Reader<L> {
    fn new(load: L) -> Self {
        Self {
            load,
            patience: VAIN_LOOKS,
        }
    }

    /// SYNC POINT with `Status::writing`.
    fn head(&mut self) -> Result<Head, Unreadable> {
        let words = self
            .settled::<HEAD_WORDS>(0, head::GENERATION, VAIN_LOOKS)
            .ok_or(Unreadable::Unsettled)?;
        Ok(Head::decode(&words)?)
    }

    /// SYNC POINT with `rewrite`, and with the stores of an endpoint: a counter is loaded before those that it follows from,
    /// and stored after them.
    fn row(&mut self, index: usize) -> Option<[u64; ROW_WORDS]> {
        self.settled(
            HEAD_WORDS + index * ROW_WORDS,
            row::GENERATION,
            VAIN_LOOKS_AT_ROW,
        )
    }

    /// `N` words from `start` on, loaded in descending order between two equal looks at their generation.
    fn settled<const N: usize>(
        &mut self,
        start: usize,
        generation: usize,
        vain_max: u32,
    ) -> Option<[u64; N]> {
        let mut vain = 0;
        loop {
            let before = (self.load)(start + generation);
            let mut words = [0; N];
            for index in (0..N).rev() {
                words[index] = (self.load)(start + index);
            }
            let after = (self.load)(start + generation);
            if before & 1 == 0 && words[generation] == before && after == before {
                return Some(words);
            }
            if vain == vain_max || self.patience == 0 {
                return None;
            }
            vain += 1;
            self.patience -= 1;
            // Its thread may wait for this very CPU.
            yield_now();
        }
    }
}
