//! What a device, and the kernel, tell of the device's troubles.
//!
//! Drivers that can take a device away from its users report an event of the device when they do. Others, soft-RoCE among them,
//! wait until its users have let go of it, and tell them nothing: whoever removes such a device waits as long. The kernel
//! announces the removal of the device's node to all who listen, which needs no privilege, so that we can let go.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::context::Context;
use super::library::DEVICES;
use crate::fabric::rdma::Trouble;

/// The group of the kernel's own messages.
const KERNEL: u32 = 1;
/// The kernel's messages are not longer.
const MESSAGE: usize = 4096;
/// Messages that one look takes at most.
const BATCH: usize = 256;

/// The descriptor that wakes for all of it.
#[derive(Debug)]
pub(super) struct Troubles {
    set: OwnedFd,
    removal: Option<Removal>,
}

/// The announcements of the kernel, of which one is waited for.
#[derive(Debug)]
struct Removal {
    socket: OwnedFd,
    /// Of the device, as sysfs has it.
    node: PathBuf,
    told: AtomicBool,
}

impl Troubles {
    /// # Errors
    /// EMFILE, ENOMEM.
    pub(super) fn new(context: &Context) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(
                &set,
                fd,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            )
        };
        add(context.async_fd())?;
        // A sandbox may refuse it; the device's own events are there all the same.
        let removal = node(context.name()).and_then(|node| Removal::new(node).ok());
        if let Some(removal) = &removal {
            add(removal.socket.as_fd())?;
        }
        Ok(Self { set, removal })
    }

    /// Becomes readable when [`Self::take`] may have something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// What there is about `port` of the device, its pairs and itself. Nothing in a forked child.
    pub(super) fn take(&self, context: &Context, port: u8) -> Vec<Trouble> {
        let mut troubles = context.take_troubles(port);
        if context.is_ours()
            && let Some(removal) = &self.removal
            && removal.has_come()
            && !troubles.contains(&Trouble::Gone)
        {
            troubles.push(Trouble::Gone);
        }
        troubles
    }
}

impl Removal {
    fn new(node: PathBuf) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(KOBJECT_UEVENT),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Self {
            socket,
            node,
            told: AtomicBool::new(false),
        })
    }

    /// Takes what the kernel has announced, and returns whether the device's end was among it; true once.
    fn has_come(&self) -> bool {
        let mut message = [0; MESSAGE];
        let mut has_come = false;
        for _ in 0..BATCH {
            match recv(&self.socket, &mut message[..], RecvFlags::empty()) {
                Ok((len, _)) => has_come |= announces(&message[..len.min(MESSAGE)], &self.node),
                // There were more messages than the socket holds: perhaps ours was among them.
                Err(Errno::NOBUFS) => has_come |= !self.node.exists(),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        has_come && !self.told.swap(true, Ordering::Relaxed)
    }
}

/// The node of the device, as in "/sys/class/infiniband_verbs/uverbs0".
fn node(device: &str) -> Option<PathBuf> {
    let is_its = |node: &Path| {
        let name = std::fs::read_to_string(node.join("ibdev"));
        name.is_ok_and(|name| name.trim() == device)
    };
    let nodes = std::fs::read_dir(DEVICES).ok()?;
    nodes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|node| is_its(node))
}

/// Whether a message, "remove@/devices/virtual/infiniband_verbs/uverbs0" and what follows a zero, tells of the end of `node`.
fn announces(message: &[u8], node: &Path) -> bool {
    let header = message.split(|byte| *byte == 0).next();
    let path = header.and_then(|header| header.strip_prefix(b"remove@"));
    let Some(Ok(path)) = path.map(std::str::from_utf8) else {
        return false;
    };
    let class = Path::new(path).parent().and_then(Path::file_name);
    class == Path::new(DEVICES).file_name() && Path::new(path).file_name() == node.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_removal_of_this_node_counts() {
        let node = Path::new("/sys/class/infiniband_verbs/uverbs1");
        let path = "/devices/virtual/infiniband_verbs/uverbs1";
        let message = |action: &str, path: &str| {
            format!("{action}@{path}\0ACTION={action}\0DEVPATH={path}\0").into_bytes()
        };
        assert!(announces(&message("remove", path), node));
        assert!(announces(
            &message(
                "remove",
                "/devices/pci0000:00/0000:00:03.0/infiniband_verbs/uverbs1"
            ),
            node
        ));
        for (action, path) in [
            ("add", path),
            ("remove", "/devices/virtual/infiniband_verbs/uverbs10"),
            ("remove", "/devices/virtual/infiniband_mad/uverbs1"),
            ("remove", "/devices/virtual/infiniband_verbs/uverbs1/more"),
            ("remove", ""),
        ] {
            assert!(!announces(&message(action, path), node), "{action} {path}");
        }
        for message in [
            &b""[..],
            b"remove@",
            b"remove@\xff/infiniband_verbs/uverbs1",
            b"libudev\0",
        ] {
            assert!(!announces(message, node), "{message:?}");
        }
    }

    #[test]
    fn what_is_announced_about_others_is_passed_over() {
        match Removal::new(PathBuf::from("/sys/class/infiniband_verbs/uverbs1")) {
            Ok(removal) => assert!(!removal.has_come()),
            Err(error) => eprintln!("not checked: the kernel's announcements: {error}"),
        }
    }
}
