//! What carries the bytes of a connection, and the news of them.

use super::super::group::{GroupKey, Membership};
use super::super::rdma::{Cause, Lane, News};
use super::Fault;
use crate::mem::header::Side;
use crate::proto::connection::Connection;
use crate::wire::EngineId;
use crate::wire::status::Path;

/// The medium of one connection. In both, the words of the peer lie in a header page, and so do those that sleepers arm.
#[derive(Debug)]
pub(super) enum Medium {
    /// Memory that both ends have mapped. What is stored there is told; the group has the doorbell for a peer that sleeps.
    Shared(Membership),
    /// A link. News are posted, and this end itself stores those of the peer, whenever somebody looks at the queue.
    Lane(Lane, Side),
    /// Memory whose group was left: it is known by these still.
    Left(GroupKey, u32),
}

impl Medium {
    pub(super) fn path(&self) -> Path {
        match self {
            Self::Shared(_) | Self::Left(..) => Path::SmcD,
            Self::Lane(..) => Path::SmcR,
        }
    }

    /// The link group. That of a lane has a number of this end's alone, and no engine that is known.
    pub(super) fn key(&self) -> GroupKey {
        match self {
            Self::Shared(group) => group.key(),
            Self::Left(key, _) => *key,
            Self::Lane(lane, side) => GroupKey {
                peer: EngineId([0; 16]),
                side: *side,
                link_id: lane.number(),
            },
        }
    }

    /// The number of the link group in this process.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Shared(group) => group.number(),
            Self::Left(_, number) => *number,
            Self::Lane(lane, _) => lane.number(),
        }
    }

    #[inline]
    pub(super) fn is_lane(&self) -> bool {
        matches!(self, Self::Lane(..))
    }

    /// Bytes that are known to fit into all rings on the way.
    #[inline]
    pub(super) fn free(&self, connection: &Connection) -> u32 {
        match self {
            Self::Shared(_) | Self::Left(..) => connection.writable(),
            Self::Lane(lane, _) => connection.writable().min(lane.room()),
        }
    }

    /// Has the words of the peer be as new as they can be.
    #[inline]
    pub(super) fn poll(&self) {
        if let Self::Lane(lane, _) = self {
            lane.poll();
        }
    }

    /// Whether the peer's process, or the way to it, is gone.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        match self {
            Self::Shared(group) => group.is_dead(),
            Self::Left(..) => true,
            Self::Lane(lane, _) => lane.is_dead(),
        }
    }

    /// What a connection suffers from a medium that is dead, or whose peer is.
    #[cold]
    pub(super) fn loss(&self) -> Fault {
        match self {
            Self::Shared(_) | Self::Left(..) => Fault::Lost,
            Self::Lane(lane, _) => match lane.cause() {
                None | Some(Cause::TcpEnded { .. }) => Fault::Lost,
                Some(cause) => Fault::Link(cause),
            },
        }
    }
}

/// Has the peer told everything that there is to tell; `waiting` bytes do not fit for now.
///
/// A peer that has room reads on without a word, and a writer that does not say that it is stuck may wait for ever: so this
/// one says so whenever the peer's ring is too small for what waits, and says when that is over.
pub(super) fn push(lane: &Lane, connection: &mut Connection, waiting: usize) {
    connection.set_write_blocked(is_blocked(connection, waiting));
    let (consumer, producer_flags, state_flags) = connection.take_consumer();
    lane.push(News {
        produced: connection.position(),
        consumer,
        producer_flags,
        state_flags,
    });
}

/// Whether it is the peer's ring that is too small for what waits, and not only the send ring.
pub(super) fn is_blocked(connection: &Connection, waiting: usize) -> bool {
    waiting as u64 > u64::from(connection.writable())
}
