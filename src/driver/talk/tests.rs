//! Two talks in one process, over real sockets; and peers that stop in the middle.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::*;
use crate::driver::Engine;
use crate::driver::setup::{ClientSetup, Offer, Options, ServerSetup};
use crate::fabric::Stream;
use crate::fabric::shm::Meeting;
use crate::mem::header::LAYOUT_HASH;
use crate::wire::SizeCode;
use crate::wire::clc::Diagnosis;
use crate::wire::rendezvous::Frame;

const NOW: Duration = Duration::from_secs(100);
const LATER: Duration = Duration::from_secs(110);
const OPTIONS: Options = Options {
    size: SizeCode::MIN,
    preallocate: false,
};

fn engine() -> Arc<Engine> {
    Arc::new(Engine::new().expect("an engine"))
}

fn streams() -> (Stream, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    far.set_nonblocking(true).expect("a mode");
    (Stream::new(near.into()), far)
}

fn meetings() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair of sockets")
}

fn client_over(stream: Stream) -> ClientTalk {
    let setup = ClientSetup::new(engine(), OPTIONS, Offer::memory(), NOW).expect("memory");
    ClientTalk::new(setup, stream, LATER)
}

fn server_over(stream: Stream) -> ServerTalk {
    ServerTalk::new(
        ServerSetup::new(engine(), OPTIONS, Offer::memory(), NOW),
        stream,
        LATER,
    )
}

/// A client and a server that have met.
fn pair() -> (ClientTalk, ServerTalk) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let (mut client, mut server) = (
        client_over(Stream::new(near.into())),
        server_over(Stream::new(far.into())),
    );
    let (near, far) = meetings();
    assert!(server.meet(Meeting::new(near), LATER));
    client.meet(Meeting::new(far), LATER);
    (client, server)
}

fn declined(ending: Option<&Ending>) -> Option<Diagnosis> {
    match ending {
        Some(Ending::Setup(Ended::Declined { diagnosis, .. })) => Some(*diagnosis),
        _ => None,
    }
}

#[test]
fn two_talks_end_with_two_ends_of_one_ring() {
    let (mut client, mut server) = pair();
    assert!(
        client.step(NOW).is_some(),
        "it has proposed, and waits for the Accept"
    );
    assert!(
        server.step(NOW).is_some(),
        "it has accepted, and waits for the Confirm"
    );
    assert!(client.step(NOW).is_none());
    assert!(server.step(NOW).is_none());
    let established = Some(&Ending::Setup(Ended::Established));
    assert_eq!(
        (client.ending(), server.ending()),
        (established, established)
    );
    assert!(client.finish().is_some() && server.finish().is_some());
    assert!(client.finish().is_none(), "once");
}

#[test]
fn a_late_client_takes_its_confirm_back() {
    let (mut client, mut server) = pair();
    client.step(NOW);
    server.step(NOW);
    assert!(client.step(LATER).is_none());
    assert_eq!(client.ending(), Some(&Ending::late()));
    client.release();
    assert!(server.step(NOW).is_none());
    assert!(matches!(
        server.ending(),
        Some(Ending::Setup(Ended::Failed { .. }))
    ));
}

#[test]
fn a_go_in_the_very_moment_in_which_the_time_is_over_counts() {
    let (stream, _tcp) = streams();
    let mut server = server_over(stream);
    let (near, far) = meetings();
    let far = Meeting::new(far);
    server.meet(Meeting::new(near), NOW);
    far.send(b"nonsense instead of a Go", &[]).expect("room");
    let wait = server.step(NOW).expect("a Proposal must be coming");
    assert_eq!(wait.until, LATER);
}

#[test]
fn after_a_server_has_given_up_nobody_can_send_it_a_go() {
    let (stream, _tcp) = streams();
    let mut server = server_over(stream);
    let (near, far) = meetings();
    let far = Meeting::new(far);
    server.meet(Meeting::new(near), NOW);
    assert!(server.step(NOW).is_none());
    assert_eq!(server.ending(), Some(&Ending::Apart(Apart::TimedOut)));
    far.send(b"a Go", &[]).expect_err("nobody listens");
}

/// What became of a Memory that did not fit into the client's queue, or found no client: the code at both ends.
fn a_memory_that_cannot_be_sent(spoil: impl FnOnce(OwnedFd, &OwnedFd)) -> Option<Diagnosis> {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let mut client = client_over(Stream::new(near.into()));
    let mut server = server_over(Stream::new(far.into()));
    let (near, far) = meetings();
    let (near_too, far_too) = (
        near.try_clone().expect("a descriptor"),
        far.try_clone().expect("a descriptor"),
    );
    server.meet(Meeting::new(near), LATER);
    client.meet(Meeting::new(far), LATER);
    client.step(NOW);
    spoil(near_too, &far_too);
    server.step(NOW);
    client.step(NOW);
    let wait = server.step(NOW).expect("has the client given up?");
    assert!(server.step(wait.until).is_none(), "it has not");
    assert_eq!(declined(client.ending()), declined(server.ending()));
    declined(server.ending())
}

