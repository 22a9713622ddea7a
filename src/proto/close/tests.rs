//! Every cell of the table of close states.

use super::State::{
    Active as ACT, AppCloseWait1 as ACW1, AppCloseWait2 as ACW2, AppFinCloseWait as AFCW,
    Closed as CLOSED, PeerAbortWait as PAW, PeerCloseWait1 as PCW1, PeerCloseWait2 as PCW2,
    PeerFinCloseWait as PFCW, ProcessAbort as PRAB,
};
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

/// One row: a way into a state; the state, and what was sent by then; the same after each of `STEPS`.
type Cell = (State, u8);
type Row = (&'static [Step], Cell, [Cell; 7]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // way in                            here             SHUTDOWN        CLOSE           ABORT           done            closed          abort           link lost
    (&[],                                 (ACT, 0x00),     [(PCW1, 0x80),  (PCW1, 0x40),  (PCW1, 0x20),  (ACW1, 0x00),  (ACW1, 0x00),  (PRAB, 0x00),  (PAW, 0x20)]),
    (&[Shutdown],                         (PCW1, 0x80),    [(PCW1, 0x80),  (PCW1, 0xc0),  (PCW1, 0xa0),  (PCW2, 0x80),  (AFCW, 0x80),  (PRAB, 0x80),  (PAW, 0xa0)]),
    (&[Close],                            (PCW1, 0x40),    [(PCW1, 0x40),  (PCW1, 0x40),  (PCW1, 0x40),  (PCW2, 0x40),  (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x60)]),
    (&[Shutdown, Close],                  (PCW1, 0xc0),    [(PCW1, 0xc0),  (PCW1, 0xc0),  (PCW1, 0xc0),  (PCW2, 0xc0),  (CLOSED, 0xc0), (CLOSED, 0xc0), (CLOSED, 0xe0)]),
    (&[Shutdown, PeerDone],               (PCW2, 0x80),    [(PCW2, 0x80),  (PCW2, 0xc0),  (PCW2, 0xa0),  (PCW2, 0x80),  (AFCW, 0x80),  (PRAB, 0x80),  (PAW, 0xa0)]),
    (&[Close, PeerDone],                  (PCW2, 0x40),    [(PCW2, 0x40),  (PCW2, 0x40),  (PCW2, 0x40),  (PCW2, 0x40),  (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x60)]),
    (&[PeerDone],                         (ACW1, 0x00),    [(ACW2, 0x80),  (PFCW, 0x40),  (PFCW, 0x20),  (ACW1, 0x00),  (ACW1, 0x00),  (PRAB, 0x00),  (PAW, 0x20)]),
    (&[PeerClosed],                       (ACW1, 0x00),    [(ACW2, 0x80),  (CLOSED, 0x40), (CLOSED, 0x20), (ACW1, 0x00),  (ACW1, 0x00),  (PRAB, 0x00),  (PAW, 0x20)]),
    (&[PeerDone, Shutdown],               (ACW2, 0x80),    [(ACW2, 0x80),  (PFCW, 0xc0),  (PFCW, 0xa0),  (ACW2, 0x80),  (ACW2, 0x80),  (PRAB, 0x80),  (PAW, 0xa0)]),
    (&[PeerDone, Shutdown, PeerClosed],   (ACW2, 0x80),    [(ACW2, 0x80),  (CLOSED, 0xc0), (CLOSED, 0xa0), (ACW2, 0x80),  (ACW2, 0x80),  (PRAB, 0x80),  (PAW, 0xa0)]),
    (&[Shutdown, PeerClosed],             (AFCW, 0x80),    [(AFCW, 0x80),  (CLOSED, 0xc0), (CLOSED, 0xa0), (AFCW, 0x80),  (AFCW, 0x80),  (PRAB, 0x80),  (PAW, 0xa0)]),
    (&[PeerDone, Close],                  (PFCW, 0x40),    [(PFCW, 0x40),  (PFCW, 0x40),  (PFCW, 0x40),  (PFCW, 0x40),  (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x60)]),
    (&[PeerAbort],                        (PRAB, 0x00),    [(PRAB, 0x00),  (CLOSED, 0x20), (CLOSED, 0x20), (PRAB, 0x00),  (PRAB, 0x00),  (PRAB, 0x00),  (PAW, 0x20)]),
    (&[LinkLost],                         (PAW, 0x20),     [(PAW, 0x20) ,  (CLOSED, 0x20), (CLOSED, 0x20), (PAW, 0x20) ,  (PAW, 0x20) ,  (PAW, 0x20) ,  (PAW, 0x20)]),
    (&[Close, PeerClosed],                (CLOSED, 0x40),  [(CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x40), (CLOSED, 0x40)]),
];

#[test]
fn every_cell_of_the_table() {
    for (path, here, cells) in TABLE {
        let closing = after(path);
        assert_eq!((closing.state(), closing.sent().bits()), *here, "{path:?}");
        for (step, cell) in STEPS.into_iter().zip(*cells) {
            let mut closing = closing.clone();
            take(&mut closing, step);
            let there = (closing.state(), closing.sent().bits());
            assert_eq!(there, cell, "{path:?}, then {step:?}");
        }
    }
}

#[test]
fn data_may_be_sent_only_before_our_end_and_before_the_peer_has_closed() {
    for (path, ..) in TABLE {
        let open = matches!(path, [] | [PeerDone]);
        assert_eq!(after(path).can_send(), open, "{path:?}");
    }
}

#[test]
fn flags_in_one_message_lead_where_single_ones_do() {
    for (path, ..) in TABLE {
        for bits in (0u8..=0xe0).step_by(0x20) {
            let together = StateFlags::from_bits_retain(bits) | after(path).seen();
            let mut at_once = after(path);
            at_once.handle(together).unwrap();
            let mut singly = after(path);
            for step in [(0x80, PeerDone), (0x40, PeerClosed), (0x20, PeerAbort)] {
                if bits & step.0 != 0 {
                    take(&mut singly, step.1);
                }
            }
            assert_eq!(at_once.state(), singly.state(), "{:?} and {bits:#x}", path);
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
    assert_eq!(closing.state(), ACT);
    assert_eq!(closing.handle(StateFlags::from_bits_retain(0x9f)), Ok(true));
    assert_eq!(
        closing.handle(StateFlags::from_bits_retain(0x80)),
        Ok(false)
    );
}
