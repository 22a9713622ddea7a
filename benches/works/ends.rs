//! Two ends of a connection in one process, set up as two processes would, without sockets between them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use smcfast::driver::endpoint::{Endpoint, Incoming};
use smcfast::driver::engine::Engine;
use smcfast::driver::setup::{ClientSetup, Offer, Options, ServerSetup};
use smcfast::mem::{Source, Target};
use smcfast::wire::SizeCode;

const NOW: Duration = Duration::ZERO;

/// Client and server, with rings of 1 MiB.
pub(crate) fn pair() -> (Endpoint, Endpoint) {
    let options = Options {
        size: SizeCode::new(6).expect("1 MiB"),
        preallocate: false,
    };
    let engine = || Arc::new(Engine::new().expect("an engine"));
    let mut client = ClientSetup::new(engine(), options, Offer::memory(), NOW).expect("a client");
    let mut server = ServerSetup::new(engine(), options, Offer::memory(), NOW);
    client
        .handle_hello(&server.hello())
        .expect("the same build");
    let (go, fds) = client.go().expect("there was a Hello");
    let fds = dup(&fds);
    server
        .handle_go(&go, fds, || None, NOW)
        .expect("the same build");
    to_server(&mut client, &mut server);
    let (memory, fds) = server.memory().expect("due");
    let fds = dup(&fds);
    server.handle_memory_sent(NOW).expect("due");
    while let Some(bytes) = server.poll_transmit() {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, more) = rest.split_at(client.wanted());
            client.handle_bytes(part);
            rest = more;
        }
    }
    client.handle_memory(&memory, fds, || None);
    to_server(&mut client, &mut server);
    let (client, _) = client.finish().expect("established");
    let (server, _) = server.finish().expect("established");
    (client, server)
}

fn dup(fds: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
    fds.iter()
        .map(|fd| fd.try_clone_to_owned().expect("dup"))
        .collect()
}

fn to_server(client: &mut ClientSetup, server: &mut ServerSetup) {
    while let Some(bytes) = client.poll_transmit() {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, more) = rest.split_at(server.wanted());
            server.handle_bytes(part, NOW);
            rest = more;
        }
    }
}

/// Writes `bytes` at one end and reads them at the other.
pub(crate) fn through(from: &mut Endpoint, to: &mut Endpoint, bytes: &[u8], buffer: &mut [u8]) {
    from.write(Source::from(bytes)).expect("room");
    assert_eq!(to.incoming(1), Incoming::Bytes(bytes.len() as u32));
    to.read(Target::from(buffer));
}
