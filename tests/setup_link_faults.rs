//! Set-ups over RDMA that come to nothing: both sides know why, TCP goes on, and nothing is left behind.

mod link_support;
mod setup_support;

use std::time::Duration;

use link_support::{confirm, key};
use setup_support::raw::*;
use setup_support::*;
use smcfast::driver::clock;
use smcfast::driver::endpoint::{Fault, Incoming};
use smcfast::driver::rdma::{Cause, Side as Role};
use smcfast::driver::setup::Ended;
use smcfast::driver::talk::{ClientTalk, Ending, ServerTalk};
use smcfast::fabric::rdma::{Status, Trouble};
use smcfast::mem::Source;
use smcfast::proto::handshake::{ClientHandshake, Declined, Outcome, ServerHandshake, Side};
use smcfast::proto::link::Misbehaviour;
use smcfast::wire::clc::{Diagnosis, Few, Mtu, PeerId, SmcR, U24, Version};
use smcfast::wire::llc::{ConfirmRkey, KeyTurn, Message, NoEyecatcher, OtherKeys, Turn};

/// So short that a test does not wait, and long enough for what is not late.
const SHORT: Duration = Duration::from_millis(700);

fn by_peer(outcome: Option<Outcome>) -> Option<(Diagnosis, bool)> {
    match outcome {
        Some(Outcome::Declined(Declined {
            by: Side::Peer,
            diagnosis,
            out_of_sync,
        })) => Some((diagnosis, out_of_sync)),
        _ => None,
    }
}

/// A client whose server sends this as its Accept: what the client says.
fn client_answers(net: &Net, own: SmcR, first: bool) -> Option<(Diagnosis, bool)> {
    let (near, far) = tcp();
    let mut client = net.client_talk(near, net.client.offer(false), TIMEOUT);
    let mut server = Raw::server(local(2, PeerId([2; 8])), far);
    client.step(clock::now());
    server.proposed().expect("a Proposal");
    server.accept(own, first);
    net.run(|| client.step(clock::now()));
    assert!(!server.is_confirmed());
    let said = by_peer(server.outcome);
    assert_eq!(declined(client.ending()), said.map(|(code, _)| code));
    said
}

#[test]
fn a_group_that_the_client_does_not_know_is_out_of_sync() {
    let net = Net::new();
    let said = client_answers(&net, nowhere(2), false);
    assert_eq!(said, Some((Diagnosis::SYNCHRONIZATION, true)));
    // Another pair of a server that is known.
    let _kept = net.connection();
    let other = SmcR {
        peer_id: net.server.engine.peer_id(),
        ..nowhere(2)
    };
    let said = client_answers(&net, other, false);
    assert_eq!(said, Some((Diagnosis::SYNCHRONIZATION, true)));
}

/// The key of its Accept is one more than the 255 that a peer may have.
#[test]
fn a_server_with_too_many_keys_is_declined() {
    let net = Net::new();
    let _kept = net.connection();
    let [client, server] = ["c", "s"].map(|name| net.fabric.pairs(name)[0]);
    for rkey in 1000..1300 {
        let request = Message::ConfirmRkey(ConfirmRkey {
            turn: KeyTurn::Request,
            key: key(rkey),
            others: OtherKeys::V2(Few::default()),
        });
        net.fabric.say("c", client, &request.encode());
        net.serve();
    }
    let own = SmcR {
        peer_id: net.server.engine.peer_id(),
        qp_number: U24::new(server).expect("24 bits"),
        ..nowhere(2)
    };
    let said = client_answers(&net, own, false);
    assert_eq!(said, Some((Diagnosis::RTOKEN, false)));
    assert_eq!(net.pairs(), [1, 1], "the group goes on");
}

#[test]
fn a_server_with_another_kind_of_address_is_declined() {
    let net = Net::new();
    let own = SmcR {
        gid: unmapped(),
        ..nowhere(2)
    };
    let said = client_answers(&net, own, true);
    assert_eq!(said, Some((Diagnosis::NO_SMC_R_DEVICE, false)));
}

