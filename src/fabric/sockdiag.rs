//! Exact socket look-ups by sock_diag: who owns this TCP address pair?
//!
//! The kernel answers within the send call, so a look-up never blocks. It needs no privilege; containers and sandboxes may
//! refuse it. Facts: linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const ANY_STATE: u32 = u32::MAX;

const HEADER: usize = 16;
/// The request behind its header: family, protocol, extensions, pad, states, and the socket's identity.
const REQUEST: usize = HEADER + 8 + 48;
/// Where the identity lies in an answer, and what lies behind it: expires, rqueue, wqueue, uid, inode.
const IDENTITY: usize = HEADER + 4;
const COOKIE: usize = IDENTITY + 40;
const UID: usize = IDENTITY + 48 + 12;
const INODE: usize = UID + 4;
const ANSWER: usize = INODE + 4;

/// One end of a TCP connection, or a listener's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Never an IPv4-mapped one: to the kernel's tables that is IPv4.
    pub host: IpAddr,
    /// 0 for any.
    pub port: u16,
    /// The interface of a link-local address, else 0.
    pub scope: u32,
}

/// What the kernel tells of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// 1 is established, 10 listens.
    pub state: u8,
    /// The user whose it is.
    pub uid: u32,
    /// 0 as long as no process has accepted the connection.
    pub inode: u32,
    /// The kernel's number of it, unique in this boot.
    pub cookie: u64,
}

/// A netlink socket to ask with.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

impl SockDiag {
    /// # Errors
    /// EMFILE and its kin; whatever a sandbox says.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(SOCK_DIAG),
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// The TCP socket whose local address is `own` and whose remote address is `peer`, `None` when there is none.
    ///
    /// # Errors
    /// Look-ups are refused, EPROTO for an answer that is none; ENOBUFS, ENOMEM.
    pub fn ask(&mut self, own: Address, peer: Address) -> io::Result<Option<Entry>> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let request = request(self.sequence, own, peer);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request, SendFlags::empty(), &kernel)?;
        let mut answer = [0; 512];
        loop {
            let (received, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            let answer = answer.get(..received).ok_or(Errno::PROTO)?;
            // What an interrupted question has left behind is not ours.
            if word(answer, 8)? == self.sequence {
                return read(answer);
            }
        }
    }
}

fn request(sequence: u32, own: Address, peer: Address) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    let family = match own.host {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    put(&(REQUEST as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&0u32.to_ne_bytes());
    put(&[family.as_raw() as u8, IPPROTO_TCP, 0, 0]);
    put(&ANY_STATE.to_ne_bytes());
    put(&own.port.to_be_bytes());
    put(&peer.port.to_be_bytes());
    put(&octets(own.host));
    put(&octets(peer.host));
    put(&own.scope.max(peer.scope).to_ne_bytes());
    put(&[0xff; 8]);
    bytes
}

fn octets(host: IpAddr) -> [u8; 16] {
    match host {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read(answer: &[u8]) -> io::Result<Option<Entry>> {
    let [low, high] = field(answer, 4)?;
    match u16::from_ne_bytes([low, high]) {
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(field(answer, HEADER)?).wrapping_neg();
            match Errno::from_raw_os_error(code) {
                Errno::NOENT => Ok(None),
                errno => Err(errno.into()),
            }
        }
        SOCK_DIAG_BY_FAMILY if answer.len() >= ANSWER => Ok(Some(Entry {
            state: field::<1>(answer, HEADER + 1)?[0],
            uid: word(answer, UID)?,
            inode: word(answer, INODE)?,
            cookie: u64::from_ne_bytes(field(answer, COOKIE)?),
        })),
        _ => Err(Errno::PROTO.into()),
    }
}

fn word(answer: &[u8], at: usize) -> io::Result<u32> {
    Ok(u32::from_ne_bytes(field(answer, at)?))
}

fn field<const N: usize>(answer: &[u8], at: usize) -> io::Result<[u8; N]> {
    answer
        .get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Errno::PROTO.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    fn address(of: SocketAddr) -> Address {
        Address {
            host: of.ip(),
            port: of.port(),
            scope: 0,
        }
    }

    #[test]
    fn listeners_and_both_halves_are_found() {
        let mut diag = SockDiag::new().expect("netlink");
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).expect("a port");
            let target = address(listener.local_addr().expect("an address"));
            let any = match target.host {
                IpAddr::V4(_) => "0.0.0.0:0",
                IpAddr::V6(_) => "[::]:0",
            };
            let any = address(any.parse().expect("an address"));
            let found = diag
                .ask(target, any)
                .expect("an answer")
                .expect("a listener");
            assert_eq!(
                (found.state, found.uid),
                (10, rustix::process::geteuid().as_raw())
            );
            let client = TcpStream::connect((target.host, target.port)).expect("a listener");
            let own = address(client.local_addr().expect("an address"));
            let half = diag
                .ask(target, own)
                .expect("an answer")
                .expect("the server's");
            assert_eq!((half.state, half.inode), (1, 0), "not accepted yet");
            let _server = listener.accept().expect("a client");
            let half = diag
                .ask(target, own)
                .expect("an answer")
                .expect("the server's");
            assert_ne!(half.inode, 0);
            assert!(diag.ask(own, target).expect("an answer").is_some());
            drop(listener);
            assert_eq!(diag.ask(target, any).expect("an answer"), None);
        }
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let whole = [0u8; ANSWER];
        for len in 0..ANSWER {
            let mut answer = whole;
            answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            assert!(read(&answer[..len]).is_err(), "{len} bytes");
        }
        assert!(read(&whole).is_err(), "of another kind");
        let mut error = whole;
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[HEADER..HEADER + 4].copy_from_slice(&(-1i32).to_ne_bytes());
        assert_eq!(read(&error).expect_err("EPERM").raw_os_error(), Some(1));
        error[HEADER..HEADER + 4].copy_from_slice(&(-2i32).to_ne_bytes());
        assert_eq!(read(&error).expect("ENOENT is an answer"), None);
    }
}
