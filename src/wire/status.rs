//! The words of a status page: what a process shows of its connections and listeners to tools on the same host.
//!
//! A private layout, version 1, of 64-bit words in host byte order: a head of [`HEAD_WORDS`] words, and behind it
//! [`CAPACITY`] rows of [`ROW_WORDS`] words each. A version has one capacity, so a file of it has one size: [`LEN`].
//!
//! ```text
//! head:    0 magic "smcstat\0"   1 version (low 32), bytes of a row (high)   2 capacity   3 id   4 pid   5 begun
//!        6-9 text: version of the package   10 rows in use   11 generation of the words from here on
//!         12 connections and listeners without a row   13-21 totals of ended connections
//!      22-25 streams by path   26 forbidden   27 failed   28 fallbacks of other reasons   256-511 reason, count: 128 pairs
//! row:     0 generation   1 kind, role, path, family (8 each), local port, remote port (16 each)   2-3 local host
//!        4-5 remote host   6 fallback (low 32), link group (high)   7 sizes (8 each), zero (16), scope (32)
//!          8 sent   9 acknowledged   10 received   11 read   12 writes   13 reads   14 backlog   15 state
//!      16-20 wake-ups sent, received, spins, stalls for room, for data   21 opened   22-23 peer's engine
//! ```
//!
//! A generation is odd while what it stands for is being rewritten. It protects a row's identity; the counters are single
//! words that only grow, and a row's writer stores them in ascending order of their place. Whoever loads them in
//! descending order finds none ahead of what it follows from.
//!
//! The page of another process is read as strictly as a message of a peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{EngineId, Fault, InvalidMessage, SizeCode};

/// The version of the layout.
pub const VERSION: u32 = 1;
/// Words of the head: one page.
pub const HEAD_WORDS: usize = 512;
/// Words of a row: three cache lines.
pub const ROW_WORDS: usize = 24;
/// Rows of a page.
pub const CAPACITY: usize = 65_536;
/// Bytes of the whole.
pub const LEN: usize = 8 * (HEAD_WORDS + CAPACITY * ROW_WORDS);
/// Reasons of fallback that are counted apart; those beyond are counted together.
pub const REASONS: usize = 128;

const MAGIC: u64 = u64::from_ne_bytes(*b"smcstat\0");
const NAME: &str = "status page";

/// Places in the head.
pub mod head {
    #![allow(missing_docs, reason = "the table of the module")]
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const CAPACITY: usize = 2;
    pub const ID: usize = 3;
    pub const PID: usize = 4;
    pub const BEGUN: usize = 5;
    pub const PACKAGE: usize = 6;
    pub const USED: usize = 10;
    pub const GENERATION: usize = 11;
    pub const HIDDEN: usize = 12;
    pub const TOTALS: usize = 13;
    pub const PATHS: usize = 22;
    pub const FORBIDDEN: usize = 26;
    pub const FAILED: usize = 27;
    pub const OTHER: usize = 28;
    pub const REASONS: usize = 256;
}

/// Places in a row.
pub mod row {
    #![allow(missing_docs, reason = "the table of the module")]
    pub const GENERATION: usize = 0;
    pub const WHAT: usize = 1;
    pub const LOCAL: usize = 2;
    pub const REMOTE: usize = 4;
    pub const FALLBACK: usize = 6;
    pub const SIZES: usize = 7;
    pub const SENT: usize = 8;
    pub const ACKNOWLEDGED: usize = 9;
    pub const RECEIVED: usize = 10;
    pub const READ: usize = 11;
    pub const WRITES: usize = 12;
    pub const READS: usize = 13;
    pub const BACKLOG: usize = 14;
    pub const STATE: usize = 15;
    pub const WAKEUPS_SENT: usize = 16;
    pub const WAKEUPS_RECEIVED: usize = 17;
    pub const SPINS: usize = 18;
    pub const STALLS_SENT: usize = 19;
    pub const STALLS_RECEIVED: usize = 20;
    pub const OPENED: usize = 21;
    pub const ENGINE: usize = 22;
}

/// Declares an enum that stands in one byte, with the names that people read.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $code:literal $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$each])* $variant = $code,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            fn decode(field: &'static str, byte: u8) -> Result<Self, InvalidMessage> {
                match byte {
                    $($code => Ok(Self::$variant),)+
                    _ => Err(illegal(field, "is not known")),
                }
            }
        }
    };
}