#[test]
fn a_buffer_that_lies_at_the_end_of_all_addresses_is_declined() {
    let net = Net::new();
    let own = SmcR {
        rmb_address: u64::MAX - 100,
        ..nowhere(2)
    };
    let said = client_answers(&net, own, true);
    assert_eq!(said, Some((Diagnosis::BUFFER_REGISTRATION, false)));
    net.until("clean", || net.is_clean());
}

#[test]
fn a_client_that_can_register_nothing_declines() {
    let net = Net::new();
    net.fabric.exhaust("c", true);
    let said = client_answers(&net, nowhere(2), true);
    assert_eq!(said, Some((Diagnosis::BUFFER_REGISTRATION, false)));
    net.until("clean", || net.is_clean());
    // In a group that exists as well.
    net.fabric.exhaust("c", false);
    let kept = net.connection();
    net.fabric.exhaust("c", true);
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    net.finish(&mut both);
    both.declined(Diagnosis::BUFFER_REGISTRATION);
    drop(kept);
}

#[test]
fn a_server_that_can_register_nothing_declines() {
    let net = Net::new();
    net.fabric.exhaust("s", true);
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    net.finish(&mut both);
    both.declined(Diagnosis::BUFFER_REGISTRATION);
    net.until("clean", || net.is_clean());
}

/// A completion queue has places for so many pairs, and a pair more would make it overrun: with it all would break.
#[test]
fn a_device_that_makes_no_more_pairs_is_a_decline_and_no_end_for_others() {
    for name in ["c", "s"] {
        let net = Net::new();
        let [(mut near, _), (mut far, _)] = net.connection();
        net.fabric.limit_pairs(name, 1);
        let stranger = PeerId([7; 8]);
        let (near_tcp, far_tcp) = tcp();
        let outcome = if name == "s" {
            let mut client = Raw::client(local(1, stranger), near_tcp);
            let mut server = net.server_talk(far_tcp, net.server.offer(false), TIMEOUT);
            net.run(|| server.step(clock::now()));
            assert!(client.accepted().is_none());
            client.outcome
        } else {
            let mut client = net.client_talk(near_tcp, net.client.offer(false), TIMEOUT);
            let mut server = Raw::server(local(2, stranger), far_tcp);
            client.step(clock::now());
            server.proposed().expect("a Proposal");
            server.accept(nowhere(2), true);
            net.run(|| client.step(clock::now()));
            assert!(!server.is_confirmed());
            server.outcome
        };
        assert_eq!(by_peer(outcome), Some((Diagnosis::OUT_OF_MEMORY, false)));
        // The group that is there takes others.
        let [(_, known), _] = net.connection();
        assert!(!known.agreed.first_contact);
        near.write(Source::from(&b"still"[..])).expect("open");
        net.until("bytes", || far.incoming(5) == Incoming::Bytes(5));
    }
}

/// The send ring is the last thing that may be lacking.
#[test]
fn a_server_that_can_register_no_more_declines_after_the_confirm() {
    let net = Net::new();
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    both.client.step(clock::now());
    both.server.step(clock::now());
    net.fabric.exhaust("s", true);
    net.finish(&mut both);
    both.declined(Diagnosis::BUFFER_REGISTRATION);
    net.until("clean", || net.is_clean());
}

#[test]
fn a_device_that_is_gone_is_a_decline_at_either_end() {
    for name in ["c", "s"] {
        let net = Net::new();
        net.fabric.trouble(name, Trouble::Gone);
        net.serve();
        let mut both = net.both(net.client.offer(false), net.server.offer(false));
        net.finish(&mut both);
        both.declined(Diagnosis::QUEUE_PAIR);
        net.until("clean", || net.pairs() == [0, 0]);
    }
}

