//! Two set-ups in one process; the test carries bytes, frames and descriptors between them.

use super::*;
use crate::driver::endpoint::Incoming;
use crate::driver::engine::{Engine, GROUPS_MAX, Parts};
use crate::mem::Source;
use crate::mem::header::Side;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

const NOW: Duration = Duration::ZERO;
const OPTIONS: Options = Options {
    size: SizeCode::MIN,
    preallocate: false,
};

struct Dance {
    client: ClientSetup,
    server: ServerSetup,
}

fn engines() -> (Arc<Engine>, Arc<Engine>) {
    (
        Arc::new(Engine::new().expect("an engine")),
        Arc::new(Engine::new().expect("an engine")),
    )
}

fn dup(fds: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
    fds.iter()
        .map(|fd| fd.try_clone_to_owned().expect("dup"))
        .collect()
}

impl Dance {
    fn new(client: &Arc<Engine>, server: &Arc<Engine>) -> Self {
        Self {
            client: ClientSetup::new(Arc::clone(client), OPTIONS, Offer::memory(), NOW)
                .expect("a client"),
            server: ServerSetup::new(Arc::clone(server), OPTIONS, Offer::memory(), NOW),
        }
    }

    fn hello(&mut self) {
        let hello = self.server.hello();
        self.client.handle_hello(&hello).expect("the same build");
    }

    fn go(&mut self) {
        let (frame, fds) = self.client.go().expect("there was a Hello");
        let fds = dup(&fds);
        self.server
            .handle_go(&frame, fds, || None, NOW)
            .expect("the same build");
    }

    /// A Go, changed on its way, and all bytes that follow it.
    fn go_as(&mut self, change: impl FnOnce(&mut Vec<u8>, &mut Vec<OwnedFd>)) {
        let (mut frame, fds) = self.client.go().expect("there was a Hello");
        let mut fds = dup(&fds);
        change(&mut frame, &mut fds);
        self.server
            .handle_go(&frame, fds, || None, NOW)
            .expect("no Stop");
        self.give_server();
        self.give_client();
    }

    /// The server's Memory, as it leaves for the client.
    fn send_memory(&mut self) -> (Vec<u8>, Vec<OwnedFd>) {
        let (frame, fds) = self.server.memory().expect("due");
        let packet = (frame, dup(&fds));
        self.server.handle_memory_sent(NOW).expect("due");
        packet
    }

    /// All bytes that the client has for the server.
    fn give_server(&mut self) {
        while let Some(bytes) = self.client.poll_transmit() {
            feed(
                &bytes,
                &mut self.server,
                |s| s.wanted(),
                |s, part| s.handle_bytes(part, NOW),
            );
        }
    }

    fn give_client(&mut self) {
        while let Some(bytes) = self.server.poll_transmit() {
            feed(
                &bytes,
                &mut self.client,
                |c| c.wanted(),
                |c, part| c.handle_bytes(part),
            );
        }
    }

    /// The Memory, and the Accept behind it.
    fn memory(&mut self) {
        let (frame, fds) = self.send_memory();
        assert!(self.server.memory().is_none(), "once");
        self.give_client();
        assert!(self.client.wants_memory());
        self.client.handle_memory(&frame, fds, || None);
    }

    /// Both declined with `diagnosis`: what the server says.
    fn both_declined(&self, diagnosis: Diagnosis) -> &str {
        assert_eq!(declined(self.client.ended()).0, diagnosis);
        let (at_server, text) = declined(self.server.ended());
        assert_eq!(at_server, diagnosis, "{text}");
        text
    }

    fn whole(mut self) -> (Endpoint, Endpoint, bool) {
        self.hello();
        self.go();
        self.give_server();
        self.memory();
        self.give_server();
        assert_eq!(
            (self.client.ended(), self.server.ended()),
            (Some(&Ended::Established), Some(&Ended::Established))
        );
        let (client, facts) = self.client.finish().expect("established");
        let (server, _) = self.server.finish().expect("established");
        (client, server, facts.agreed.first_contact)
    }
}

fn feed<T>(
    mut bytes: &[u8],
    to: &mut T,
    wanted: impl Fn(&T) -> usize,
    give: impl Fn(&mut T, &[u8]),
) {
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at(wanted(to).min(bytes.len()));
        assert!(!part.is_empty(), "{} bytes that nobody wants", bytes.len());
        give(to, part);
        bytes = rest;
    }
}

