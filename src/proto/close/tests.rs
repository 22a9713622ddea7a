//! Every cell of the table of close states.

use super::State::*;
use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Shutdown,
    Close,
    Abort,
    PeerDone,
    PeerClosed,
    PeerAbort,
    LinkLost,
}

use Step::*;

const STEPS: [Step; 7] = [
    Shutdown, Close, Abort, PeerDone, PeerClosed, PeerAbort, LinkLost,
];

fn take(closing: &mut Closing, step: Step) {
    let seen = closing.seen();
    match step {
        Shutdown => closing.shutdown_write(),
        Close => closing.close(StateFlags::CLOSED),
        Abort => closing.close(StateFlags::ABNORMAL_CLOSE),
        PeerDone => drop(closing.handle(seen | StateFlags::SENDING_DONE).unwrap()),
        PeerClosed => drop(closing.handle(seen | StateFlags::CLOSED).unwrap()),
        PeerAbort => drop(closing.handle(seen | StateFlags::ABNORMAL_CLOSE).unwrap()),
        LinkLost => closing.link_lost(),
    }
}

fn after(steps: &[Step]) -> Closing {
    let mut closing = Closing::new();
    for &step in steps {
        take(&mut closing, step);
    }
    closing
}

/// One row: the way into a state, the state with what was sent by then, and for each of `STEPS` where it leads and
/// what was sent by then.
type Cell = (State, u8);
struct Row {
    path: &'static [Step],
    here: Cell,
    cells: [Cell; 7],
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //     way in                               state here                    SHUTDOWN                CLOSE                    ABORT                    done                    closed                  abort                   link lost
    Row { path: &[],                            here: (Active, 0),            cells: [(PeerCloseWait1, 0x80), (PeerCloseWait1, 0x40), (PeerCloseWait1, 0x20), (AppCloseWait1, 0), (AppCloseWait1, 0), (ProcessAbort, 0), (PeerAbortWait, 0x20)] },
    Row { path: &[Shutdown],                    here: (PeerCloseWait1, 0x80), cells: [(PeerCloseWait1, 0x80), (PeerCloseWait1, 0xc0), (PeerCloseWait1, 0xa0), (PeerCloseWait2, 0x80), (AppFinCloseWait, 0x80), (ProcessAbort, 0x80), (PeerAbortWait, 0xa0)] },
    Row { path: &[Close],                       here: (PeerCloseWait1, 0x40), cells: [(PeerCloseWait1, 0x40), (PeerCloseWait1, 0x40), (PeerCloseWait1, 0x40), (PeerCloseWait2, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x60)] },
    Row { path: &[Shutdown, Close],             here: (PeerCloseWait1, 0xc0), cells: [(PeerCloseWait1, 0xc0), (PeerCloseWait1, 0xc0), (PeerCloseWait1, 0xc0), (PeerCloseWait2, 0xc0), (Closed, 0xc0), (Closed, 0xc0), (Closed, 0xe0)] },
    Row { path: &[Shutdown, PeerDone],          here: (PeerCloseWait2, 0x80), cells: [(PeerCloseWait2, 0x80), (PeerCloseWait2, 0xc0), (PeerCloseWait2, 0xa0), (PeerCloseWait2, 0x80), (AppFinCloseWait, 0x80), (ProcessAbort, 0x80), (PeerAbortWait, 0xa0)] },
    Row { path: &[Close, PeerDone],             here: (PeerCloseWait2, 0x40), cells: [(PeerCloseWait2, 0x40), (PeerCloseWait2, 0x40), (PeerCloseWait2, 0x40), (PeerCloseWait2, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x60)] },
    Row { path: &[PeerDone],                    here: (AppCloseWait1, 0),     cells: [(AppCloseWait2, 0x80), (PeerFinCloseWait, 0x40), (PeerFinCloseWait, 0x20), (AppCloseWait1, 0), (AppCloseWait1, 0), (ProcessAbort, 0), (PeerAbortWait, 0x20)] },
    Row { path: &[PeerClosed],                  here: (AppCloseWait1, 0),     cells: [(AppCloseWait2, 0x80), (Closed, 0x40), (Closed, 0x20), (AppCloseWait1, 0), (AppCloseWait1, 0), (ProcessAbort, 0), (PeerAbortWait, 0x20)] },
    Row { path: &[PeerDone, Shutdown],          here: (AppCloseWait2, 0x80),  cells: [(AppCloseWait2, 0x80), (PeerFinCloseWait, 0xc0), (PeerFinCloseWait, 0xa0), (AppCloseWait2, 0x80), (AppCloseWait2, 0x80), (ProcessAbort, 0x80), (PeerAbortWait, 0xa0)] },
    Row { path: &[PeerDone, Shutdown, PeerClosed], here: (AppCloseWait2, 0x80), cells: [(AppCloseWait2, 0x80), (Closed, 0xc0), (Closed, 0xa0), (AppCloseWait2, 0x80), (AppCloseWait2, 0x80), (ProcessAbort, 0x80), (PeerAbortWait, 0xa0)] },
    Row { path: &[Shutdown, PeerClosed],        here: (AppFinCloseWait, 0x80), cells: [(AppFinCloseWait, 0x80), (Closed, 0xc0), (Closed, 0xa0), (AppFinCloseWait, 0x80), (AppFinCloseWait, 0x80), (ProcessAbort, 0x80), (PeerAbortWait, 0xa0)] },
    Row { path: &[PeerDone, Close],             here: (PeerFinCloseWait, 0x40), cells: [(PeerFinCloseWait, 0x40), (PeerFinCloseWait, 0x40), (PeerFinCloseWait, 0x40), (PeerFinCloseWait, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x60)] },
    Row { path: &[PeerAbort],                   here: (ProcessAbort, 0),      cells: [(ProcessAbort, 0), (Closed, 0x20), (Closed, 0x20), (ProcessAbort, 0), (ProcessAbort, 0), (ProcessAbort, 0), (PeerAbortWait, 0x20)] },
    Row { path: &[LinkLost],                    here: (PeerAbortWait, 0x20),  cells: [(PeerAbortWait, 0x20), (Closed, 0x20), (Closed, 0x20), (PeerAbortWait, 0x20), (PeerAbortWait, 0x20), (PeerAbortWait, 0x20), (PeerAbortWait, 0x20)] },
    Row { path: &[Close, PeerClosed],           here: (Closed, 0x40),         cells: [(Closed, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x40), (Closed, 0x40)] },
];

