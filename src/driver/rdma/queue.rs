//! The places of a send queue, and what was posted in them.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use crate::proto::position::Position;

/// Places of a send queue. The kernel has 48; a post of data takes two, or three at the end of a ring.
pub(super) const PLACES: u32 = 64;
/// Of them, so many are kept for what must go out whatever the connections do: answers of the link.
const RESERVED: u32 = 8;
/// The most that a post takes: two writes and a message.
const POST_MAX: u32 = 3;
/// After so many places a post is reported: reports cost the device and the reader of the completion queue, and places are
/// free only when a report says so.
const REPORT_AFTER: u32 = PLACES / 4;

/// A post of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Carried {
    /// The connection.
    pub(super) token: NonZeroU32,
    /// What of its stream is in the peer's memory when the post is done.
    pub(super) upto: Position,
}

#[derive(Debug)]
struct Post {
    id: u64,
    places: u32,
    carried: Option<Carried>,
}

/// The send queue of one pair.
#[derive(Debug)]
pub(super) struct Queue {
    free: u32,
    last_id: u64,
    /// Places taken since the last post that is reported.
    unreported: u32,
    posts: VecDeque<Post>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            free: PLACES,
            last_id: 0,
            unreported: 0,
            posts: VecDeque::new(),
        }
    }

    /// Whether a connection may post.
    pub(super) fn has_room(&self) -> bool {
        self.free >= POST_MAX + RESERVED
    }

    /// Whether the link may post a message.
    pub(super) fn has_place(&self) -> bool {
        self.free > 0
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.posts.is_empty()
    }

    /// Whether a post of so many places must be reported for the sake of the queue.
    pub(super) fn report_is_due(&self, places: u32) -> bool {
        self.unreported + places >= REPORT_AFTER
    }

    /// The id of the next post.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// The next post was made.
    pub(super) fn posted(&mut self, places: u32, report: bool, carried: Option<Carried>) {
        self.last_id += 1;
        self.free -= places;
        self.unreported = if report { 0 } else { self.unreported + places };
        self.posts.push_back(Post {
            id: self.last_id,
            places,
            carried,
        });
    }

    /// The next of the posts up to `id`, which are done: `None` when there is no more.
    pub(super) fn done(&mut self, id: u64) -> Option<Option<Carried>> {
        self.posts.front().filter(|post| post.id <= id)?;
        let post = self.posts.pop_front()?;
        self.free += post.places;
        Some(post.carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_places_for_the_link() {
        let mut queue = Queue::new();
        let mut posts = 0;
        while queue.has_room() {
            queue.posted(3, false, None);
            posts += 1;
        }
        assert_eq!(posts, 18, "of 64 places");
        for _ in 0..RESERVED {
            assert!(queue.has_place());
            queue.posted(1, true, None);
        }
    }

    #[test]
    fn places_are_free_when_a_later_post_is_done() {
        let mut queue = Queue::new();
        let carried = Carried {
            token: NonZeroU32::MIN,
            upto: Position::new(5),
        };
        queue.posted(3, false, Some(carried));
        queue.posted(1, true, None);
        queue.posted(1, true, None);
        assert_eq!(queue.done(2), Some(Some(carried)));
        assert_eq!(queue.done(2), Some(None));
        assert_eq!(queue.done(2), None);
        assert_eq!(queue.free, PLACES - 1);
        assert!(!queue.is_empty());
    }

    #[test]
    fn a_full_queue_always_has_a_report_under_way() {
        let mut queue = Queue::new();
        let mut reports = 0;
        while queue.has_room() {
            let report = queue.report_is_due(2);
            reports += u32::from(report);
            queue.posted(2, report, None);
        }
        assert!(reports >= 3);
        assert!(queue.unreported < REPORT_AFTER);
    }
}
