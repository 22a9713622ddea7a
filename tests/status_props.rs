//! Properties of the words of a status page: values come back, words are refused but never panicked over.

#[path = "wire_support/status_laws.rs"]
mod status_laws;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use smcfast::wire::status::{Head, Kind, Path, Role, Row, State};
use smcfast::wire::{EngineId, SizeCode};
use status_laws::status_laws;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn rows_and_heads_come_back(row in row(), head in head()) {
        prop_assert_eq!(Row::decode(&row.encode()), Ok(Some(row)));
        prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
    }

    #[test]
    fn spoiled_words_obey_the_laws(row in row(), head in head(), at: Index, value: u8) {
        for words in [row.encode().to_vec(), head.encode().to_vec()] {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let at = at.index(bytes.len());
            bytes[at] = value;
            status_laws(&bytes);
        }
    }

    #[test]
    fn any_bytes_obey_the_laws(bytes in vec(any::<u8>(), 0..700)) {
        status_laws(&bytes);
    }
}

#[test]
fn a_counter_ahead_of_what_it_follows_from_is_refused() {
    let row = Row::new(Kind::Connection, Role::Client, Path::SmcD, State::Active);
    let ahead = [
        Row {
            acknowledged: 1,
            ..row
        },
        Row { read: 1, ..row },
        Row { writes: 1, ..row },
        Row { reads: 1, ..row },
    ];
    for row in ahead {
        let error = Row::decode(&row.encode()).expect_err("ahead").to_string();
        assert!(error.ends_with("is ahead of the bytes"), "{error}");
    }
}

fn row() -> impl Strategy<Value = Row> {
    let kinds = prop::sample::select(vec![Kind::Listener, Kind::Connection]);
    let roles = prop::sample::select(Role::ALL);
    let what = (
        kinds,
        roles,
        prop::sample::select(Path::ALL),
        prop::sample::select(State::ALL),
    );
    let sizes = (option::of(size()), option::of(size()));
    let numbers = prop::array::uniform13(any::<u32>().prop_map(u64::from));
    let ends = prop_oneof![
        any::<([u8; 4], u16, [u8; 4], u16)>()
            .prop_map(|(own, port, peer, other)| ((own, port).into(), (peer, other).into())),
        any::<([u8; 16], u16, [u8; 16], u16)>()
            .prop_map(|(own, port, peer, other)| ((own, port).into(), (peer, other).into())),
    ];
    let named = any::<(u32, u32, [u8; 16])>();
    (what, sizes, numbers, option::of(ends), named).prop_map(|(what, sizes, n, ends, named)| {
        let (kind, role, path, state) = what;
        let is_some = |end: &std::net::SocketAddr| !end.ip().is_unspecified() || end.port() != 0;
        Row {
            local: ends.map(|(own, _)| own).filter(is_some),
            remote: ends.map(|(_, peer)| peer).filter(is_some),
            fallback: named.0,
            link_group: named.1,
            engine: EngineId(named.2),
            own_size: sizes.0,
            peer_size: sizes.1,
            acknowledged: n[0],
            sent: n[0] + n[1] + n[2],
            writes: n[1],
            reads: n[3],
            read: n[3] + n[4],
            received: n[3] + n[4] + n[5],
            backlog: n[6],
            wakeups_sent: n[7],
            wakeups_received: n[8],
            spins: n[9],
            stalls_sent: n[10],
            stalls_received: n[11],
            opened: n[12],
            ..Row::new(kind, role, path, state)
        }
    })
}

fn head() -> impl Strategy<Value = Head> {
    let reasons = vec((any::<u32>(), 1..u64::MAX), 0..=128);
    let counts = (any::<[u64; 9]>(), any::<[u64; 4]>(), any::<[u64; 6]>());
    let facts = (any::<u32>(), "[ -~]{0,32}", 0..=65_536_usize);
    (counts, facts, reasons).prop_map(|((totals, paths, n), (pid, package, used), reasons)| Head {
        id: n[0],
        pid,
        begun: n[1],
        package,
        used,
        hidden: n[2],
        totals,
        paths,
        forbidden: n[3],
        failed: n[4],
        other: n[5],
        reasons,
    })
}

fn size() -> impl Strategy<Value = SizeCode> {
    (0..16u8).prop_map(|code| SizeCode::new(code).unwrap())
}
