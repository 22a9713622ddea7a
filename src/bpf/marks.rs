//! Which sockets take part in the option, and what became of it: a value that the kernel keeps with each socket.
//!
//! It needs no removing: it goes when its socket goes, however the process ends. Who may open the map can mark and ask
//! sockets of its own, and no others.

use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, MapError, SkStorage};
use rustix::io::Errno;

use super::Error;

/// What became of the option on a socket; `enum state` of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The program has not seen the socket connect or listen.
    Wanted,
    /// The SYN is under way, or the listener listens.
    TakenUp,
    /// SYN and SYN/ACK had the option: both ends speak SMC.
    Announced,
    /// The peer's had none.
    Silent,
    /// The header had no room for it.
    NoRoom,
    /// Fast Open, Multipath TCP or a signature was in the header.
    Unfit,
    /// The SYN was answered with a SYN cookie, and forgotten.
    NoSyn,
}

impl State {
    /// None for what no program of this version writes.
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Wanted,
            2 => Self::TakenUp,
            3 => Self::Announced,
            4 => Self::Silent,
            5 => Self::NoRoom,
            6 => Self::Unfit,
            7 => Self::NoSyn,
            _ => return None,
        })
    }

    /// The name that Python gets.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::TakenUp => "taken up",
            Self::Announced => "announced",
            Self::Silent => "silent",
            Self::NoRoom => "no room",
            Self::Unfit => "unfit",
            Self::NoSyn => "no syn",
        }
    }
}

/// `struct mark` of the program: state, sent, listens, others.
type Mark = [u8; 4];

const WANTED: Mark = [1, 0, 0, 0];
const NOEXIST: u64 = 1;

/// The map of the marks.
#[derive(Debug)]
pub struct Marks(SkStorage<MapData, Mark>);

impl Marks {
    /// # Errors
    /// It is not the map of this version's program.
    pub(super) fn new(map: Map) -> Result<Self, Error> {
        let marks = SkStorage::try_from(map);
        Ok(Self(marks.map_err(|error| {
            Error::within("looking at the map of another version", &error)
        })?))
    }

    /// The map in the file at `path`, which somebody has pinned there.
    ///
    /// # Errors
    /// There is none, this process may not open it, or it is another kind of map.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let doing = "opening the installed map";
        let map = MapData::from_pin(path).map_err(|error| Error::within(doing, &error))?;
        Self::new(Map::from_map_data(map).map_err(|error| Error::within(doing, &error))?)
    }

    /// Keeps the map in a file of a BPF file system.
    pub(super) fn pin(self, path: &Path) -> Result<(), Error> {
        self.0
            .pin(path)
            .map_err(|error| Error::within("pinning the map", &error))
    }

    /// Lets `socket` take part when it connects or listens. One that is marked already stays as it is.
    ///
    /// # Errors
    /// It is no socket (ENOTSOCK), or memory is short.
    pub fn mark(&mut self, socket: &impl AsFd) -> Result<(), Error> {
        match self.0.insert(&socket.as_fd().as_raw_fd(), WANTED, NOEXIST) {
            Ok(()) => Ok(()),
            Err(error) => {
                let error = Error::within("marking the socket", &error);
                if error.number() == Some(Errno::EXIST.raw_os_error()) {
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// What became of the option on `socket`; None when it takes no part.
    ///
    /// # Errors
    /// It is no socket, or the state is none of this version's.
    pub fn state(&self, socket: &impl AsFd) -> Result<Option<State>, Error> {
        let doing = "asking for the socket's mark";
        match self.0.get(&socket.as_fd().as_raw_fd(), 0) {
            Ok([byte, ..]) => match State::from_byte(byte) {
                Some(state) => Ok(Some(state)),
                None => Err(Error::new(doing, Errno::PROTO)),
            },
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(Error::within(doing, &error)),
        }
    }
}
