use super::*;
use crate::wire::status::{Kind, Role, State, TOTALS, row};

fn status() -> Arc<Status> {
    let status = Status::new(7, "1.2.3").expect("memory");
    assert!(status.is_shared(), "a kernel with F_SEAL_FUTURE_WRITE");
    Arc::new(status)
}

fn listener(port: u16) -> Row {
    Row {
        local: Some(([127, 0, 0, 1], port).into()),
        ..Row::new(Kind::Listener, Role::Server, Path::SmcD, State::Listen)
    }
}

fn foreign(status: &Status) -> Foreign {
    Foreign::open(status.reopen().expect("/proc")).expect("the own page")
}

#[test]
fn another_process_sees_what_is_shown() {
    let status = status();
    let foreign = foreign(&status);
    let first = status.place(&listener(1));
    let second = status.place(&listener(2));
    status.set_id(5);
    status.count_stream(Path::SmcD);
    status.count_fallback(3, false);
    status.count_fallback(4, true);
    status.count_failure(3);

    let seen = foreign.read().expect("a page");
    assert_eq!((seen.head.id, seen.head.pid), (5, 7));
    assert_eq!(seen.head.package, "1.2.3");
    assert_eq!(seen.rows, [listener(1), listener(2)]);
    assert_eq!(seen.head.paths, [1, 0, 0, 1]);
    assert_eq!((seen.head.forbidden, seen.head.failed), (1, 1));
    assert_eq!(seen.head.reasons, [(3, 2), (4, 1)]);

    drop(first);
    assert_eq!(foreign.read().expect("a page").rows, [listener(2)]);
    let _third = status.place(&listener(3));
    let seen = foreign.read().expect("a page");
    assert_eq!(
        seen.rows,
        [listener(3), listener(2)],
        "a free row is used again"
    );
    assert_eq!(seen.head.used, 2);
    drop(second);
}

#[test]
fn what_a_connection_has_done_stays_in_the_sums() {
    let status = status();
    let place = status.place(&listener(1));
    let words = place.words().expect("a row");
    let expected: Totals = std::array::from_fn(|index| 20 - index as u64);
    words[row::READ].store(expected[1], Ordering::Release);
    for (value, at) in expected.into_iter().zip(TOTALS_IN_ROW) {
        words[at].store(value, Ordering::Release);
    }
    assert_eq!(status.totals().expect("the own page").totals, expected);
    assert_eq!(
        foreign(&status).read().expect("a page").head.totals,
        [0; TOTALS.len()]
    );
    place.give_back(expected);
    assert_eq!(status.totals().expect("the own page").totals, expected);
    assert_eq!(
        foreign(&status).read().expect("a page").head.totals,
        expected
    );
}

#[test]
fn the_row_that_is_one_too_many_is_hidden_and_its_sums_count() {
    let status = status();
    let places: Vec<Place> = (0..CAPACITY).map(|_| status.place(&listener(1))).collect();
    let hidden = status.place(&listener(2));
    assert!(hidden.words().is_none());
    let seen = foreign(&status).read().expect("a page");
    assert_eq!((seen.rows.len(), seen.head.hidden), (CAPACITY, 1));
    hidden.give_back([1; TOTALS.len()]);
    let head = status.totals().expect("the own page");
    assert_eq!((head.hidden, head.totals), (0, [1; TOTALS.len()]));
    drop(places);
    assert_eq!(foreign(&status).read().expect("a page").rows, []);
}

#[test]
fn reasons_beyond_the_table_are_counted_together() {
    let status = status();
    for code in 0..REASONS as u32 + 3 {
        status.count_fallback(code, false);
    }
    status.count_fallback(0, false);
    let head = status.totals().expect("the own page");
    assert_eq!((head.reasons.len(), head.other), (REASONS, 3));
    assert_eq!(head.reasons[0], (0, 2));
}

#[test]
fn a_row_that_is_being_changed_is_not_seen_and_does_not_hold_the_reader_up() {
    let status = status();
    let places: Vec<Place> = (0..1000)
        .map(|port| status.place(&listener(port)))
        .collect();
    for place in &places[1..] {
        let generation = &place.words().expect("a row")[row::GENERATION];
        generation.store(generation.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
    let seen = foreign(&status).read().expect("a page");
    assert_eq!((seen.rows.len(), seen.unsettled), (1, 999));
    status.head(head::GENERATION).store(1, Ordering::Release);
    assert!(matches!(
        foreign(&status).read(),
        Err(Unreadable::Unsettled)
    ));
}

#[test]
fn pages_of_other_versions_and_shapes_are_refused() {
    let status = status();
    let foreign = foreign(&status);
    let spoiled = |at: usize, value: u64| {
        let before = status.head(at).swap(value, Ordering::AcqRel);
        let read = foreign.read().map(drop).expect_err("spoiled").to_string();
        let opened = Foreign::open(status.reopen().expect("/proc")).map(drop);
        status.head(at).store(before, Ordering::Release);
        (read, opened)
    };
    let (_, opened) = spoiled(head::VERSION, 2);
    assert_eq!(
        opened.expect_err("another version").to_string(),
        "status page: version 2, this is 1"
    );
    let (read, opened) = spoiled(head::MAGIC, 1);
    assert_eq!(read, "status page: magic: is not that of a status page");
    assert!(matches!(opened, Err(Unreadable::Invalid(_))));
    let (read, _) = spoiled(head::USED, CAPACITY as u64 + 1);
    assert_eq!(read, "status page: rows in use: are more than there are");
    assert!(foreign.read().is_ok());
}

/// One thread uses a row for one connection after the other, another counts in it; a third reads.
#[test]
fn a_reader_never_mixes_two_connections() {
    let status = status();
    let foreign = foreign(&status);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed);
    struct Stop<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = 0;
            while !stopped() {
                port = port % 60_000 + 1;
                let row = Row {
                    kind: Kind::Connection,
                    remote: Some(([10, 0, 0, 1], port).into()),
                    link_group: port.into(),
                    opened: port.into(),
                    sent: u64::from(port) << 32,
                    ..listener(port)
                };
                let place = status.place(&row);
                let words = place.words().expect("a row");
                for count in 1..50 {
                    words[row::SENT].store(row.sent + 64 * count, Ordering::Release);
                    words[row::ACKNOWLEDGED].store(row.sent + 64 * count, Ordering::Release);
                    words[row::WRITES].store(count, Ordering::Release);
                }
            }
        });
        let _stop = Stop(&stop);
        let mut seen = 0;
        for _ in 0..5_000 {
            for row in foreign.read().expect("whatever is seen is legal").rows {
                let port = row.local.expect("an address").port();
                assert_eq!(row.remote.expect("an address").port(), port);
                assert_eq!((row.link_group, row.opened), (port.into(), port.into()));
                assert_eq!(row.sent >> 32, u64::from(port));
                let messages = (row.sent as u32) / 64;
                assert!(u64::from(messages) >= row.writes);
                seen += 1;
            }
        }
        seen
    });
    assert!(seen > 50, "{seen} rows were seen");
}
