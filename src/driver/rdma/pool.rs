//! The registered memory of a group, which its connections take and give back.
//!
//! Registering costs far more than a connection does otherwise, and a key that the peer has learnt once is not told again.

use std::io;
use std::sync::Arc;

use crate::fabric::rdma::{Access, Domain, Registered};
use crate::mem::Region;
use crate::proto::link::MAX_KEYS;
use crate::wire::SizeCode;

/// Bytes of each kind that a group keeps although no connection uses them.
const IDLE_MAX: usize = 16 << 20;

/// A ring that is registered.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    pub(super) memory: Arc<Registered>,
    pub(super) size: SizeCode,
    /// Of a receive buffer: the peer knows its key.
    pub(super) known: bool,
}

impl Buffer {
    /// Takes memory and registers it, which takes its time: all of its pages are pinned.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn register(
        domain: &dyn Domain,
        size: SizeCode,
        access: Access,
    ) -> io::Result<Self> {
        Ok(Self {
            memory: domain.register(size.bytes() as usize, access)?,
            size,
            known: false,
        })
    }

    /// Its key, by which a group knows it.
    pub(super) fn key(&self) -> u32 {
        self.memory.remote_key()
    }

    /// Whether any of its bytes are lent.
    fn is_lent(&self) -> bool {
        self.memory.region().is_lent()
    }

    pub(super) fn ring(&self) -> Ring {
        Ring {
            region: self.memory.region().clone(),
            size: self.size,
            key: self.key(),
            address: self.memory.address(),
        }
    }
}

/// What a connection has of a ring: its bytes, and how peers name it. The registration is the group's, and goes with that.
#[derive(Debug, Clone)]
pub(super) struct Ring {
    pub(super) region: Region,
    pub(super) size: SizeCode,
    pub(super) key: u32,
    pub(super) address: u64,
}

/// The memory of a group.
#[derive(Debug)]
pub(super) struct Pool {
    receive: Vec<Buffer>,
    send: Vec<Buffer>,
    /// Receive buffers whose keys the peer is to forget before they go.
    doomed: Vec<Buffer>,
    /// Receive buffers that are registered, in use or not.
    receive_count: usize,
    /// What nobody uses any more, and who has the lock lets go of behind it.
    gone: Vec<Buffer>,
    domain: Arc<dyn Domain>,
}

impl Pool {
    pub(super) fn new(domain: Box<dyn Domain>) -> Self {
        Self {
            receive: Vec::new(),
            send: Vec::new(),
            doomed: Vec::new(),
            receive_count: 0,
            gone: Vec::new(),
            domain: domain.into(),
        }
    }

    /// Where to register a ring of this size, unless one lies ready or there must be no more: for [`Self::add`], before it is taken.
    pub(super) fn lacks(&self, size: SizeCode, access: Access) -> Option<Arc<dyn Domain>> {
        let (idle, is_full) = match access {
            Access::RemoteWrite => (&self.receive, self.receive_count >= MAX_KEYS),
            Access::Local => (&self.send, false),
        };
        let is_there = idle.iter().any(|buffer| buffer.size == size);
        (!is_there && !is_full).then(|| Arc::clone(&self.domain))
    }

    /// Adds a ring, for who takes the next of its size.
    pub(super) fn add(&mut self, fresh: Buffer, access: Access) {
        match access {
            Access::RemoteWrite if self.receive_count < MAX_KEYS => {
                self.receive_count += 1;
                self.receive.push(fresh);
            }
            Access::RemoteWrite => self.gone.push(fresh),
            Access::Local => self.send.push(fresh),
        }
    }

    /// What is to be dropped behind the lock: the kernel takes its time.
    pub(super) fn take_gone(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.gone)
    }

    /// A receive buffer; `None` when the peer would have to know too many keys.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn take_receive(&mut self, size: SizeCode) -> io::Result<Option<Buffer>> {
        if let Some(found) = take(&mut self.receive, size) {
            return Ok(Some(found));
        }
        if self.receive_count >= MAX_KEYS {
            return Ok(None);
        }
        let fresh = self.register(size, Access::RemoteWrite)?;
        self.receive_count += 1;
        Ok(Some(fresh))
    }

    /// A send ring.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn take_send(&mut self, size: SizeCode) -> io::Result<Buffer> {
        match take(&mut self.send, size) {
            Some(found) => Ok(found),
            None => self.register(size, Access::Local),
        }
    }

    /// Takes a send ring back, from which nothing is sent any more.
    pub(super) fn give_send(&mut self, buffer: Buffer) {
        // What the application still has a view of must not serve another connection.
        if has_room(&self.send, &buffer) && !buffer.is_lent() {
            self.send.push(buffer);
        } else {
            self.gone.push(buffer);
        }
    }

    /// Takes a receive buffer back, which the peer does not write any more. Returns the key that the peer is to forget when
    /// there are enough of them; the buffer stays until [`Self::forgotten`].
    pub(super) fn give_receive(&mut self, buffer: Buffer) -> Option<u32> {
        if has_room(&self.receive, &buffer) && !buffer.is_lent() {
            self.receive.push(buffer);
            None
        } else {
            Some(self.doom(buffer))
        }
    }

    /// Takes a receive buffer back whose key the peer may know although it is not to use it. Returns the key that it is to forget.
    pub(super) fn doom(&mut self, buffer: Buffer) -> u32 {
        let key = buffer.key();
        self.doomed.push(buffer);
        key
    }

    /// The peer has forgotten a key.
    pub(super) fn forgotten(&mut self, key: u32) {
        if let Some(at) = self.doomed.iter().position(|buffer| buffer.key() == key) {
            self.receive_count -= 1;
            self.gone.push(self.doomed.swap_remove(at));
        }
    }

    fn register(&self, size: SizeCode, access: Access) -> io::Result<Buffer> {
        Buffer::register(&*self.domain, size, access)
    }
}

fn take(idle: &mut Vec<Buffer>, size: SizeCode) -> Option<Buffer> {
    let at = idle.iter().rposition(|buffer| buffer.size == size)?;
    Some(idle.swap_remove(at))
}

fn has_room(idle: &[Buffer], one_more: &Buffer) -> bool {
    let bytes = |buffer: &Buffer| buffer.size.bytes() as usize;
    idle.iter().map(bytes).sum::<usize>() + bytes(one_more) <= IDLE_MAX
}