byte_enum! {
    /// What a row is.
    Kind {
        /// A listening socket.
        Listener = 1 "listener",
        /// One end of a connection.
        Connection = 2 "connection",
    }
}

byte_enum! {
    /// The role of an end.
    Role {
        /// It has connected.
        Client = 1 "client",
        /// It has accepted, or will.
        Server = 2 "server",
    }
}

byte_enum! {
    /// The path of a connection, or the best one that a listener offers.
    Path {
        /// Shared memory.
        SmcD = 0 "smc-d",
        /// RDMA.
        SmcR = 1 "smc-r",
        /// A socket of the kernel's SMC.
        Kernel = 2 "kernel",
        /// TCP.
        Tcp = 3 "tcp",
    }
}

byte_enum! {
    /// The state of an end, by the names that users of the kernel's tools know.
    State {
        /// Both directions are open; also every TCP connection that is not closed.
        Active = 0 "ACTIVE",
        /// This end has ended its stream.
        PeerCloseWait1 = 1 "PEERCLOSEWAIT1",
        /// As before, and the peer's stream has ended.
        PeerCloseWait2 = 2 "PEERCLOSEWAIT2",
        /// The peer's stream has ended.
        AppCloseWait1 = 3 "APPCLOSEWAIT1",
        /// As before, and this end has ended its stream.
        AppCloseWait2 = 4 "APPCLOSEWAIT2",
        /// The peer has closed; this end has ended its stream.
        AppFinCloseWait = 5 "APPFINCLOSEWAIT",
        /// This end has closed, the peer has only ended its stream.
        PeerFinCloseWait = 6 "PEERFINCLOSEWAIT",
        /// The peer has aborted.
        ProcessAbort = 7 "PROCESSABORT",
        /// The peer was lost.
        PeerAbortWait = 8 "PEERABORTWAIT",
        /// Nothing is left to do for this end.
        Closed = 9 "CLOSED",
        /// A listener.
        Listen = 10 "LISTEN",
    }
}

/// The sums over connections, in the order of the page.
pub const TOTALS: [&str; 9] = [
    "bytes_sent",
    "bytes_received",
    "messages_sent",
    "messages_received",
    "wakeups_sent",
    "wakeups_received",
    "spins",
    "stalls_sent",
    "stalls_received",
];
/// Values of [`TOTALS`].
pub type Totals = [u64; TOTALS.len()];
/// The place in a row of each of [`TOTALS`].
pub const TOTALS_IN_ROW: [usize; TOTALS.len()] = [
    row::SENT,
    row::RECEIVED,
    row::WRITES,
    row::READS,
    row::WAKEUPS_SENT,
    row::WAKEUPS_RECEIVED,
    row::SPINS,
    row::STALLS_SENT,
    row::STALLS_RECEIVED,
];

/// The head of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The number in the name at which the page can be had; 0 without a name.
    pub id: u64,
    /// The process, as it sees itself.
    pub pid: u32,
    /// When the page was made: microseconds since 1970.
    pub begun: u64,
    /// The version of the package: at most 32 printable ASCII characters.
    pub package: String,
    /// So many rows were ever in use: none behind them is.
    pub used: usize,
    /// Connections and listeners that found no row.
    pub hidden: u64,
    /// Of the connections that have ended.
    pub totals: Totals,
    /// Streams by [`Path`], since the process began.
    pub paths: [u64; 4],
    /// Fallbacks that were refused.
    pub forbidden: u64,
    /// Connections that a broken handshake has spoiled.
    pub failed: u64,
    /// Fallbacks of reasons that found no place.
    pub other: u64,
    /// Fallbacks by code, in the order of their first.
    pub reasons: Vec<(u32, u64)>,
}

