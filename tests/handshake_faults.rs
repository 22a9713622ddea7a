//! Garbage, ends, time-outs and wrong calls, at every step of both machines.

mod handshake_support;

use std::collections::VecDeque;
use std::time::Duration;

use handshake_support::*;
use smcfast::proto::error::ApiMisuse;
use smcfast::proto::handshake::{
    CLC_TIMEOUT, ClientEvent, ClientHandshake, Failure, Outcome, Path, ServerEvent,
    ServerHandshake, Side,
};
use smcfast::wire::clc::{Decline, Diagnosis, Kind, MAX_LEN, Message, PeerId, Version};

const WAYS: [(Ways, Path); 4] = [
    (Ways::D_V2, Path::D),
    (Ways::D_V1, Path::D),
    (Ways::R_V2, Path::R),
    (Ways::R_V1, Path::R),
];

/// The three messages of a handshake that succeeds.
struct Dialogue {
    proposal: Vec<u8>,
    accept: Vec<u8>,
    confirm: Vec<u8>,
}

fn dialogue(ways: Ways, path: Path) -> Dialogue {
    let mut client = ClientHandshake::new(local(1, ways), START);
    let mut server = ServerHandshake::new(local(2, ways), START);
    let proposal = client.poll_transmit().unwrap();
    give(&mut server, &proposal);
    server.accept(own_end(2, path), true, START).unwrap();
    let accept = server.poll_transmit().unwrap();
    give(&mut client, &accept);
    client.confirm(own_end(1, path)).unwrap();
    let confirm = client.poll_transmit().unwrap();
    Dialogue {
        proposal,
        accept,
        confirm,
    }
}

/// A client that waits for the Accept.
fn client(ways: Ways) -> ClientHandshake {
    let mut client = ClientHandshake::new(local(1, ways), START);
    client.poll_transmit().unwrap();
    client
}

/// A server that waits for the Proposal.
fn fresh_server(ways: Ways) -> ServerHandshake {
    ServerHandshake::new(local(2, ways), START)
}

/// A server that waits for the Confirm, since ten seconds after the start.
fn server_after_accept(ways: Ways, path: Path) -> ServerHandshake {
    let mut server = fresh_server(ways);
    give(&mut server, &dialogue(ways, path).proposal);
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Proposed(_))
    ));
    server.accept(own_end(2, path), true, LATER).unwrap();
    server.poll_transmit().unwrap();
    server
}

const LATER: Duration = START.saturating_add(Duration::from_secs(10));

fn assert_failed(machine: &mut impl Machine, failure: impl Fn(Failure) -> bool, case: &str) {
    let Some(Outcome::Failed(found)) = settle(machine, START) else {
        panic!("not failed: {case}")
    };
    assert!(failure(found), "{found:?}: {case}");
    assert_eq!(
        (
            machine.wanted(),
            machine.poll_timeout(),
            machine.poll_transmit()
        ),
        (0, None, None),
        "{case}"
    );
    machine.handle_eof();
    machine.handle_timeout(Duration::MAX);
    assert_eq!(
        settle(machine, START),
        None,
        "an event after the end: {case}"
    );
}

/// Tests a machine that waits for `message`: all that can go wrong with one message.
fn torture<M: Machine>(make: impl Fn() -> M, message: &[u8], kind: Kind, deadline: Duration) {
    truncated(&make, message);
    late(&make, message, kind, deadline);
    damaged(&make, message);
    strangers(&make, kind);
}

/// The stream ends after any number of bytes.
fn truncated<M: Machine>(make: impl Fn() -> M, message: &[u8]) {
    for n in 0..message.len() {
        let mut machine = make();
        give(&mut machine, &message[..n]);
        assert_eq!(settle(&mut machine, START), None, "after {n} bytes");
        let wanted = if n < 8 { 8 - n } else { message.len() - n };
        assert_eq!(machine.wanted(), wanted, "after {n} bytes");
        machine.handle_eof();
        assert_failed(
            &mut machine,
            |failure| failure == Failure::Eof,
            &format!("{n} bytes"),
        );
    }
}

