//! Properties of cursors, windows and close states, for arbitrary inputs.

use proptest::prelude::*;
use smcfast::proto::connection::Connection;
use smcfast::proto::position::{CursorError, Position, RingSize};
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::{Cdc, Cursor, ProducerFlags, StateFlags};

fn ring() -> impl Strategy<Value = RingSize> {
    (0u8..=15).prop_map(|code| RingSize::from_code(SizeCode::new(code).unwrap()))
}

fn small_ring() -> impl Strategy<Value = RingSize> {
    (0u8..=2).prop_map(|code| RingSize::from_code(SizeCode::new(code).unwrap()))
}

/// Mostly near to what is possible, so that checks are hit from both sides.
fn cursor() -> impl Strategy<Value = Cursor> {
    let wrap = prop_oneof![0u16..3, 65534u16.., any::<u16>()];
    let count = prop_oneof![0u32..100, 16300u32..16500, any::<u32>()];
    (wrap, count).prop_map(|(wrap, count)| Cursor { wrap, count })
}

proptest! {
    /// The wire's form loses nothing that matters: any step of a legal window comes back as it was.
    #[test]
    fn a_cursor_is_a_position(ring in ring(), from in 0u64..1 << 60, step in any::<u32>()) {
        let step = u64::from(step) % (u64::from(ring.bytes()) + 1);
        let from = Position::new(from);
        let cursor = ring.cursor(from.plus(step));
        prop_assert!(cursor.count < ring.bytes());
        prop_assert_eq!(ring.advance(from, cursor, u64::from(ring.bytes())), Ok(step));
        prop_assert_eq!(ring.advance(from, cursor, step), Ok(step));
        if step > 0 {
            prop_assert_eq!(ring.advance(from, cursor, step - 1), Err(CursorError::BeyondWindow));
            let back = ring.cursor(from);
            prop_assert_eq!(ring.advance(from.plus(step), back, u64::from(ring.bytes())), Err(CursorError::Backwards));
        }
    }

    /// The rule of the wire, in its own words: add to the count; at the size, subtract it and add one to the wraps.
    #[test]
    fn cursors_move_as_the_wire_counts(ring in ring(), from in 0u64..1 << 60, step in any::<u32>()) {
        let step = step % (ring.bytes() + 1);
        let Cursor { mut wrap, count } = ring.cursor(Position::new(from));
        let mut count = u64::from(count) + u64::from(step);
        if count >= u64::from(ring.bytes()) {
            count -= u64::from(ring.bytes());
            wrap = wrap.wrapping_add(1);
        }
        let moved = ring.cursor(Position::new(from).plus(u64::from(step)));
        prop_assert_eq!(moved, Cursor { wrap, count: count as u32 });
    }

    /// No cursor, however made up, is taken for more than the window.
    #[test]
    fn only_the_window_is_accepted(
        ring in small_ring(), from in 0u64..1 << 40, cursor in cursor(), max in 0u32..=16384,
    ) {
        let from = Position::new(from);
        match ring.advance(from, cursor, u64::from(max)) {
            Ok(step) => {
                prop_assert!(step <= u64::from(max));
                prop_assert_eq!(ring.cursor(from.plus(step)), cursor);
            }
            Err(CursorError::CountOutOfRange) => prop_assert!(cursor.count >= ring.bytes()),
            Err(_) => prop_assert!(cursor.count < ring.bytes()),
        }
    }

    /// The two spans are the bytes, in order, inside the ring.
    #[test]
    fn spans_cover_what_was_asked_for(ring in ring(), from in 0u64..1 << 60, n in any::<u32>()) {
        let n = n % (ring.bytes() + 1);
        let [first, second] = ring.spans(Position::new(from), n);
        prop_assert_eq!(first.len + second.len, n);
        prop_assert_eq!(u64::from(first.offset), from % u64::from(ring.bytes()));
        prop_assert!(first.offset + first.len <= ring.bytes());
        prop_assert!(second.len == 0 || first.offset + first.len == ring.bytes());
        prop_assert_eq!(second.offset, 0);
        prop_assert!(second.len <= first.offset);
    }
}

/// What an application or a hostile peer may do to one connection.
#[derive(Debug, Clone)]
enum Act {
    Write(u32),
    Read(u32),
    Announce,
    Block(bool),
    Shutdown,
    Close,
    Abort,
    LinkLost,
    Producer(Cursor),
    Consumer(Cursor),
    Flags(u8, u8),
    Message(Cursor, Cursor, u8, u8),
}