/// A row in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub kind: Kind,
    /// Whose end.
    pub role: Role,
    /// Its path.
    pub path: Path,
    /// Its state.
    pub state: State,
    /// The own address, if it has one.
    pub local: Option<SocketAddr>,
    /// The peer's address, if the own one is known.
    pub remote: Option<SocketAddr>,
    /// Why it is TCP; 0 if it is not, or was not meant to be anything else.
    pub fallback: u32,
    /// The number of its link group; 0 without one.
    pub link_group: u32,
    /// The size of the own ring.
    pub own_size: Option<SizeCode>,
    /// The size of the peer's ring.
    pub peer_size: Option<SizeCode>,
    /// Bytes written into the peer's ring.
    pub sent: u64,
    /// Those that the peer has told to have read, as far as this end has looked.
    pub acknowledged: u64,
    /// Bytes in the own ring, as far as this end has looked.
    pub received: u64,
    /// Those that were read.
    pub read: u64,
    /// Writes into the ring.
    pub writes: u64,
    /// Reads out of the ring.
    pub reads: u64,
    /// Bytes that wait for room in the peer's ring.
    pub backlog: u64,
    /// Times that the peer was rung.
    pub wakeups_sent: u64,
    /// Waits that the doorbell ended.
    pub wakeups_received: u64,
    /// Waits that spinning ended.
    pub spins: u64,
    /// Waits for room that went to sleep.
    pub stalls_sent: u64,
    /// Waits for data that went to sleep.
    pub stalls_received: u64,
    /// When it was opened: microseconds since 1970.
    pub opened: u64,
    /// The peer's engine; zero without one.
    pub engine: EngineId,
}

impl Head {
    /// The version of a page of any version, from its first words.
    ///
    /// # Errors
    /// It is no status page.
    pub fn version(words: &[u64]) -> Result<u32, InvalidMessage> {
        if words.first() != Some(&MAGIC) {
            return Err(illegal("magic", "is not that of a status page"));
        }
        words
            .get(head::VERSION)
            .map(|word| *word as u32)
            .ok_or_else(|| illegal("version", "is missing"))
    }

    /// The head in its words.
    ///
    /// # Errors
    /// The version is another one; a value is not legal.
    pub fn decode(words: &[u64; HEAD_WORDS]) -> Result<Self, InvalidMessage> {
        expect("version", Self::version(words)?.into(), VERSION.into())?;
        expect(
            "bytes of a row",
            words[head::VERSION] >> 32,
            8 * ROW_WORDS as u64,
        )?;
        expect("capacity", words[head::CAPACITY], CAPACITY as u64)?;
        let pid = u32::try_from(words[head::PID]).map_err(|_| illegal("pid", "is too large"))?;
        let used = words[head::USED];
        if used > CAPACITY as u64 {
            return Err(illegal("rows in use", "are more than there are"));
        }
        if words[head::GENERATION] & 1 == 1 {
            return Err(illegal("generation", "is odd"));
        }
        Ok(Self {
            id: words[head::ID],
            pid,
            begun: words[head::BEGUN],
            package: text(&words[head::PACKAGE..head::USED])?,
            used: used as usize,
            hidden: words[head::HIDDEN],
            totals: part(words, head::TOTALS),
            paths: part(words, head::PATHS),
            forbidden: words[head::FORBIDDEN],
            failed: words[head::FAILED],
            other: words[head::OTHER],
            reasons: reasons(&words[head::REASONS..])?,
        })
    }

    /// The words of the head. More than 32 bytes of text, and more reasons than there is room for, are cut off.
    #[must_use]
    pub fn encode(&self) -> [u64; HEAD_WORDS] {
        let mut words = [0; HEAD_WORDS];
        words[head::MAGIC] = MAGIC;
        words[head::VERSION] = u64::from(VERSION) | (8 * ROW_WORDS as u64) << 32;
        words[head::CAPACITY] = CAPACITY as u64;
        words[head::ID] = self.id;
        words[head::PID] = self.pid.into();
        words[head::BEGUN] = self.begun;
        for (word, chunk) in words[head::PACKAGE..head::USED]
            .iter_mut()
            .zip(self.package.as_bytes().chunks(8))
        {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(bytes);
        }
        words[head::USED] = self.used as u64;
        words[head::HIDDEN] = self.hidden;
        words[head::TOTALS..][..TOTALS.len()].copy_from_slice(&self.totals);
        words[head::PATHS..][..4].copy_from_slice(&self.paths);
        words[head::FORBIDDEN] = self.forbidden;
        words[head::FAILED] = self.failed;
        words[head::OTHER] = self.other;
        for (pair, (code, count)) in words[head::REASONS..].chunks_mut(2).zip(&self.reasons) {
            pair.copy_from_slice(&[u64::from(*code), *count]);
        }
        words
    }
}