#[test]
fn every_cell_of_the_table() {
    for row in TABLE {
        let closing = after(row.path);
        assert_eq!(
            (closing.state(), closing.sent().bits()),
            row.here,
            "{:?}",
            row.path
        );
        for (step, cell) in STEPS.into_iter().zip(row.cells) {
            let mut closing = closing.clone();
            take(&mut closing, step);
            assert_eq!(
                (closing.state(), closing.sent().bits()),
                cell,
                "{:?}, then {step:?}",
                row.path
            );
        }
    }
}

#[test]
fn data_may_be_sent_only_before_our_end_and_before_the_peer_has_closed() {
    for row in TABLE {
        let open = matches!(row.path, [] | [PeerDone]);
        assert_eq!(after(row.path).can_send(), open, "{:?}", row.path);
    }
}

#[test]
fn flags_in_one_message_lead_where_single_ones_do() {
    for row in TABLE {
        for bits in (0u8..=0xe0).step_by(0x20) {
            let together = StateFlags::from_bits_retain(bits) | after(row.path).seen();
            let mut at_once = after(row.path);
            at_once.handle(together).unwrap();
            let mut singly = after(row.path);
            for step in [(0x80, PeerDone), (0x40, PeerClosed), (0x20, PeerAbort)] {
                if bits & step.0 != 0 {
                    take(&mut singly, step.1);
                }
            }
            assert_eq!(
                at_once.state(),
                singly.state(),
                "{:?} and {bits:#x}",
                row.path
            );
        }
    }
}

#[test]
fn repeated_flags_change_nothing() {
    let mut closing = after(&[PeerDone]);
    assert_eq!(closing.handle(StateFlags::SENDING_DONE), Ok(false));
    assert_eq!(
        closing.handle(StateFlags::SENDING_DONE | StateFlags::CLOSED),
        Ok(true)
    );
    assert_eq!(
        closing.handle(StateFlags::SENDING_DONE | StateFlags::CLOSED),
        Ok(false)
    );
}

#[test]
fn a_flag_taken_back_is_an_error_that_changes_nothing() {
    for (path, back) in [
        (&[PeerDone] as &[Step], 0x00),
        (&[PeerDone], 0x40),
        (&[PeerClosed], 0x80),
        (&[PeerDone, PeerClosed], 0x80),
        (&[PeerAbort], 0x40),
    ] {
        let mut closing = after(path);
        let error = closing
            .handle(StateFlags::from_bits_retain(back))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer misbehaved: connection state flags: a flag was taken back"
        );
        assert_eq!(
            (closing.state(), closing.seen()),
            (after(path).state(), after(path).seen())
        );
    }
}

#[test]
fn unknown_flags_are_ignored() {
    let mut closing = Closing::new();
    assert_eq!(
        closing.handle(StateFlags::from_bits_retain(0x1f)),
        Ok(false)
    );
    assert_eq!(closing.state(), Active);
    assert_eq!(closing.handle(StateFlags::from_bits_retain(0x9f)), Ok(true));
    assert_eq!(
        closing.handle(StateFlags::from_bits_retain(0x80)),
        Ok(false)
    );
}