fn act() -> impl Strategy<Value = Act> {
    // Flags come one by one mostly: a stream that is over at once tests little.
    let bits = prop_oneof![8 => Just(0u8), 1 => Just(0x80), 1 => Just(0xc0), 1 => any::<u8>()];
    prop_oneof![
        6 => any::<u32>().prop_map(Act::Write),
        6 => any::<u32>().prop_map(Act::Read),
        4 => Just(Act::Announce),
        1 => any::<bool>().prop_map(Act::Block),
        1 => Just(Act::Shutdown),
        1 => Just(Act::Close),
        1 => Just(Act::Abort),
        1 => Just(Act::LinkLost),
        6 => cursor().prop_map(Act::Producer),
        6 => cursor().prop_map(Act::Consumer),
        2 => (any::<u8>(), bits.clone()).prop_map(|(p, s)| Act::Flags(p, s)),
        6 => (cursor(), cursor(), any::<u8>(), bits).prop_map(|(a, b, p, s)| Act::Message(a, b, p, s)),
    ]
}

/// Applies `act`; what a peer did wrong comes back as an error.
fn apply(connection: &mut Connection, act: &Act) -> Result<(), Box<dyn std::error::Error>> {
    let flags = |p, s| {
        (
            ProducerFlags::from_bits_retain(p),
            StateFlags::from_bits_retain(s),
        )
    };
    match *act {
        Act::Write(n) => connection.produced(n.min(connection.writable())),
        Act::Read(n) => connection.consumed(n.min(connection.readable())),
        Act::Announce => drop(connection.take_consumer()),
        Act::Block(blocked) => connection.set_write_blocked(blocked),
        Act::Shutdown => connection.shutdown_write(),
        Act::Close => connection.close(),
        Act::Abort => connection.abort(),
        Act::LinkLost => connection.handle_link_lost(),
        Act::Producer(cursor) => drop(connection.handle_producer(cursor)?),
        Act::Consumer(cursor) => drop(connection.handle_consumer(cursor)?),
        Act::Flags(p, s) => drop(connection.handle_flags(flags(p, s).0, flags(p, s).1)?),
        Act::Message(producer, consumer, p, s) => {
            let (producer_flags, state_flags) = flags(p, s);
            let _ = connection.handle_cdc(&Cdc {
                producer,
                consumer,
                producer_flags,
                state_flags,
            })?;
        }
    }
    Ok(())
}

proptest! {
    /// Whatever a peer publishes: no panic, no count beyond its ring, no way back, and an error changes nothing.
    #[test]
    fn a_hostile_peer_gets_nowhere(
        rmb in small_ring(), peer_rmb in small_ring(), acts in prop::collection::vec(act(), 1..60),
    ) {
        let mut connection = Connection::new(rmb, peer_rmb);
        for act in acts {
            let before = connection.clone();
            if apply(&mut connection, &act).is_err() {
                prop_assert_eq!(format!("{connection:?}"), format!("{before:?}"));
            }
            prop_assert!(connection.readable() <= rmb.bytes());
            prop_assert!(connection.writable() <= peer_rmb.bytes());
            prop_assert!(connection.writable() == 0 || connection.can_send());
            let ([r, _], [w, _]) = (connection.read_spans(u32::MAX), connection.write_spans(u32::MAX));
            prop_assert!(r.offset + r.len <= rmb.bytes() && w.offset + w.len <= peer_rmb.bytes());
            prop_assert!(connection.flags().1.contains(before.flags().1));
            prop_assert!(connection.peer_done() || !before.peer_done());
            prop_assert!(connection.peer_aborted() || !before.peer_aborted());
            prop_assert!(!connection.at_eof() || connection.readable() == 0);
            prop_assert!(!(connection.at_eof() && connection.is_reset()));
            let (was, is) = (before.stats(), connection.stats());
            prop_assert!(is.bytes_sent >= was.bytes_sent && is.bytes_received >= was.bytes_received);
            prop_assert_eq!(is.bytes_received - is.bytes_read, u64::from(connection.readable()));
        }
    }

    /// Two connections and everything published at once against two counters.
    #[test]
    fn a_pair_counts_like_a_model(
        sizes in (small_ring(), small_ring()),
        acts in prop::collection::vec((any::<bool>(), any::<bool>(), any::<u32>()), 1..100),
    ) {
        let mut ends = [Connection::new(sizes.0, sizes.1), Connection::new(sizes.1, sizes.0)];
        let mut in_ring = [0u32; 2];
        for (side, write, n) in acts {
            let (me, peer) = (usize::from(side), usize::from(!side));
            let rings = [sizes.0.bytes(), sizes.1.bytes()];
            prop_assert_eq!(ends[me].readable(), in_ring[me]);
            prop_assert_eq!(ends[me].writable(), rings[peer] - in_ring[peer]);
            if write {
                let n = n % (ends[me].writable() + 1);
                ends[me].produced(n);
                in_ring[peer] += n;
            } else {
                let n = n % (ends[me].readable() + 1);
                ends[me].consumed(n);
                in_ring[me] -= n;
            }
            let producer = ends[me].producer_cursor();
            let (consumer, producer_flags, state_flags) = ends[me].take_consumer();
            ends[peer].handle_cdc(&Cdc { producer, consumer, producer_flags, state_flags }).unwrap();
        }
    }
}