/// The rest does not come in time, however much there was.
fn late<M: Machine>(make: impl Fn() -> M, message: &[u8], kind: Kind, deadline: Duration) {
    for n in [0, 1, 8, message.len() - 1] {
        let mut machine = make();
        give(&mut machine, &message[..n]);
        assert_eq!(machine.poll_timeout(), Some(deadline));
        machine.handle_timeout(deadline - Duration::from_nanos(1));
        assert_eq!(
            (settle(&mut machine, START), machine.poll_timeout()),
            (None, Some(deadline))
        );
        machine.handle_timeout(deadline);
        assert_failed(
            &mut machine,
            |failure| failure == Failure::TimedOut(kind),
            &format!("{n} bytes"),
        );
    }
}

/// One byte is another. The machine may fail, decline or not mind; it never wants too much, and never panics.
fn damaged<M: Machine>(make: impl Fn() -> M, message: &[u8]) {
    for at in 0..message.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bytes = message.to_vec();
            bytes[at] ^= bits;
            let mut machine = make();
            let mut stream: VecDeque<u8> = bytes.into();
            feed(&mut machine, &mut stream);
            assert!(machine.wanted() <= MAX_LEN);
            // The eyecatchers and the type allow of nothing else.
            if at < 3 || at == 4 {
                let refused = |failure| matches!(failure, Failure::Invalid(_));
                assert_failed(&mut machine, refused, &format!("byte {at} ^ {bits:#x}"));
            } else {
                let outcome = settle(&mut machine, START).or_else(|| {
                    machine.handle_eof();
                    settle(&mut machine, START)
                });
                outcome.expect("no outcome");
            }
        }
    }
}

/// Whole messages that are not due, and bytes that are none.
fn strangers<M: Machine>(make: impl Fn() -> M, kind: Kind) {
    let Dialogue {
        proposal,
        accept,
        confirm,
    } = dialogue(Ways::R_V2, Path::R);
    let plain = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let zeros = vec![0; 64];
    for bytes in [proposal, accept, confirm, plain, zeros] {
        if Message::decode(&bytes).is_ok_and(|message| message.kind() == kind) {
            continue;
        }
        let mut machine = make();
        machine.handle_bytes(&bytes[..8]);
        assert_failed(
            &mut machine,
            |failure| matches!(failure, Failure::Invalid(_)),
            &format!("{bytes:?}"),
        );
    }
}

#[test]
fn a_server_that_waits_for_a_proposal() {
    for (ways, path) in WAYS {
        torture(
            || fresh_server(ways),
            &dialogue(ways, path).proposal,
            Kind::Proposal,
            START + CLC_TIMEOUT,
        );
    }
}

#[test]
fn a_client_that_waits_for_an_accept() {
    for (ways, path) in WAYS {
        torture(
            || client(ways),
            &dialogue(ways, path).accept,
            Kind::Accept,
            START + CLC_TIMEOUT,
        );
    }
}

#[test]
fn a_server_that_waits_for_a_confirm() {
    for (ways, path) in WAYS {
        let confirm = dialogue(ways, path).confirm;
        torture(
            || server_after_accept(ways, path),
            &confirm,
            Kind::Confirm,
            LATER + CLC_TIMEOUT,
        );
    }
}

#[test]
fn six_seconds_as_in_the_kernel() {
    assert_eq!(CLC_TIMEOUT, Duration::from_secs(6));
}

#[test]
fn the_caller_has_all_the_time() {
    let Dialogue {
        proposal, accept, ..
    } = dialogue(Ways::D_V2, Path::D);
    let mut server = fresh_server(Ways::D_V2);
    give(&mut server, &proposal);
    let mut client = client(Ways::D_V2);
    give(&mut client, &accept);
    assert_eq!((server.poll_timeout(), client.poll_timeout()), (None, None));
    server.handle_timeout(Duration::MAX);
    client.handle_timeout(Duration::MAX);
    server.accept(own_end(2, Path::D), true, START).unwrap();
    client.confirm(own_end(1, Path::D)).unwrap();
}

