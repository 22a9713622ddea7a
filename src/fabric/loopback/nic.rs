//! Ports, protection domains and their memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::Shared;
use super::pair::LoopbackPair;
use super::world::{Memory, Place};
use crate::fabric::rdma::{
    Access, Completion, Domain, Nic, Pair, PairOptions, Registered, Trouble,
};
use crate::mem::{self, Region, fork};

/// A port.
#[derive(Debug)]
pub(super) struct LoopbackNic {
    shared: Arc<Shared>,
    device: String,
    place: Place,
    completion: OwnedFd,
    trouble: OwnedFd,
    generation: u64,
}

impl LoopbackNic {
    pub(super) fn new(shared: Arc<Shared>, device: &str, gids: &[[u8; 16]]) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (completion, trouble) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let fds = (completion.try_clone()?, trouble.try_clone()?);
        let place = shared.world().add_port(device, gids, fds);
        Ok(Self {
            shared,
            device: device.to_owned(),
            place,
            completion,
            trouble,
            generation: fork::generation()?,
        })
    }
}

impl Drop for LoopbackNic {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that did not come along.
        if fork::is_current(self.generation) {
            self.shared.world().port_mut(self.place).is_open = false;
        }
    }
}

impl Nic for LoopbackNic {
    fn device(&self) -> &str {
        &self.device
    }

    fn port(&self) -> u8 {
        1
    }

    fn mtu(&self) -> io::Result<u8> {
        Ok(3)
    }

    fn gid(&self, index: u8) -> io::Result<[u8; 16]> {
        let world = self.shared.world();
        let gid = world.port(self.place).gids.get(usize::from(index));
        gid.copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn domain(&self) -> io::Result<Box<dyn Domain>> {
        Ok(Box::new(LoopbackDomain {
            shared: Arc::clone(&self.shared),
            place: self.place,
            number: self.shared.world().next_number(),
        }))
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completion.as_fd()
    }

    fn trouble_fd(&self) -> BorrowedFd<'_> {
        self.trouble.as_fd()
    }

    fn arm(&self) -> io::Result<()> {
        self.shared.world().arm(self.place)
    }

    fn take_events(&self) -> io::Result<bool> {
        match rustix::io::read(&self.completion, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&self, found: &mut Vec<Completion>) -> io::Result<usize> {
        self.shared.world().poll(self.place, found)
    }

    fn take_troubles(&self) -> Vec<Trouble> {
        let _ = rustix::io::read(&self.trouble, &mut [0; 8]);
        std::mem::take(&mut self.shared.world().port_mut(self.place).troubles)
    }
}

/// A protection domain.
#[derive(Debug)]
struct LoopbackDomain {
    shared: Arc<Shared>,
    place: Place,
    number: u32,
}

impl Domain for LoopbackDomain {
    fn register(&self, len: usize, access: Access) -> io::Result<Arc<Registered>> {
        let region = Region::new(Arc::new(mem::Memory::anonymous(len)?), 0, len);
        self.shared.pin();
        let mut world = self.shared.world();
        if world.port(self.place).is_exhausted {
            return Err(Errno::NOMEM.into());
        }
        let key = world.next_number();
        // An address that is none of this process, so that it is not taken for one.
        let address = u64::from(key) << 32;
        world.memories.insert(
            key,
            Memory {
                place: self.place,
                domain: self.number,
                region: region.clone(),
                address,
                access,
            },
        );
        let keeper = Keeper {
            shared: Arc::clone(&self.shared),
            key,
            generation: fork::generation()?,
        };
        Ok(Arc::new(Registered::new(
            region,
            address,
            (key, key),
            Box::new(keeper),
        )))
    }

    fn pair(&self, options: PairOptions) -> io::Result<Box<dyn Pair>> {
        Ok(Box::new(LoopbackPair::new(
            Arc::clone(&self.shared),
            (self.place, self.number),
            options,
        )?))
    }
}

/// A registration.
#[derive(Debug)]
struct Keeper {
    shared: Arc<Shared>,
    key: u32,
    generation: u64,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that did not come along.
        if fork::is_current(self.generation) {
            self.shared.pin();
            self.shared.world().memories.remove(&self.key);
        }
    }
}