impl Row {
    /// A row of nothing yet.
    #[must_use]
    pub const fn new(kind: Kind, role: Role, path: Path, state: State) -> Self {
        Self {
            kind,
            role,
            path,
            state,
            local: None,
            remote: None,
            fallback: 0,
            link_group: 0,
            own_size: None,
            peer_size: None,
            sent: 0,
            acknowledged: 0,
            received: 0,
            read: 0,
            writes: 0,
            reads: 0,
            backlog: 0,
            wakeups_sent: 0,
            wakeups_received: 0,
            spins: 0,
            stalls_sent: 0,
            stalls_received: 0,
            opened: 0,
            engine: EngineId([0; 16]),
        }
    }

    /// The row in its words, whose generation was looked at before; None if it is not in use.
    ///
    /// # Errors
    /// A value is not legal, or one counter is ahead of another that it follows from.
    pub fn decode(words: &[u64; ROW_WORDS]) -> Result<Option<Self>, InvalidMessage> {
        let [kind, role, path, family, local, local_, remote, remote_] =
            words[row::WHAT].to_le_bytes();
        if words[row::WHAT] == 0 {
            return Ok(None);
        }
        let [own_size, peer_size, zero, zero_, scope @ ..] = words[row::SIZES].to_le_bytes();
        expect("zero", u16::from_le_bytes([zero, zero_]).into(), 0)?;
        let scope = u32::from_le_bytes(scope);
        let address = |at: usize, port| address(family, part(words, at), port, scope);
        let state =
            u8::try_from(words[row::STATE]).map_err(|_| illegal("state", "is not known"))?;
        let decoded = Self {
            kind: Kind::decode("kind", kind)?,
            role: Role::decode("role", role)?,
            path: Path::decode("path", path)?,
            state: State::decode("state", state)?,
            local: address(row::LOCAL, u16::from_le_bytes([local, local_]))?,
            remote: address(row::REMOTE, u16::from_le_bytes([remote, remote_]))?,
            fallback: words[row::FALLBACK] as u32,
            link_group: (words[row::FALLBACK] >> 32) as u32,
            own_size: size(own_size)?,
            peer_size: size(peer_size)?,
            sent: words[row::SENT],
            acknowledged: words[row::ACKNOWLEDGED],
            received: words[row::RECEIVED],
            read: words[row::READ],
            writes: words[row::WRITES],
            reads: words[row::READS],
            backlog: words[row::BACKLOG],
            wakeups_sent: words[row::WAKEUPS_SENT],
            wakeups_received: words[row::WAKEUPS_RECEIVED],
            spins: words[row::SPINS],
            stalls_sent: words[row::STALLS_SENT],
            stalls_received: words[row::STALLS_RECEIVED],
            opened: words[row::OPENED],
            engine: engine(part(words, row::ENGINE)),
        };
        decoded.check()?;
        Ok(Some(decoded))
    }

    fn check(&self) -> Result<(), InvalidMessage> {
        let ahead = [
            ("acknowledged", self.acknowledged, self.sent),
            ("read", self.read, self.received),
            ("writes", self.writes, self.sent),
            ("reads", self.reads, self.read),
        ];
        ahead
            .iter()
            .find(|(_, follower, leader)| follower > leader)
            .map_or(Ok(()), |(field, ..)| {
                Err(illegal(field, "is ahead of the bytes"))
            })
    }

