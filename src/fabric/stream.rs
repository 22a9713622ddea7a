//! A TCP connection, as far as a handshake needs it: exact reads, and writes that may be short.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, getpeername, recv, send};

/// A connected stream socket. Whatever its mode is, nothing here blocks.
#[derive(Debug)]
pub struct Stream(OwnedFd);

impl Stream {
    /// Takes over a descriptor of the socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The address of the peer's host, by the kernel's word; the port, another for each connection, is 0. `None`: the stream is
    /// broken, or none of TCP.
    pub fn host(&self) -> Option<SocketAddr> {
        let peer = SocketAddr::try_from(getpeername(&self.0).ok()??).ok()?;
        Some(match (peer.ip().to_canonical(), peer) {
            (IpAddr::V6(ip), SocketAddr::V6(peer)) => {
                SocketAddrV6::new(ip, 0, 0, peer.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, 0),
        })
    }

    /// At most `len` bytes (and never 0 of them), `None` when there are none yet. No bytes: the stream has ended, or is broken.
    pub fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => bytes.clear(),
            Ok((_, received)) => bytes.truncate(received),
        }
        Some(bytes)
    }

    /// Whether the peer has ended its stream, with nothing before the end that was not taken; `None` as long as it is silent.
    pub fn has_ended(&self) -> Option<bool> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recv(&self.0, &mut [0; 1][..], flags) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) | Ok((_, 0)) => Some(true),
            Ok(_) => Some(false),
        }
    }

    /// Sends what there is room for: how many of `bytes` that were. `None`: the stream is broken.
    pub fn give(&self, bytes: &[u8]) -> Option<usize> {
        match send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::INTR) => Some(0),
            Err(_) => None,
            Ok(sent) => Some(sent),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Stream, TcpStream) {
        pair_at("127.0.0.1:0".parse().expect("an address"))
    }

    fn pair_at(address: SocketAddr) -> (Stream, TcpStream) {
        let listener = TcpListener::bind(address).expect("a port");
        let mut address = listener.local_addr().expect("an address");
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        let client = TcpStream::connect(address).expect("a listener");
        let (server, _) = listener.accept().expect("a client");
        (Stream::new(server.into()), client)
    }

    #[test]
    fn no_more_is_taken_than_was_asked_for() {
        let (stream, mut peer) = pair();
        assert_eq!(stream.has_ended(), None);
        assert_eq!(stream.take(4), None, "a blocking socket does not block");
        peer.write_all(b"CLC and more").expect("room");
        assert_eq!(stream.take(3).as_deref(), Some(&b"CLC"[..]));
        assert_eq!(stream.take(4).as_deref(), Some(&b" and"[..]));
        assert_eq!(stream.has_ended(), Some(false));
        drop(peer);
        assert_eq!(stream.has_ended(), Some(false), "not before it is read");
        assert_eq!(stream.take(100).as_deref(), Some(&b" more"[..]));
        assert_eq!(stream.has_ended(), Some(true));
        assert_eq!(stream.take(1).as_deref(), Some(&b""[..]));
    }

    /// A host is the same whichever socket it comes to, and from whichever port.
    #[test]
    fn the_host_of_a_peer_is_its_address_alone() {
        let host = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (stream, peer) = pair();
        assert_eq!(stream.host(), host);
        assert_eq!(Stream::new(peer.into()).host(), host);
        match TcpListener::bind("[::]:0") {
            Ok(_) => assert_eq!(
                pair_at("[::]:0".parse().expect("an address")).0.host(),
                host
            ),
            Err(error) => eprintln!("no IPv6 here: {error}"),
        }
        let (unix, _peer) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        assert_eq!(Stream::new(unix.into()).host(), None);
    }

    #[test]
    fn a_full_stream_takes_nothing_and_does_not_block() {
        let (stream, _peer) = pair();
        let chunk = vec![0; 1 << 20];
        while stream.give(&chunk) != Some(0) {}
    }

    #[test]
    fn a_broken_stream_is_told_from_a_full_one() {
        let (stream, peer) = pair();
        stream.give(b"unread").expect("room");
        drop(peer);
        // The reset that answers the unread byte is under way.
        while stream.give(b"x").is_some() {}
    }
}