#[test]
fn an_end_while_the_caller_thinks_is_an_end() {
    let Dialogue {
        proposal, accept, ..
    } = dialogue(Ways::D_V2, Path::D);
    let mut server = fresh_server(Ways::D_V2);
    give(&mut server, &proposal);
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Proposed(_))
    ));
    server.handle_eof();
    assert!(server.accept(own_end(2, Path::D), true, START).is_err());
    assert_failed(&mut server, |failure| failure == Failure::Eof, "server");
    let mut client = client(Ways::D_V2);
    give(&mut client, &accept);
    assert!(matches!(
        client.poll_event(),
        Some(ClientEvent::Accepted(_))
    ));
    client.handle_eof();
    assert!(client.confirm(own_end(1, Path::D)).is_err());
    assert_failed(&mut client, |failure| failure == Failure::Eof, "client");
}

/// A client and a server whose link comes up.
fn linking(ways: Ways) -> (ClientHandshake, ServerHandshake) {
    let Dialogue {
        accept, confirm, ..
    } = dialogue(ways, Path::R);
    let mut client = client(ways);
    give(&mut client, &accept);
    assert!(matches!(
        client.poll_event(),
        Some(ClientEvent::Accepted(_))
    ));
    client.confirm(own_end(1, Path::R)).unwrap();
    client.poll_transmit().unwrap();
    let mut server = server_after_accept(ways, Path::R);
    give(&mut server, &confirm);
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Confirmed(_))
    ));
    assert_eq!((client.wanted(), server.wanted()), (8, 8));
    assert_eq!((client.poll_timeout(), server.poll_timeout()), (None, None));
    (client, server)
}

#[test]
fn a_link_that_does_not_come_up_is_declined_in_the_version_of_the_link_group() {
    for (ways, version) in [(Ways::R_V2, Version::V2), (Ways::R_V1, Version::V1)] {
        let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
        let (mut client, mut server) = linking(ways);
        client.decline(code).unwrap();
        let bytes = client.poll_transmit().unwrap();
        assert_eq!(bytes, Decline::new(version, PeerId([1; 8]), code).encode());
        give(&mut server, &bytes);
        assert_eq!(
            client.poll_event(),
            Some(ClientEvent::Done(declined(Side::Us, code)))
        );
        assert_eq!(
            server.poll_event(),
            Some(ServerEvent::Done(declined(Side::Peer, code)))
        );

        let (mut client, mut server) = linking(ways);
        server.decline(code).unwrap();
        let bytes = server.poll_transmit().unwrap();
        assert_eq!(bytes, Decline::new(version, PeerId([2; 8]), code).encode());
        give(&mut client, &bytes);
        assert_eq!(
            client.poll_event(),
            Some(ClientEvent::Done(declined(Side::Peer, code)))
        );
        assert_eq!(
            server.poll_event(),
            Some(ServerEvent::Done(declined(Side::Us, code)))
        );
    }
}

#[test]
fn only_a_decline_may_come_while_the_link_comes_up() {
    let Dialogue {
        accept, confirm, ..
    } = dialogue(Ways::R_V2, Path::R);
    let invalid = |failure| matches!(failure, Failure::Invalid(_));
    let (mut client, mut server) = linking(Ways::R_V2);
    client.handle_bytes(&accept[..8]);
    assert_failed(&mut client, invalid, "client");
    server.handle_bytes(&confirm[..8]);
    assert_failed(&mut server, invalid, "server");
}

#[test]
fn an_end_while_the_link_comes_up_is_an_end() {
    let (mut client, mut server) = linking(Ways::R_V2);
    client.handle_eof();
    server.handle_eof();
    assert_failed(&mut client, |failure| failure == Failure::Eof, "client");
    assert_failed(&mut server, |failure| failure == Failure::Eof, "server");
}