fn declined(ended: Option<&Ended>) -> (Diagnosis, &str) {
    match ended {
        Some(Ended::Declined { diagnosis, text }) => (*diagnosis, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_ends_meet_and_bytes_flow() {
    let (a, b) = engines();
    let (mut client, mut server, first) = Dance::new(&a, &b).whole();
    assert!(first);
    client.write(Source::from(&b"ping"[..])).expect("write");
    assert_eq!(server.incoming(1), Incoming::Bytes(4));
    server.write(Source::from(&b"pong!"[..])).expect("write");
    assert_eq!(client.incoming(1), Incoming::Bytes(5));
}

#[test]
fn the_second_connection_shares_the_link_group() {
    let (a, b) = engines();
    let (client_1, server_1, first_1) = Dance::new(&a, &b).whole();
    let (client_2, server_2, first_2) = Dance::new(&a, &b).whole();
    assert!(first_1 && !first_2);
    assert_eq!(client_1.group_number(), client_2.group_number());
    assert_eq!(server_1.group(), server_2.group());
    // The other way round is another group: roles are not mixed.
    let (client_3, _server_3, first_3) = Dance::new(&b, &a).whole();
    assert!(first_3);
    assert_ne!(client_3.group().side, server_1.group().side);
}

/// The server still has the group, the client has let go of it: only the client knows, so it is asked first.
#[test]
fn a_group_that_only_the_server_has_is_not_used_again() {
    let (a, b) = engines();
    let (client_1, server_1, _) = Dance::new(&a, &b).whole();
    drop(client_1);
    for _ in 0..crate::driver::engine::RESTING_MAX {
        let (_, another) = engines();
        Dance::new(&a, &another).whole();
    }
    let (_client_2, server_2, first_2) = Dance::new(&a, &b).whole();
    assert!(first_2);
    assert_ne!(server_1.group(), server_2.group());
}

#[test]
fn other_builds_are_told_apart_from_broken_ones() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    let hello = dance.server.hello();
    for (offset, is_version) in [(8, true), (16, true), (0, false), (10, false)] {
        let mut other = hello.clone();
        other[offset] ^= 0x40;
        let error = dance.client.handle_hello(&other).expect_err("not ours");
        assert_eq!(error.is_version(), is_version, "{error}");
        let stop = error.frame();
        let at_server = dance
            .server
            .handle_go(&stop, Vec::new(), || None, NOW)
            .expect_err("a Stop");
        assert_eq!(at_server.is_version(), is_version, "{at_server}");
        let at_client = dance.client.handle_hello(&stop).expect_err("a Stop");
        assert_eq!(at_client, at_server);
        // Other builds stop with frames of theirs.
        for offset in [8, 16] {
            let mut other = stop.clone();
            other[offset] ^= 0x40;
            let at_server = dance
                .server
                .handle_go(&other, Vec::new(), || None, NOW)
                .expect_err("a Stop");
            assert!(at_server.is_version());
        }
    }
}

#[test]
fn a_client_with_bad_memory_is_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go_as(|_, fds| fds[0] = fds[1].try_clone().expect("dup"));
    assert_eq!(
        dance.both_declined(Diagnosis::INTERNAL_ERROR),
        "shared memory: file system: not a memfd on tmpfs"
    );
}

/// Groups that nobody else can use fill the quota of either end.
#[test]
fn a_peer_that_has_all_its_groups_is_declined_at_either_end() {
    for side in [Side::Client, Side::Server] {
        let (a, b) = engines();
        let (full, peer) = match side {
            Side::Client => (&a, b.id()),
            Side::Server => (&b, a.id()),
        };
        let groups = (0..GROUPS_MAX).map(|_| {
            let parts = Parts {
                own_bell: Bell::create().expect("a bell"),
                peer_bell: Bell::check(Bell::create().expect("a bell")).expect("a timer"),
                witness: None,
            };
            full.first_contact(peer, side, None, parts).expect("room")
        });
        let _groups: Vec<_> = groups.collect();
        let mut dance = Dance::new(&a, &b);
        dance.hello();
        dance.go();
        dance.give_server();
        if side == Side::Client {
            dance.memory();
        }
        dance.give_client();
        dance.give_server();
        let text = dance.both_declined(Diagnosis::DMB_LIMIT);
        let why = match side {
            Side::Client => Diagnosis::DMB_LIMIT.text(),
            Side::Server => "256 link groups with one peer",
        };
        assert_eq!(text, why);
    }
}

/// Nothing lacks here: it is the peer that sent what it should not.
#[test]
fn memory_that_cannot_be_written_is_a_misbehaviour() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go_as(|_, fds| {
        let path = format!("/proc/self/fd/{}", fds[0].as_raw_fd());
        fds[0] = std::fs::File::open(path).expect("for reading").into();
    });
    let text = dance.both_declined(Diagnosis::INTERNAL_ERROR);
    assert!(text.contains("Permission denied"), "{text}");
}

