//! A rendezvous connection: packets with file descriptors, between two processes of one host.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown, sockopt,
};
use rustix::process::{PidfdFlags, pidfd_open};

/// Bytes of the largest packet that is read; the present ones have at most 56.
const PACKET_MAX: usize = 4096;
/// Descriptors that are taken with one packet; the present ones carry at most two.
const FDS_MAX: usize = 4;

/// One end of a connected, non-blocking SOCK_SEQPACKET socket.
#[derive(Debug)]
pub struct Meeting(OwnedFd);

/// What came in one piece. Without bytes it is the end of the connection, and has no descriptors.
#[derive(Debug, Default)]
pub struct Packet {
    /// The bytes; a packet that is larger than any of ours is cut off, which its reader cannot take for one of ours.
    pub bytes: Vec<u8>,
    /// The descriptors that travelled with them.
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    /// Whether the other end has hung up. An empty packet counts as well: none of ours is.
    pub fn is_end(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Meeting {
    /// Takes over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends one packet. Never blocks, never half of it.
    ///
    /// # Errors
    /// EPIPE and its kin when the other end is gone, EAGAIN when its queue is full ([`is_gone`] tells these); ETOOMANYREFS
    /// when too many descriptors are under way, ENOBUFS, ENOMEM.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::TOOMANYREFS.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        Ok(())
    }

    /// The next packet; `None` when there is none yet. A connection that is broken has ended.
    ///
    /// # Errors
    /// EMFILE: there was a packet, and here was no descriptor left for its own.
    pub fn take(&self) -> io::Result<Option<Packet>> {
        let mut bytes = [0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(&self.0, into, &mut ancillary, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Ok(Some(Packet::default())),
            Ok(received) => received,
        };
        let fds: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Ok(Some(Packet::default()));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) && fds.len() < FDS_MAX {
            return Err(Errno::MFILE.into());
        }
        let bytes = bytes[..received.bytes.min(PACKET_MAX)].to_vec();
        Ok(Some(Packet { bytes, fds }))
    }

    /// From here on a send of the other end fails with EPIPE; what is in the queue already was sent, and counts.
    pub fn stop_listening(&self) {
        // ENOTCONN is the only error left: then there is nobody to tell.
        let _ = shutdown(&self.0, Shutdown::Read);
    }

    /// A new pidfd of the other end's process, `None` when there is no way to get one.
    pub fn witness(&self) -> Option<OwnedFd> {
        if let Ok(pidfd) = getsockopt(&self.0, PeerPidfd) {
            return Some(pidfd);
        }
        // Before Linux 6.5. Should the number have been reused, the witness is a stranger's and only TCP tells of death.
        let peer = sockopt::socket_peercred(&self.0).ok()?;
        pidfd_open(peer.pid, PidfdFlags::empty()).ok()
    }
}

/// Does an error of [`Meeting::send`] tell of the other end, and not of something that is lacking here?
pub fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, WouldBlock};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected | WouldBlock
    )
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::shm::Bell;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Meeting, Meeting) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("a pair of sockets");
        (Meeting::new(one), Meeting::new(other))
    }

    #[test]
    fn a_packet_arrives_whole_with_its_descriptors() {
        let (one, other) = pair();
        assert!(other.take().expect("nothing lacks").is_none());
        let bell = Bell::create().expect("a bell");
        one.send(b"go", &[bell.as_fd(), bell.as_fd()])
            .expect("room");
        one.send(b"and on", &[]).expect("room");
        let packet = other.take().expect("nothing lacks").expect("a packet");
        assert_eq!((packet.bytes.as_slice(), packet.fds.len()), (&b"go"[..], 2));
        let packet = other.take().expect("nothing lacks").expect("a packet");
        assert_eq!(
            (packet.bytes.as_slice(), packet.fds.len()),
            (&b"and on"[..], 0)
        );
        drop(one);
        assert!(
            other
                .take()
                .expect("nothing lacks")
                .expect("an end")
                .is_end()
        );
        assert!(is_gone(&other.send(b"x", &[]).expect_err("nobody")));
    }

    #[test]
    fn an_empty_packet_is_an_end_and_its_descriptors_are_closed() {
        let (one, other) = pair();
        let bell = Bell::create().expect("a bell");
        one.send(b"", &[bell.as_fd()]).expect("room");
        let packet = other.take().expect("nothing lacks").expect("an end");
        assert!(packet.is_end() && packet.fds.is_empty());
    }

    #[test]
    fn a_larger_packet_than_ours_is_cut_off() {
        let (one, other) = pair();
        one.send(&[7; PACKET_MAX + 1], &[]).expect("room");
        let packet = other.take().expect("nothing lacks").expect("a packet");
        assert_eq!(packet.bytes.len(), PACKET_MAX);
    }

    #[test]
    fn who_stops_listening_still_gets_what_was_sent() {
        let (one, other) = pair();
        one.send(b"go", &[]).expect("room");
        other.stop_listening();
        assert!(is_gone(
            &one.send(b"late", &[]).expect_err("nobody listens")
        ));
        let packet = other.take().expect("nothing lacks").expect("a packet");
        assert_eq!(packet.bytes, b"go");
        assert!(
            other
                .take()
                .expect("nothing lacks")
                .expect("an end")
                .is_end()
        );
    }

    #[test]
    fn the_witness_is_a_pidfd_of_the_peer() {
        let (one, _other) = pair();
        let witness = one.witness().expect("a pidfd");
        let info = std::fs::read_to_string(format!(
            "/proc/self/fdinfo/{}",
            std::os::fd::AsRawFd::as_raw_fd(&witness)
        ))
        .expect("fdinfo");
        assert!(info.contains(&format!("Pid:\t{}", std::process::id())));
    }
}
