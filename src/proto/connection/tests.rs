use super::*;
use crate::wire::SizeCode;

const SMALL: RingSize = RingSize::MIN;
const SIZE: u32 = SMALL.bytes();

fn ring(code: u8) -> RingSize {
    RingSize::from_code(SizeCode::new(code).unwrap())
}

fn pair() -> (Connection, Connection) {
    (Connection::new(SMALL, SMALL), Connection::new(SMALL, SMALL))
}

/// Everything that `from` has to say reaches `to`.
fn publish(from: &mut Connection, to: &mut Connection) -> Received {
    let producer = from.producer_cursor();
    let (consumer, producer_flags, state_flags) = from.take_consumer();
    let cdc = Cdc {
        producer,
        consumer,
        producer_flags,
        state_flags,
    };
    to.handle_cdc(&cdc).unwrap()
}

fn cursor(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

fn done(connection: &mut Connection, bits: u8) {
    let state = StateFlags::from_bits_retain(bits);
    connection
        .handle_flags(ProducerFlags::empty(), state)
        .unwrap();
}

#[test]
fn rings_of_different_sizes_fill_completely() {
    let (mut a, mut b) = (
        Connection::new(ring(0), ring(3)),
        Connection::new(ring(3), ring(0)),
    );
    assert_eq!((a.writable(), b.writable()), (131072, 16384));
    a.produced(131072);
    b.produced(16384);
    assert_eq!(a.producer_cursor(), cursor(1, 0));
    assert_eq!(publish(&mut a, &mut b).readable, 131072);
    assert_eq!(publish(&mut b, &mut a).readable, 16384);
    assert_eq!((a.readable(), b.readable()), (16384, 131072));
    assert_eq!((a.writable(), b.writable()), (0, 0));
    b.consumed(131072);
    a.consumed(1);
    assert_eq!(publish(&mut b, &mut a).freed, 131072);
    assert_eq!(publish(&mut a, &mut b).freed, 1);
    assert_eq!((a.writable(), b.writable()), (131072, 1));
}

#[test]
fn a_connection_outlives_the_wrap_count() {
    let (mut a, mut b) = pair();
    for _ in 0..65537 {
        a.produced(SIZE - 1);
        assert_eq!(publish(&mut a, &mut b).readable, SIZE - 1);
        b.consumed(SIZE - 1);
        assert_eq!(publish(&mut b, &mut a).freed, SIZE - 1);
        a.produced(1);
        assert_eq!(publish(&mut a, &mut b).readable, 1);
        b.consumed(1);
        assert_eq!(publish(&mut b, &mut a).freed, 1);
    }
    assert_eq!(a.producer_cursor(), cursor(1, 0));
    assert_eq!(a.stats().bytes_sent, 65537 * u64::from(SIZE));
}

#[test]
fn spans_are_clipped_to_what_is_possible() {
    let (mut a, mut b) = pair();
    a.produced(10000);
    publish(&mut a, &mut b);
    assert_eq!(
        b.read_spans(u32::MAX)[0],
        Span {
            offset: 0,
            len: 10000
        }
    );
    assert_eq!(b.read_spans(3)[0].len, 3);
    b.consumed(8000);
    publish(&mut b, &mut a);
    assert_eq!(
        a.write_spans(7),
        [
            Span {
                offset: 10000,
                len: 7
            },
            Span::default()
        ]
    );
    let whole = [
        Span {
            offset: 10000,
            len: 6384,
        },
        Span {
            offset: 0,
            len: 8000,
        },
    ];
    assert_eq!(a.write_spans(u32::MAX), whole);
    a.shutdown_write();
    assert_eq!(
        a.write_spans(7),
        [
            Span {
                offset: 10000,
                len: 0
            },
            Span::default()
        ]
    );
}

#[test]
fn a_bad_message_is_named_and_changes_nothing() {
    let (mut a, mut b) = pair();
    a.produced(100);
    publish(&mut a, &mut b);
    b.produced(50);
    let good = Cdc {
        producer: cursor(0, 150),
        consumer: cursor(0, 40),
        ..Cdc::default()
    };
    for (cdc, sentence) in [
        (
            Cdc {
                producer: cursor(0, SIZE),
                ..good
            },
            "producer cursor: count outside the ring",
        ),
        (
            Cdc {
                producer: cursor(0, 99),
                ..good
            },
            "producer cursor: goes backwards",
        ),
        (
            Cdc {
                producer: cursor(1, 1),
                ..good
            },
            "producer cursor: goes beyond the window",
        ),
        (
            Cdc {
                consumer: cursor(0, SIZE),
                ..good
            },
            "consumer cursor: count outside the ring",
        ),
        (
            Cdc {
                consumer: cursor(65535, 0),
                ..good
            },
            "consumer cursor: goes backwards",
        ),
        (
            Cdc {
                consumer: cursor(0, 51),
                ..good
            },
            "consumer cursor: goes beyond the window",
        ),
    ] {
        let before = format!("{b:?}");
        let error = b.handle_cdc(&cdc).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the peer misbehaved: {sentence}")
        );
        assert_eq!(format!("{b:?}"), before);
    }
    assert_eq!(
        b.handle_cdc(&good),
        Ok(Received {
            readable: 50,
            freed: 40,
            flags: false
        })
    );
}

#[test]
fn a_flag_taken_back_leaves_the_cursors_of_its_message_alone() {
    let (_, mut b) = pair();
    done(&mut b, 0x80);
    let before = format!("{b:?}");
    assert!(b.handle_cdc(&Cdc::default()).is_err());
    assert_eq!(format!("{b:?}"), before);
}

