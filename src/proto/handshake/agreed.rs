//! What the two sides of a handshake agree on, and what each tells of its own end.

use crate::wire::clc::{Eid, Gid, Ism, Release, Reply, SmcD, SmcR, Version};

/// The way that data takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// RDMA.
    R,
    /// Direct memory: a shared one or an ISM device.
    D,
}

/// What both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The version of the link group.
    pub version: Version,
    /// SMC-R or SMC-D.
    pub path: Path,
    /// Whether the connection is the first of a new link group.
    pub first_contact: bool,
    /// The release of a new link group of version 2. The connection of an older one has that link group's.
    pub release: Option<Release>,
    /// The enterprise id that both have; none in version 1.
    pub eid: Option<Eid>,
    /// Limits of a new link group; from release 1 on, with SMC-R.
    pub limits: Option<Limits>,
}

/// Limits of a link group, from release 1 on. Without them a kernel takes 255 connections and 2 links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Connections, 16 to 255.
    pub max_connections: u8,
    /// Links, 1 or more; 1 spares both sides the search for a second one.
    pub max_links: u8,
}

impl Limits {
    /// The least number of connections that a link group may be limited to (kernel 6.12).
    pub const MIN_CONNECTIONS: u8 = 16;
    /// The least number of links.
    pub const MIN_LINKS: u8 = 1;
}

/// A device that an offer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A RoCE port, by its GID.
    R(Gid),
    /// An ISM device, native or emulated.
    D(Ism),
}

/// One's own end of the connection, for an Accept or a Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnEnd {
    /// SMC-R.
    R {
        /// Queue pair and RMB. A Confirm carries the lesser of this MTU and the server's.
        end: SmcR,
        /// Both sides are in one subnet; said at first contact.
        direct: bool,
    },
    /// SMC-D. The device is that of the offer.
    D(SmcD),
}

/// The peer's end of the connection, out of its Accept or Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEnd {
    /// SMC-R.
    R(SmcR),
    /// SMC-D, version 1.
    DV1 {
        /// The GID of the peer's device.
        gid: u64,
        /// The peer's DMB.
        end: SmcD,
    },
    /// SMC-D, version 2.
    DV2 {
        /// The peer's device.
        device: Ism,
        /// The peer's DMB.
        end: SmcD,
    },
}

impl PeerEnd {
    /// The sender's end in an Accept or a Confirm.
    pub(super) fn of<X>(reply: &Reply<X>) -> Self {
        match *reply {
            Reply::RV1 { end, .. } | Reply::RV2 { end, .. } => Self::R(end),
            Reply::DV1 { gid, end, .. } => Self::DV1 { gid, end },
            Reply::DV2 { device, end, .. } => Self::DV2 { device, end },
        }
    }

    /// The way that this end is for.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::R(_) => Path::R,
            Self::DV1 { .. } | Self::DV2 { .. } => Path::D,
        }
    }
}

impl OwnEnd {
    /// The way that this end is for.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::R { .. } => Path::R,
            Self::D(_) => Path::D,
        }
    }
}

impl Device {
    /// The way that leads over this device.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::R(_) => Path::R,
            Self::D(_) => Path::D,
        }
    }
}
