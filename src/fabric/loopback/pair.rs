//! One end of a queue pair.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::Shared;
use super::world::{Place, Stage, Work};
use crate::fabric::rdma::{Connecting, HEAD_LEN, Pair, PairOptions, Received, Remote, Write};
use crate::mem::fork;

/// A handle; the pair itself lies in the world.
#[derive(Debug)]
pub(super) struct LoopbackPair {
    shared: Arc<Shared>,
    id: (Place, u32),
    first_packet: u32,
    generation: u64,
}

impl LoopbackPair {
    pub(super) fn new(
        shared: Arc<Shared>,
        (place, domain): (Place, u32),
        options: PairOptions,
    ) -> io::Result<Self> {
        let generation = fork::generation()?;
        let mut world = shared.world();
        let first_packet = world.next_number();
        let number = world.add_pair(place, domain, options)?;
        drop(world);
        Ok(Self {
            shared,
            id: (place, number),
            first_packet,
            generation,
        })
    }
}

impl Pair for LoopbackPair {
    fn number(&self) -> u32 {
        self.id.1
    }

    fn first_packet(&self) -> u32 {
        self.first_packet
    }

    fn connecting(&mut self, remote: &Remote) -> io::Result<Connecting> {
        let (shared, id, remote) = (Arc::clone(&self.shared), self.id, *remote);
        Ok(Box::new(move || {
            let mut world = shared.world_with_routes(id.0)?;
            let pair = world.pair(id)?;
            if pair.stage != Stage::New || remote.mtu != 3 {
                return Err(Errno::INVAL.into());
            }
            pair.stage = Stage::Receiving;
            pair.remote = (remote.gid, remote.number);
            world.run_all();
            Ok(())
        }))
    }

    fn ready_to_send(&mut self) -> io::Result<()> {
        let mut world = self.shared.world();
        let pair = world.pair(self.id)?;
        if pair.stage != Stage::Receiving {
            return Err(Errno::INVAL.into());
        }
        pair.stage = Stage::Sending;
        Ok(())
    }

    fn post(
        &mut self,
        writes: &[Write<'_>],
        message: &[u8],
        id: u64,
        report: bool,
    ) -> io::Result<()> {
        assert!(message.len() <= HEAD_LEN, "a message that is too long");
        let places = writes.len() as u32 + 1;
        let works = writes.iter().map(|write| {
            assert!(write.len > 0, "a write of nothing");
            let region = write.from.region();
            let end = write.offset + write.len as usize;
            assert!(end <= region.len(), "a write out of its memory");
            Work::Write {
                from: region.clone(),
                local_key: write.from.local_key(),
                offset: write.offset,
                len: write.len,
                address: write.address,
                key: write.key,
            }
        });
        let mut world = self.shared.world();
        let pair = world.pair(self.id)?;
        if pair.stage != Stage::Sending {
            return Err(Errno::INVAL.into());
        }
        if pair.used.iter().map(|(_, places)| places).sum::<u32>() + places > pair.options.sends {
            return Err(Errno::NOMEM.into());
        }
        pair.used.push_back((id, places));
        pair.works.extend(works);
        pair.works.push_back(Work::Send {
            message: message.to_vec(),
            id,
            report,
        });
        world.run(self.id);
        Ok(())
    }

    fn received(&mut self, slot: u32, len: u32) -> Received {
        let mut world = self.shared.world();
        let bytes = world
            .pair(self.id)
            .ok()
            .and_then(|pair| pair.arrived.remove(&slot))
            .unwrap_or_default();
        assert_eq!(bytes.len(), len as usize, "the message of slot {slot}");
        let head_len = bytes.len().min(HEAD_LEN);
        let mut head = [0; HEAD_LEN];
        head[..head_len].copy_from_slice(&bytes[..head_len]);
        Received {
            head,
            head_len,
            tail: bytes[head_len..].to_vec(),
        }
    }

    fn replenish(&mut self) -> io::Result<()> {
        let mut world = self.shared.world();
        world.pair(self.id)?.replenish();
        world.run_all();
        Ok(())
    }
}

impl Drop for LoopbackPair {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that did not come along.
        if fork::is_current(self.generation) {
            self.shared.world().remove_pair(self.id);
        }
    }
}