/// Nothing is wanted, and nothing happens, once a link is up.
#[test]
fn a_link_that_is_up_is_the_end() {
    let (mut client, mut server) = linking(Ways::R_V2);
    client.linked().unwrap();
    server.linked().unwrap();
    assert!(matches!(
        client.poll_event(),
        Some(ClientEvent::Done(Outcome::Established(_)))
    ));
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Done(Outcome::Established(_)))
    ));
    client.handle_eof();
    server.handle_eof();
    assert_eq!((client.poll_event(), client.wanted()), (None, 0));
    assert_eq!((server.poll_event(), server.wanted()), (None, 0));
}

fn misuse(result: Result<(), ApiMisuse>, sentence: &str) {
    assert_eq!(result.unwrap_err().to_string(), sentence);
}

#[test]
fn a_client_that_is_called_out_of_turn_says_so_and_goes_on() {
    let accept = dialogue(Ways::D_V2, Path::D).accept;
    let mut client = client(Ways::D_V2);
    misuse(
        client.confirm(own_end(1, Path::D)),
        "confirm is not possible: there is nothing to confirm",
    );
    misuse(
        client.decline(Diagnosis::NONE),
        "decline is not possible: there is nothing to decline",
    );
    misuse(
        client.linked(),
        "linked is not possible: no link is coming up",
    );
    give(&mut client, &accept);
    misuse(
        client.confirm(own_end(1, Path::R)),
        "confirm is not possible: the server has accepted the other way",
    );
    misuse(
        client.linked(),
        "linked is not possible: no link is coming up",
    );
    client.confirm(own_end(1, Path::D)).unwrap();
    misuse(
        client.confirm(own_end(1, Path::D)),
        "confirm is not possible: there is nothing to confirm",
    );
    misuse(
        client.decline(Diagnosis::NONE),
        "decline is not possible: there is nothing to decline",
    );
}

#[test]
fn a_server_that_is_called_out_of_turn_says_so_and_goes_on() {
    let Dialogue {
        proposal, confirm, ..
    } = dialogue(Ways::D_V2, Path::D);
    let mut server = fresh_server(Ways::D_V2);
    misuse(
        server.accept(own_end(2, Path::D), true, START),
        "accept is not possible: there is nothing to accept",
    );
    misuse(
        server.decline(Diagnosis::NONE),
        "decline is not possible: there is nothing to decline",
    );
    misuse(
        server.linked(),
        "linked is not possible: no link is coming up",
    );
    give(&mut server, &proposal);
    misuse(
        server.accept(own_end(2, Path::R), true, START),
        "accept is not possible: the other way was chosen",
    );
    server.accept(own_end(2, Path::D), true, START).unwrap();
    misuse(
        server.decline(Diagnosis::NONE),
        "decline is not possible: there is nothing to decline",
    );
    give(&mut server, &confirm);
    misuse(
        server.linked(),
        "linked is not possible: no link is coming up",
    );
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Proposed(_))
    ));
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Confirmed(_))
    ));
    assert!(matches!(
        server.poll_event(),
        Some(ServerEvent::Done(Outcome::Established(_)))
    ));
}

#[test]
#[should_panic(expected = "more bytes than were wanted")]
fn more_bytes_than_wanted_are_refused() {
    fresh_server(Ways::D_V2).handle_bytes(&[0; 9]);
}

#[test]
fn a_failure_reads_as_a_sentence() {
    assert_eq!(
        Failure::Eof.to_string(),
        "the peer ended the connection during the handshake"
    );
    assert_eq!(
        Failure::TimedOut(Kind::Accept).to_string(),
        "the peer's CLC Accept did not come in time"
    );
    let mut client = client(Ways::D_V2);
    client.handle_bytes(b"HTTP/1.1");
    let Some(ClientEvent::Done(Outcome::Failed(failure))) = client.poll_event() else {
        panic!()
    };
    assert_eq!(
        failure.to_string(),
        "CLC message: eyecatcher: is neither SMCR nor SMCD"
    );
}
