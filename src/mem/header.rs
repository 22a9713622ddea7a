//! The header page of a DMB: the control words of one connection, shared by both ends.
//!
//! ```text
//! offset  0  magic, layout hash                  written once by the server, before anybody else sees the page
//!       256  server's half                       written by the server
//!       512  client's half                       written by the client
//! a half:  0  CDC: type word, producer, consumer, reserved      32 bytes, the SMC-D CDC, host byte order
//!         64  cpu: where its writer last waited
//!        128  reader armed, 136  writer armed    set by the half's writer, cleared by either side
//! ```
//!
//! The words that one side polls and the words that it arms lie in lines of their own (128 bytes: the adjacent-line
//! prefetcher fetches pairs). The page is laid out by this file alone; [`LAYOUT_HASH`] changes with it.

use std::sync::Arc;

use super::memfd::Memory;
use super::sync::{AtomicU64, Ordering};

/// "smcfast" and a zero, as the first word of the page.
const MAGIC: u64 = u64::from_ne_bytes(*b"smcfast\0");
/// Bytes in front of a DMB's ring.
pub const HEADER_LEN: usize = 4096;
/// First word of a CDC: type 0xFE at its first byte, the rest reserved.
const CDC_TYPE: u64 = u64::from_ne_bytes([0xfe, 0, 0, 0, 0, 0, 0, 0]);

/// What one side of a connection tells the other.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Half {
    cdc_type: AtomicU64,
    /// Where this side has written in the other's ring: one CDC cursor word.
    pub producer: AtomicU64,
    /// How far this side has read its own ring, and its flags: one CDC cursor word.
    pub consumer: AtomicU64,
    cdc_reserved: AtomicU64,
    line_0: [AtomicU64; 4],
    /// CPU + 1 in the low half, 0 = not known; in the high half CPU + 1 when the affinity mask holds only that one.
    pub cpu: AtomicU64,
    line_1: [AtomicU64; 7],
    /// Not 0: this side sleeps until so many bytes are readable.
    pub reader_armed: AtomicU64,
    /// Not 0: this side sleeps until so many bytes are writable.
    pub writer_armed: AtomicU64,
    line_2: [AtomicU64; 6],
}

/// The page; see the module.
#[repr(C, align(256))]
#[derive(Debug)]
struct Page {
    magic: AtomicU64,
    layout: AtomicU64,
    reserved: [AtomicU64; 30],
    server: Half,
    client: Half,
}

#[cfg(not(loom))]
mod layout {
    use super::{HEADER_LEN, Half, Page};
    use core::mem::{offset_of, size_of};

    const _: () = {
        assert!(size_of::<Half>() == 256);
        assert!(size_of::<Page>() <= HEADER_LEN);
        assert!(offset_of!(Page, server) == 256 && offset_of!(Page, client) == 512);
    };

    /// The places of all words, mixed into one number.
    pub(super) const fn hash() -> u64 {
        let words = [
            1, // version of the meaning of the words
            HEADER_LEN,
            size_of::<Page>(),
            offset_of!(Page, server),
            offset_of!(Page, client),
            size_of::<Half>(),
            offset_of!(Half, producer),
            offset_of!(Half, consumer),
            offset_of!(Half, cpu),
            offset_of!(Half, reader_armed),
            offset_of!(Half, writer_armed),
            cfg!(target_endian = "big") as usize,
        ];
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut i = 0;
        while i < words.len() {
            hash = (hash ^ words[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        hash
    }
}

/// A number that two builds share only when they lay out the page alike (FNV-1a over all offsets and the byte order).
#[cfg(not(loom))]
pub const LAYOUT_HASH: u64 = layout::hash();
/// Under the model checker nothing is shared.
#[cfg(loom)]
pub const LAYOUT_HASH: u64 = 0;

/// Which half is one's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that accepted; its DMB holds the header of the connection.
    Server,
    /// The end that connected.
    Client,
}

/// The header page of one connection, seen from one side.
#[derive(Debug, Clone)]
pub struct Header {
    memory: Arc<Memory>,
    side: Side,
}

impl Header {
    /// The page at the start of `memory`.
    ///
    /// # Panics
    /// The memory is smaller than the page.
    pub fn new(memory: Arc<Memory>, side: Side) -> Self {
        assert!(
            memory.len() >= HEADER_LEN,
            "{} bytes have no header page",
            memory.len()
        );
        Self { memory, side }
    }

    /// Writes magic, layout and the CDC types into a fresh page. The server does this before it hands the fd out.
    pub fn initialise(&self) {
        let page = self.page();
        page.server.cdc_type.store(CDC_TYPE, Ordering::Relaxed);
        page.client.cdc_type.store(CDC_TYPE, Ordering::Relaxed);
        page.layout.store(LAYOUT_HASH, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether the page says that it is laid out as this build does it.
    pub fn is_known(&self) -> bool {
        let page = self.page();
        page.magic.load(Ordering::Acquire) == MAGIC
            && page.layout.load(Ordering::Relaxed) == LAYOUT_HASH
    }

    /// The half that this side writes.
    #[inline]
    pub fn mine(&self) -> &Half {
        match self.side {
            Side::Server => &self.page().server,
            Side::Client => &self.page().client,
        }
    }

    /// The half that the peer writes.
    #[inline]
    pub fn theirs(&self) -> &Half {
        match self.side {
            Side::Server => &self.page().client,
            Side::Client => &self.page().server,
        }
    }

    /// Whether this process may touch the page (it was not inherited by a fork).
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.memory.is_ours()
    }

    #[inline]
    fn page(&self) -> &Page {
        assert!(self.memory.is_ours(), "shared memory inherited by a fork");
        // SAFETY: the mapping is page-aligned, at least HEADER_LEN >= size_of::<Page>() bytes long (checked by `new`) and
        // lives as long as `self.memory`. All of it is atomics, the padding too, so the reference claims nothing about
        // bytes that the peer may write. Every bit pattern is a valid Page. The peer's writes are atomic stores of the same width, or those of a
        // hostile process, which are outside the abstract machine and reach us only through these atomic loads.
        unsafe { &*self.memory.start().cast::<Page>() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::memfd::create;
    use super::*;

    fn pair() -> (Header, Header) {
        let fd = create(HEADER_LEN, false).expect("memfd");
        let map = || Arc::new(Memory::map(&fd, HEADER_LEN).expect("map"));
        (
            Header::new(map(), Side::Server),
            Header::new(map(), Side::Client),
        )
    }

    #[test]
    fn each_side_sees_the_others_words() {
        let (server, client) = pair();
        server.mine().producer.store(7, Ordering::Release);
        client.mine().consumer.store(9, Ordering::Release);
        assert_eq!(client.theirs().producer.load(Ordering::Acquire), 7);
        assert_eq!(server.theirs().consumer.load(Ordering::Acquire), 9);
        assert_eq!(client.mine().producer.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_page_that_is_not_initialised_is_not_known() {
        let (server, client) = pair();
        assert!(!client.is_known());
        server.initialise();
        assert!(client.is_known());
        client
            .page()
            .layout
            .store(LAYOUT_HASH ^ 1, Ordering::Relaxed);
        assert!(!client.is_known());
    }

    #[test]
    #[should_panic(expected = "no header page")]
    fn memory_without_room_for_the_page_panics() {
        let fd = create(64, false).expect("memfd");
        Header::new(Arc::new(Memory::map(&fd, 64).expect("map")), Side::Server);
    }
}