#[test]
fn nothing_follows_an_end() {
    for bits in [0x80, 0x40, 0x20] {
        let (mut a, mut b) = pair();
        a.produced(10);
        b.handle_producer(a.producer_cursor()).unwrap();
        done(&mut b, bits);
        assert_eq!(b.handle_producer(a.producer_cursor()), Ok(0));
        a.produced(1);
        let error = b.handle_producer(a.producer_cursor()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer misbehaved: producer cursor: moves on after the declared end"
        );
        assert_eq!(b.readable(), 10);
    }
}

#[test]
fn the_end_comes_behind_the_data() {
    for (bits, closed) in [(0x80, false), (0x40, true), (0xc0, true)] {
        let (mut a, mut b) = pair();
        a.produced(10);
        b.handle_producer(a.producer_cursor()).unwrap();
        assert!(!b.peer_done() && !b.at_eof());
        done(&mut b, bits);
        assert!(b.peer_done() && !b.at_eof() && !b.is_reset());
        assert_eq!(b.peer_closed(), closed);
        b.consumed(10);
        assert!(b.at_eof());
        assert_eq!(b.can_send(), !closed);
    }
}

#[test]
fn an_abort_is_a_reset_and_no_end() {
    for bits in [0x20, 0x60, 0xa0] {
        let (_, mut b) = pair();
        done(&mut b, bits);
        assert!(b.peer_aborted() && b.is_reset() && !b.at_eof() && !b.can_send());
        assert_eq!(b.writable(), 0);
    }
}

#[test]
fn a_lost_link_is_a_reset_unless_the_peer_had_ended() {
    let (_, mut b) = pair();
    b.handle_link_lost();
    assert!(b.is_reset() && !b.at_eof() && !b.can_send());
    for bits in [0x80, 0x40] {
        let (_, mut b) = pair();
        done(&mut b, bits);
        b.handle_link_lost();
        assert_eq!(b.state(), State::PeerAbortWait);
        assert!(!b.is_reset() && b.at_eof() && !b.can_send());
    }
}

#[test]
fn closing_over_unread_data_is_an_abort() {
    let (mut a, mut b) = pair();
    a.produced(1);
    publish(&mut a, &mut b);
    let mut reader = b.clone();
    reader.consumed(1);
    reader.close();
    assert_eq!(reader.flags().1, StateFlags::CLOSED);
    b.close();
    assert_eq!(b.flags().1, StateFlags::ABNORMAL_CLOSE);
    publish(&mut b, &mut a);
    assert_eq!((a.state(), a.is_reset()), (State::ProcessAbort, true));
}

#[test]
fn an_abort_of_the_application_is_an_abort() {
    let (mut a, mut b) = pair();
    a.abort();
    assert_eq!(
        (a.state(), a.flags().1),
        (State::PeerCloseWait1, StateFlags::ABNORMAL_CLOSE)
    );
    assert!(publish(&mut a, &mut b).flags);
    b.close();
    publish(&mut b, &mut a);
    assert_eq!((a.state(), b.state()), (State::Closed, State::Closed));
}

#[test]
fn half_closed_connections_go_on_in_the_other_direction() {
    let (mut a, mut b) = pair();
    a.shutdown_write();
    publish(&mut a, &mut b);
    assert!(b.at_eof() && b.can_send() && !a.can_send());
    b.produced(SIZE);
    assert_eq!(publish(&mut b, &mut a).readable, SIZE);
}

#[test]
fn a_blocked_peer_is_told_of_an_empty_ring_even_if_it_blocked_later() {
    let (mut a, mut b) = pair();
    a.produced(100);
    publish(&mut a, &mut b);
    b.consumed(100);
    assert_eq!(b.released(), 100);
    assert!(!b.update_due());
    a.set_write_blocked(true);
    assert!(publish(&mut a, &mut b).flags);
    assert!(b.peer_write_blocked() && b.update_due());
    assert_eq!(publish(&mut b, &mut a).freed, 100);
    assert_eq!(b.released(), 0);
    assert!(!b.update_due());
}

#[test]
fn a_peer_that_asks_is_told_of_every_movement() {
    for flag in [
        ProducerFlags::CONSUMER_UPDATE_REQUESTED,
        ProducerFlags::URGENT_PENDING,
        ProducerFlags::URGENT_PRESENT,
    ] {
        let (mut a, mut b) = pair();
        a.produced(10);
        publish(&mut a, &mut b);
        assert_eq!(b.handle_flags(flag, StateFlags::empty()), Ok(true));
        assert_eq!(b.handle_flags(flag, StateFlags::empty()), Ok(false));
        assert!(!b.update_due());
        b.consumed(1);
        assert!(b.update_due(), "{flag:?}");
        b.take_consumer();
        assert!(!b.update_due());
    }
}

#[test]
fn counters_count() {
    let (mut a, mut b) = pair();
    a.produced(10);
    a.produced(20);
    for blocked in [true, true, false, true] {
        a.set_write_blocked(blocked);
    }
    publish(&mut a, &mut b);
    b.consumed(5);
    publish(&mut b, &mut a);
    publish(&mut b, &mut a);
    assert_eq!((a.in_flight(), b.in_flight()), (25, 0));
    let sender = Stats {
        bytes_sent: 30,
        bytes_acknowledged: 5,
        writes: 2,
        write_blocks: 2,
        ..Stats::default()
    };
    let reader = Stats {
        bytes_received: 30,
        bytes_read: 5,
        reads: 1,
        updates: 1,
        ..Stats::default()
    };
    assert_eq!((a.stats(), b.stats()), (sender, reader));
}