/// What a client makes of a server that has its Confirm and then does this.
fn after_the_confirm(
    net: &Net,
    timeout: Duration,
    act: impl FnOnce(&mut Raw<ServerHandshake>),
) -> (Option<Ending>, Option<(Diagnosis, bool)>) {
    let (near, far) = tcp();
    let mut client = net.client_talk(near, net.client.offer(false), timeout);
    let mut server = Raw::server(local(2, PeerId([2; 8])), far);
    client.step(clock::now());
    server.proposed().expect("a Proposal");
    let place = place(&net.server, Role::Server);
    server.accept(place.end(Mtu::B1024), true);
    net.until("a Confirm", || {
        assert!(client.step(clock::now()).is_some(), "the link comes up");
        server.is_confirmed()
    });
    act(&mut server);
    net.run(|| client.step(clock::now()));
    server.is_confirmed();
    let ending = client.ending().cloned();
    drop(place);
    net.until("clean", || net.is_clean());
    (ending, by_peer(server.outcome))
}

/// A client of a server that is nowhere, while its host searches for the address that the server has named.
fn searching(net: &Net) -> (ClientTalk, Raw<ServerHandshake>) {
    let (near, far) = tcp();
    let mut client = net.client_talk(near, net.client.offer(false), TIMEOUT);
    let mut server = Raw::server(local(2, PeerId([2; 8])), far);
    net.fabric.seek("c", true);
    client.step(clock::now());
    server.proposed().expect("a Proposal");
    server.accept(nowhere(2), true);
    assert!(client.step(clock::now()).is_some());
    (client, server)
}

#[test]
fn a_search_for_an_address_holds_up_nobody_else() {
    let net = Net::new();
    let [(mut near, _), (mut far, _)] = net.connection();
    let (client, mut server) = searching(&net);
    near.write(Source::from(&b"meanwhile"[..])).expect("open");
    net.until("bytes", || far.incoming(9) == Incoming::Bytes(9));
    assert!(!server.is_confirmed());
    // It can be given up, and leaves nothing behind.
    drop(client);
    net.fabric.seek("c", false);
    net.until("clean", || net.pairs() == [1, 1]);
    assert_eq!(near.incoming(1), Incoming::Empty);
}

#[test]
fn an_address_that_is_not_found_is_a_decline() {
    let net = Net::new();
    let (mut client, mut server) = searching(&net);
    net.run(|| client.step(clock::now()));
    assert!(!server.is_confirmed());
    let code = Diagnosis::QUEUE_PAIR;
    assert_eq!(by_peer(server.outcome), Some((code, false)));
    assert_eq!(declined(client.ending()), Some(code));
    net.until("clean", || net.is_clean());
    // At the other end it is found out behind the Confirm.
    let net = Net::new();
    net.fabric.seek("s", true);
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    net.finish(&mut both);
    both.declined(code);
    net.until("clean", || net.is_clean());
}

#[test]
fn a_late_decline_of_the_server_counts() {
    let net = Net::new();
    let (ending, _) = after_the_confirm(&net, TIMEOUT, |server| {
        server
            .machine
            .decline(Diagnosis::BUFFER_REGISTRATION)
            .expect("a link comes up");
        server.pump();
    });
    assert_eq!(
        declined(ending.as_ref()),
        Some(Diagnosis::BUFFER_REGISTRATION)
    );
}

#[test]
fn a_server_that_does_not_confirm_the_link_is_declined_in_time() {
    let net = Net::new();
    let (ending, said) = after_the_confirm(&net, SHORT, |_| {});
    let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
    assert_eq!(declined(ending.as_ref()), Some(code));
    assert_eq!(said, Some((code, false)));
}

type Spoil = Box<dyn Fn(&Net)>;

/// What ends a link that comes up at this device, whoever it is, and the code of the Decline that follows.
fn spoilt(device: &'static str) -> [(Spoil, Diagnosis); 2] {
    let pair = move |net: &Net| net.fabric.pairs(device)[0];
    let other_version = confirm(Version::V1, Turn::Request).encode();
    [
        (
            Box::new(move |net| net.fabric.say(device, pair(net), &other_version)),
            Diagnosis::INTERNAL_ERROR,
        ),
        (
            Box::new(move |net| net.fabric.fail(device, pair(net), Status(12))),
            Diagnosis::NO_ACTIVE_LINK,
        ),
    ]
}