    /// The words of the row, with generation 0.
    #[must_use]
    pub fn encode(&self) -> [u64; ROW_WORDS] {
        let mut words = [0; ROW_WORDS];
        let (family, scope) = match self.local.or(self.remote) {
            None => (0, 0),
            Some(SocketAddr::V4(_)) => (4, 0),
            Some(SocketAddr::V6(address)) => (6, address.scope_id()),
        };
        let port =
            |address: Option<SocketAddr>| address.map_or(0, |address| address.port()).to_le_bytes();
        let ([local, local_], [remote, remote_]) = (port(self.local), port(self.remote));
        words[row::WHAT] = u64::from_le_bytes([
            self.kind as u8,
            self.role as u8,
            self.path as u8,
            family,
            local,
            local_,
            remote,
            remote_,
        ]);
        words[row::LOCAL..][..2].copy_from_slice(&host(self.local));
        words[row::REMOTE..][..2].copy_from_slice(&host(self.remote));
        words[row::FALLBACK] = u64::from(self.fallback) | u64::from(self.link_group) << 32;
        let code = |size: Option<SizeCode>| size.map_or(0, |size| size.code() + 1);
        let [s0, s1, s2, s3] = scope.to_le_bytes();
        words[row::SIZES] = u64::from_le_bytes([
            code(self.own_size),
            code(self.peer_size),
            0,
            0,
            s0,
            s1,
            s2,
            s3,
        ]);
        words[row::SENT] = self.sent;
        words[row::ACKNOWLEDGED] = self.acknowledged;
        words[row::RECEIVED] = self.received;
        words[row::READ] = self.read;
        words[row::WRITES] = self.writes;
        words[row::READS] = self.reads;
        words[row::BACKLOG] = self.backlog;
        words[row::STATE] = self.state as u64;
        words[row::WAKEUPS_SENT] = self.wakeups_sent;
        words[row::WAKEUPS_RECEIVED] = self.wakeups_received;
        words[row::SPINS] = self.spins;
        words[row::STALLS_SENT] = self.stalls_sent;
        words[row::STALLS_RECEIVED] = self.stalls_received;
        words[row::OPENED] = self.opened;
        words[row::ENGINE..][..2].copy_from_slice(&halves(self.engine.0));
        words
    }
}

fn illegal(field: &'static str, what: &'static str) -> InvalidMessage {
    InvalidMessage::new(NAME, field, Fault::Illegal(what))
}

fn expect(field: &'static str, found: u64, expected: u64) -> Result<(), InvalidMessage> {
    if found == expected {
        return Ok(());
    }
    Err(InvalidMessage::new(
        NAME,
        field,
        Fault::Unexpected { found, expected },
    ))
}

/// `N` words from `at` on.
fn part<const N: usize>(words: &[u64], at: usize) -> [u64; N] {
    std::array::from_fn(|i| words[at + i])
}

fn text(words: &[u64]) -> Result<String, InvalidMessage> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    let printable = bytes[..len].iter().all(|byte| (0x20..0x7f).contains(byte));
    if !printable || bytes[len..].iter().any(|byte| *byte != 0) {
        return Err(illegal("package", "is not printable text"));
    }
    Ok(bytes[..len].iter().map(|byte| char::from(*byte)).collect())
}

fn reasons(words: &[u64]) -> Result<Vec<(u32, u64)>, InvalidMessage> {
    let pairs = words.chunks(2).map(|pair| (pair[0], pair[1]));
    pairs
        .take_while(|(_, count)| *count > 0)
        .map(|(code, count)| match u32::try_from(code) {
            Ok(code) => Ok((code, count)),
            Err(_) => Err(illegal("reason", "is too large")),
        })
        .collect()
}

fn size(byte: u8) -> Result<Option<SizeCode>, InvalidMessage> {
    let Some(code) = byte.checked_sub(1) else {
        return Ok(None);
    };
    SizeCode::new(code)
        .map(Some)
        .ok_or_else(|| illegal("size", "is not one of a ring"))
}

fn address(
    family: u8,
    host: [u64; 2],
    port: u16,
    scope: u32,
) -> Result<Option<SocketAddr>, InvalidMessage> {
    let bytes: [u8; 16] = engine(host).0;
    match family {
        0 if host == [0; 2] && port == 0 && scope == 0 => Ok(None),
        4 | 6 if host == [0; 2] && port == 0 => Ok(None),
        4 if bytes[4..] == [0; 12] && scope == 0 => {
            let host = Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]);
            Ok(Some((host, port).into()))
        }
        6 => Ok(Some(
            SocketAddrV6::new(Ipv6Addr::from(bytes), port, 0, scope).into(),
        )),
        _ => Err(illegal("address", "is not of its family")),
    }
}

fn host(address: Option<SocketAddr>) -> [u64; 2] {
    let mut bytes = [0; 16];
    match address.map(|address| address.ip()) {
        None => {}
        Some(IpAddr::V4(host)) => bytes[..4].copy_from_slice(&host.octets()),
        Some(IpAddr::V6(host)) => bytes = host.octets(),
    }
    halves(bytes)
}

fn halves(bytes: [u8; 16]) -> [u64; 2] {
    let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    [half(0), half(8)]
}

fn engine([first, second]: [u64; 2]) -> EngineId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..].copy_from_slice(&second.to_ne_bytes());
    EngineId(bytes)
}