#[test]
fn a_memory_that_finds_the_clients_queue_full_is_a_decline() {
    let code = a_memory_that_cannot_be_sent(|server, _client| {
        sockopt::set_socket_send_buffer_size(&server, 4096).expect("a size");
        let server = Meeting::new(server);
        while server.send(&[7; 512], &[]).is_ok() {}
    });
    assert_eq!(code, Some(Diagnosis::NO_SMC_D_V2_DEVICE));
}

#[test]
fn a_client_that_has_given_up_everything_is_not_served() {
    let (mut client, mut server) = pair();
    client.step(NOW);
    drop(client);
    assert!(server.step(NOW).is_none());
    let Some(Ending::Setup(Ended::Failed { text })) = server.ending() else {
        panic!("{:?}", server.ending());
    };
    assert_eq!(text, "the client gave up");
}

#[test]
fn a_memory_that_finds_no_client_is_a_decline() {
    let code = a_memory_that_cannot_be_sent(|_server, client| {
        rustix::net::shutdown(client, rustix::net::Shutdown::Both).expect("a connection");
    });
    assert_eq!(code, Some(Diagnosis::NO_SMC_D_V2_DEVICE));
}

#[test]
fn a_stream_without_room_is_waited_for_and_not_for_ever() {
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    sockopt::set_socket_send_buffer_size(&near, 4096).expect("a size");
    near.set_nonblocking(true).expect("a mode");
    let mut filler = near.try_clone().expect("a descriptor");
    let mut filled = 0;
    while let Ok(sent) = filler.write(&[0; 512]) {
        filled += sent;
    }
    let mut client = client_over(Stream::new(near.into()));
    let wait = client.step(NOW).expect("no room");
    assert!(matches!(wait.events[..], [Event::Writable(_)]));
    let mut read = vec![0; filled];
    far.read_exact(&mut read).expect("what was written");
    let wait = client.step(NOW).expect("the Proposal is sent");
    assert!(matches!(wait.events[..], [Event::Readable(_)]));
    far.set_nonblocking(true).expect("a mode");
    let mut proposal = [0; 4096];
    assert!(far.read(&mut proposal).expect("the Proposal") > 100);

    let (near, _far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("a mode");
    let mut filler = near.try_clone().expect("a descriptor");
    while filler.write(&[0; 4096]).is_ok() {}
    let mut client = client_over(Stream::new(near.into()));
    client.step(NOW);
    assert!(client.step(LATER).is_none());
    assert_eq!(client.ending(), Some(&Ending::late()));
}

#[test]
fn a_stop_of_another_version_is_apart() {
    let (stream, mut tcp) = streams();
    let mut client = client_over(stream);
    let (near, far) = meetings();
    let far = Meeting::new(far);
    client.meet(Meeting::new(near), LATER);
    far.send(&Frame::Stop { reason: 1 }.encode(LAYOUT_HASH), &[])
        .expect("room");
    assert!(client.step(NOW).is_none());
    let Some(Ending::Apart(Apart::Incompatible(why))) = client.ending() else {
        panic!("{:?}", client.ending());
    };
    assert!(why.is_version());
    assert!(tcp.read(&mut [0; 1]).is_err(), "not a byte on TCP");
}

#[test]
fn a_server_that_was_met_by_a_proposal_asks_for_the_meeting() {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let mut client = client_over(Stream::new(near.into()));
    let mut server = server_over(Stream::new(far.into()));
    client.step(NOW);
    let wait = server.step(NOW).expect("a client without a door");
    assert_eq!(wait.events, [Event::Meeting]);
    assert!(server.wants_meeting().is_some());
    let (near, far) = meetings();
    assert!(near.as_fd().try_clone_to_owned().is_ok());
    server.meet(Meeting::new(near), LATER);
    client.meet(Meeting::new(far), LATER);
    for _ in 0..3 {
        client.step(NOW);
        server.step(NOW);
    }
    assert!(client.finish().is_some() && server.finish().is_some());
}

#[test]
fn a_server_whose_client_has_no_door_declines_in_time() {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let mut client = client_over(Stream::new(near.into()));
    let mut server = server_over(Stream::new(far.into()));
    client.step(NOW);
    server.step(NOW);
    assert!(server.step(LATER).is_none());
    client.step(NOW);
    let code = Some(Diagnosis::NO_SMC_D_V2_DEVICE);
    assert_eq!(
        (declined(client.ending()), declined(server.ending())),
        (code, code)
    );
}