/// A Proposal follows whatever is no Stop, so it has to be answered.
#[test]
fn a_broken_go_is_declined_when_the_proposal_comes() {
    // Offsets in the Go: magic, version, kind, length, layout, size code, padding.
    for (offset, diagnosis) in [
        (0, Diagnosis::INTERNAL_ERROR),
        (8, Diagnosis::VERSION_MISMATCH),
        (10, Diagnosis::INTERNAL_ERROR),
        (12, Diagnosis::INTERNAL_ERROR),
        (16, Diagnosis::VERSION_MISMATCH),
        (52, Diagnosis::INTERNAL_ERROR),
        (53, Diagnosis::INTERNAL_ERROR),
    ] {
        let (a, b) = engines();
        let mut dance = Dance::new(&a, &b);
        dance.hello();
        dance.go_as(|frame, _| frame[offset] ^= 0x40);
        dance.both_declined(diagnosis);
    }
    for length in [1, 23, 55, 57, 4096] {
        let (a, b) = engines();
        let mut dance = Dance::new(&a, &b);
        dance.hello();
        dance.go_as(|frame, _| frame.resize(length, 0));
        dance.both_declined(Diagnosis::INTERNAL_ERROR);
    }
}

#[test]
fn a_go_without_the_descriptors_that_it_had_is_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance
        .server
        .decline(Diagnosis::OUT_OF_MEMORY, NOW)
        .expect("nothing was sent");
    assert!(dance.server.ended().is_none(), "the Proposal has to come");
    dance.give_server();
    dance.give_client();
    dance.both_declined(Diagnosis::OUT_OF_MEMORY);
}

/// Until the Memory is on its way the client hears nothing, so a Decline can still answer.
#[test]
fn a_memory_that_cannot_be_sent_is_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go();
    dance.give_server();
    assert!(dance.server.memory().is_some() && dance.server.memory().is_some());
    assert!(dance.server.poll_transmit().is_none(), "no Accept yet");
    assert_eq!(dance.server.wanted(), 0);
    dance
        .server
        .decline(Diagnosis::OUT_OF_MEMORY, NOW)
        .expect("nothing was sent");
    assert!(dance.server.memory().is_none());
    assert!(dance.server.handle_memory_sent(NOW).is_err());
    dance.give_client();
    dance.both_declined(Diagnosis::OUT_OF_MEMORY);
}

#[test]
fn once_the_memory_is_sent_the_client_has_the_word() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    assert!(dance.server.handle_memory_sent(NOW).is_err());
    dance.hello();
    dance.go();
    dance.give_server();
    let (frame, fds) = dance.send_memory();
    assert!(dance.server.decline(Diagnosis::OUT_OF_MEMORY, NOW).is_err());
    assert!(dance.server.handle_memory_sent(NOW).is_err(), "once");
    dance.give_client();
    dance.client.handle_memory(&frame, fds, || None);
    dance.give_server();
    assert_eq!(dance.server.ended(), Some(&Ended::Established));
}

/// Nothing of a late client may reach a server that has given up already.
#[test]
fn a_client_that_gives_up_takes_back_what_it_has_not_sent() {
    let failed = |client: &ClientSetup| matches!(client.ended(), Some(Ended::Failed { .. }));
    // Before the Accept, before the Memory, before the Confirm, before a Decline.
    for stage in 0..4 {
        let (a, b) = engines();
        let mut dance = Dance::new(&a, &b);
        dance.hello();
        dance.go();
        dance.give_server();
        let (frame, mut fds) = dance.send_memory();
        if stage > 0 {
            dance.give_client();
        }
        if stage > 1 {
            fds.truncate(if stage == 2 { 2 } else { 0 });
            dance.client.handle_memory(&frame, fds, || None);
            assert!(dance.client.ended().is_some());
        }
        dance.client.give_up();
        assert!(failed(&dance.client), "stage {stage}");
        assert!(dance.client.poll_transmit().is_none() && dance.client.finish().is_none());
    }
    // What is said is said.
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go();
    dance.give_server();
    dance.memory();
    dance.give_server();
    dance.client.give_up();
    assert_eq!(dance.client.ended(), Some(&Ended::Established));
}