#[test]
fn a_link_that_is_spoilt_at_the_client_is_declined() {
    for (spoil, code) in spoilt("c") {
        let net = Net::new();
        let (ending, said) = after_the_confirm(&net, TIMEOUT, |_| spoil(&net));
        assert_eq!(declined(ending.as_ref()), Some(code));
        assert_eq!(said, Some((code, false)));
    }
}

#[test]
fn a_server_with_eyecatchers_is_declined() {
    let Message::ConfirmLink(mut message) = confirm(Version::V2, Turn::Request) else {
        unreachable!()
    };
    message.no_eyecatcher = NoEyecatcher::empty();
    let bytes = Message::ConfirmLink(message).encode();
    let net = Net::new();
    let (ending, said) = after_the_confirm(&net, TIMEOUT, |_| {
        net.fabric.say("c", net.fabric.pairs("c")[0], &bytes);
    });
    let code = Diagnosis::RMBE_EYECATCHER;
    assert_eq!(declined(ending.as_ref()), Some(code));
    assert_eq!(said, Some((code, false)));
}

#[test]
fn an_end_of_tcp_ends_the_link_that_comes_up() {
    let net = Net::new();
    let (ending, _) = after_the_confirm(&net, TIMEOUT, |server| {
        server
            .tcp
            .shutdown(std::net::Shutdown::Write)
            .expect("open");
    });
    assert!(has_failed(ending.as_ref()), "{ending:?}");
}

#[test]
fn a_client_that_does_not_confirm_the_link_is_declined_in_time() {
    let net = Net::new();
    let (near, far) = tcp();
    let mut client = Raw::client(local(1, PeerId([1; 8])), near);
    let mut server = net.server_talk(far, net.server.offer(false), SHORT);
    server.step(clock::now());
    client.accepted().expect("an Accept");
    client.machine.confirm(end(nowhere(1))).expect("accepted");
    client.pump();
    net.run(|| server.step(clock::now()));
    let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
    assert_eq!(declined(server.ending()), Some(code));
    client.accepted();
    assert_eq!(by_peer(client.outcome), Some((code, false)));
    net.until("clean", || net.is_clean());
}

#[test]
fn a_link_that_is_spoilt_at_the_server_is_declined() {
    for (spoil, code) in spoilt("s") {
        let net = Net::new();
        let (near, far) = tcp();
        let mut client = Raw::client(local(1, PeerId([1; 8])), near);
        let mut server = net.server_talk(far, net.server.offer(false), TIMEOUT);
        server.step(clock::now());
        client.accepted().expect("an Accept");
        client.machine.confirm(end(nowhere(1))).expect("accepted");
        client.pump();
        let pair = net.fabric.pairs("s")[0];
        net.until("a link that comes up", || {
            assert!(server.step(clock::now()).is_some(), "it comes up");
            net.fabric.sends("s", pair)
        });
        spoil(&net);
        net.run(|| server.step(clock::now()));
        assert_eq!(declined(server.ending()), Some(code));
        client.accepted();
        assert_eq!(by_peer(client.outcome), Some((code, false)));
        net.until("clean", || net.is_clean());
    }
}

/// As kernels have it that propose version 2 alone: no peer id, no MAC.
#[test]
fn a_client_is_not_known_by_a_peer_id_of_zeros_alone() {
    let net = Net::new();
    let [(_client, _), (_server, known)] = net.connection();
    assert!(known.agreed.first_contact);
    for (host, id) in [(1, [0; 8]), (3, [0; 8]), (1, [1; 8])] {
        let (near, far) = tcp();
        let mut client = Raw::client(local(host, PeerId(id)), near);
        let mut server = net.server_talk(far, net.server.offer(false), TIMEOUT);
        server.step(clock::now());
        let accepted = client.accepted().expect("an Accept");
        assert!(accepted.agreed.first_contact, "{host} {id:?}");
    }
}