#[test]
fn missing_descriptors_are_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    let (frame, fds) = dance.client.go().expect("there was a Hello");
    let one = dup(&fds[..1]);
    dance
        .server
        .handle_go(&frame, one, || None, NOW)
        .expect("the same build");
    dance.give_server();
    let (_, text) = declined(dance.server.ended());
    assert_eq!(text, "rendezvous frame: file descriptors: 1, expected 2");
}

#[test]
fn a_server_with_a_wrong_memory_frame_is_declined() {
    // Offsets in the Memory: token, link id, size code, first contact.
    for offset in [24, 32, 36, 37] {
        let (a, b) = engines();
        let mut dance = Dance::new(&a, &b);
        dance.hello();
        dance.go();
        dance.give_server();
        let (mut frame, fds) = dance.send_memory();
        dance.give_client();
        frame[offset] ^= 1;
        dance.client.handle_memory(&frame, fds, || None);
        assert!(
            declined(dance.client.ended()).1.contains("not that")
                || declined(dance.client.ended()).1.contains("not those"),
            "offset {offset}"
        );
        dance.give_server();
        assert_eq!(declined(dance.server.ended()).0, Diagnosis::INTERNAL_ERROR);
        assert!(dance.client.finish().is_none() && dance.server.finish().is_none());
    }
}

#[test]
fn a_memory_without_our_header_is_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go();
    dance.give_server();
    let (frame, mut fds) = dance.send_memory();
    dance.give_client();
    fds[0] = OwnMemory::new(OPTIONS).expect("memory").fd;
    dance.client.handle_memory(&frame, fds, || None);
    assert_eq!(
        declined(dance.client.ended()).1,
        "shared memory: header: unknown layout"
    );
}

#[test]
fn a_confirm_of_another_token_fails() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.hello();
    dance.go();
    dance.give_server();
    dance.memory();
    let mut confirm = dance.client.poll_transmit().expect("a Confirm");
    confirm[16] ^= 1;
    feed(
        &confirm,
        &mut dance.server,
        |s| s.wanted(),
        |s, part| s.handle_bytes(part, NOW),
    );
    assert!(
        matches!(dance.server.ended(), Some(Ended::Failed { text }) if text.starts_with("CLC Confirm: token"))
    );
    assert!(dance.server.finish().is_none());
}

#[test]
fn a_proposal_before_the_go_waits_for_it() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.give_server();
    assert!(dance.server.wants_go());
    assert_eq!(dance.server.proposed_engine(), Some(a.id()));
    assert!(dance.server.poll_transmit().is_none(), "not answered yet");
    dance.hello();
    dance.go();
    dance.memory();
    dance.give_server();
    assert_eq!(dance.server.ended(), Some(&Ended::Established));
}

#[test]
fn a_proposal_without_a_rendezvous_is_declined() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.give_server();
    dance
        .server
        .decline(Diagnosis::NO_SMC_D_V2_DEVICE, NOW)
        .expect("nothing was sent");
    dance.give_client();
    dance.both_declined(Diagnosis::NO_SMC_D_V2_DEVICE);
}

#[test]
fn garbage_and_silence_fail() {
    let (a, b) = engines();
    let mut dance = Dance::new(&a, &b);
    dance.client.handle_bytes(b"HTTP/1.1");
    assert!(
        matches!(dance.client.ended(), Some(Ended::Failed { text }) if text.contains("eyecatcher")),
        "{:?}",
        dance.client.ended()
    );
    dance.server.give_up();
    assert!(
        matches!(dance.server.ended(), Some(Ended::Failed { text }) if text.contains("in time"))
    );
}

#[test]
fn another_engine_than_the_proposed_one_is_declined() {
    let (a, b) = engines();
    let (c, _) = engines();
    let mut dance = Dance::new(&a, &b);
    let mut other = Dance::new(&c, &b);
    other.hello();
    let (frame, fds) = other.client.go().expect("there was a Hello");
    let fds = dup(&fds);
    dance
        .server
        .handle_go(&frame, fds, || None, NOW)
        .expect("the same build");
    dance.give_server();
    assert_eq!(
        declined(dance.server.ended()).1,
        "rendezvous Go: engine id: not the GID of the CLC Proposal"
    );
}