#[test]
fn a_client_that_is_out_of_sync_ends_the_group() {
    let net = Net::new();
    let [(client, _), (server, _)] = net.connection();
    let (near, far) = tcp();
    let id = net.client.engine.peer_id();
    let mut other = Raw::client(local(1, id), near);
    let mut talk = net.server_talk(far, net.server.offer(false), TIMEOUT);
    let mut accepted = None;
    net.until("an Accept", || {
        talk.step(clock::now());
        accepted = other.accepted();
        accepted.is_some()
    });
    assert!(!accepted.expect("there").agreed.first_contact);
    other
        .machine
        .decline(Diagnosis::SYNCHRONIZATION)
        .expect("accepted");
    other.pump();
    net.run(|| talk.step(clock::now()));
    assert_eq!(declined(talk.ending()), Some(Diagnosis::SYNCHRONIZATION));
    net.until("the end of the group", || net.pairs() == [0, 0]);
    drop((client, server));
    let [(_, known), _] = net.connection();
    assert!(known.agreed.first_contact);
}

/// A client that speaks CLC from that address, and says that it is the client of `net`.
fn claimant(net: &Net, host: u8) -> (Raw<ClientHandshake>, ServerTalk) {
    let (near, far) = tcp_from(host);
    let id = net.client.engine.peer_id();
    let talk = net.server_talk(far, net.server.offer(false), TIMEOUT);
    (Raw::client(local(1, id), near), talk)
}

/// Anybody may name the id and the GID of another, but TCP tells the two apart: who connects from elsewhere gets no place in that
/// one's group, which could not be ended by a Decline or written through otherwise.
#[test]
fn a_stranger_who_names_another_client_does_not_get_its_group() {
    let net = Net::new();
    // While the group is being made as well: nobody waits for another's.
    let (mut client, mut talk) = claimant(&net, 2);
    talk.step(clock::now());
    let (mut stranger, mut other) = claimant(&net, 3);
    other.step(clock::now());
    assert!(client.accepted().is_some() && stranger.accepted().is_some());
    drop((client, talk, stranger, other));
    net.until("clean", || net.is_clean());

    let (near, far) = tcp_from(2);
    let mut both = Both {
        tcp: [near.try_clone(), far.try_clone()].map(|copy| copy.expect("a descriptor")),
        client: net.client_talk(near, net.client.offer(false), TIMEOUT),
        server: net.server_talk(far, net.server.offer(false), TIMEOUT),
    };
    net.finish(&mut both);
    let [(mut near, _), (mut far, _)] = both.established();
    for (host, is_first) in [(3, true), (2, false)] {
        let (mut client, mut talk) = claimant(&net, host);
        let mut accepted = None;
        net.until("an Accept", || {
            talk.step(clock::now());
            accepted = client.accepted();
            accepted.is_some()
        });
        let accepted = accepted.expect("there");
        assert_eq!(accepted.agreed.first_contact, is_first, "{host}");
        if is_first {
            let out_of_sync = Diagnosis::SYNCHRONIZATION;
            client.machine.decline(out_of_sync).expect("accepted");
            client.pump();
            net.run(|| talk.step(clock::now()));
            assert_eq!(declined(talk.ending()), Some(out_of_sync));
        }
    }
    near.write(Source::from(&b"still"[..])).expect("open");
    net.until("bytes", || far.incoming(5) == Incoming::Bytes(5));
}

/// Another Decline of a group that exists ends nothing.
#[test]
fn a_client_that_declines_a_place_leaves_the_group() {
    let net = Net::new();
    let _kept = net.connection();
    let (near, far) = tcp();
    let mut other = Raw::client(local(1, net.client.engine.peer_id()), near);
    let mut talk = net.server_talk(far, net.server.offer(false), TIMEOUT);
    net.until("an Accept", || {
        talk.step(clock::now());
        other.accepted().is_some()
    });
    other.machine.decline(Diagnosis::RTOKEN).expect("accepted");
    other.pump();
    net.run(|| talk.step(clock::now()));
    assert_eq!(declined(talk.ending()), Some(Diagnosis::RTOKEN));
    let [(_, known), _] = net.connection();
    assert!(!known.agreed.first_contact);
    assert_eq!(net.pairs(), [1, 1]);
}

/// The client waits for its Accept three times as long as the server for an answer to a key.
#[test]
fn a_client_that_does_not_confirm_a_key_gets_a_group_of_its_own() {
    let net = Net::new();
    let _kept = net.connection();
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    net.fabric.cut("c", true);
    both.client.step(clock::now());
    both.server.step(clock::now());
    net.until("the server to give the key up", || {
        both.server.step(clock::now());
        net.pairs()[1] == 2
    });
    net.fabric.cut("c", false);
    net.finish(&mut both);
    let [(_, known), _] = both.established();
    assert!(known.agreed.first_contact);
}

/// Wherever one end breaks off, the other one comes to an end, and nothing stays at either.
#[test]
fn whoever_breaks_off_leaves_nothing_behind() {
    for client_goes in [true, false] {
        for steps in 0..8 {
            let net = Net::new();
            let mut both = net.both_within(net.client.offer(false), net.server.offer(false), SHORT);
            for _ in 0..steps {
                both.step();
                net.serve();
            }
            let Both {
                mut client,
                mut server,
                tcp,
            } = both;
            drop(tcp);
            let what = format!("client goes: {client_goes}, after {steps} steps");
            if client_goes {
                drop(client);
                net.run(|| server.step(clock::now()));
                drop(server.finish());
                assert!(
                    steps > 2 || has_failed(server.ending()),
                    "{what}: {:?}",
                    server.ending()
                );
            } else {
                drop(server);
                net.run(|| client.step(clock::now()));
                drop(client.finish());
                assert!(
                    steps > 2 || has_failed(client.ending()),
                    "{what}: {:?}",
                    client.ending()
                );
            }
        }
    }
}

/// It takes the key back with which the client would write, and the client is sure of the connection by then.
#[test]
fn a_server_that_leaves_behind_the_confirm_costs_no_other_connection() {
    let net = Net::new();
    let [(mut near, _), (mut far, _)] = net.connection();
    let mut both = net.both(net.client.offer(false), net.server.offer(false));
    net.until("a Confirm", || both.step_client());
    let Both {
        mut client, server, ..
    } = both;
    drop(server);
    net.serve();
    let (mut lost, known) = client.finish().expect("established");
    assert!(!known.agreed.first_contact);
    lost.write(Source::from(&b"for nobody"[..])).expect("open");
    let cause = Cause::Misbehaved(Misbehaviour::KeyTakenBack);
    assert_eq!(lost.incoming(1), Incoming::Fault(Fault::Link(cause)));
    near.write(Source::from(&b"still"[..])).expect("open");
    net.until("bytes", || far.incoming(5) == Incoming::Bytes(5));
}

/// Nothing reaches anybody any more, at any step: both give up, and TCP is left in order or given up by both.
#[test]
fn a_fabric_that_fails_at_any_step_leaves_tcp_or_nothing() {
    for steps in 0..8 {
        let net = Net::new();
        let mut both = net.both_within(net.client.offer(false), net.server.offer(false), SHORT);
        for _ in 0..steps {
            both.step();
            net.serve();
        }
        net.fabric.cut("c", true);
        net.finish(&mut both);
        let endings = [both.client.ending(), both.server.ending()];
        let is_up = |ending: Option<&Ending>| ending == Some(&Ending::Setup(Ended::Established));
        if endings.iter().all(|ending| is_up(*ending)) {
            continue;
        }
        let code = declined(both.client.ending());
        assert!(code.is_some(), "{endings:?} after {steps} steps");
        both.declined(code.expect("there"));
        net.until("clean", || net.is_clean());
    }
}
