//! Everything that a fabric has, under one lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::chaos::Chaos;
use crate::fabric::rdma::{
    Access, Completion, MESSAGE_MAX, POLL_MAX, PairOptions, Status, Trouble,
};
use crate::mem::{Region, Source};

/// A port, by its place in the list.
pub(super) type Place = usize;

const PROTECTION: Status = Status(4);
const FLUSHED: Status = Status(5);
const REMOTE_ACCESS: Status = Status(10);
const RETRIES_EXCEEDED: Status = Status(12);
const TOO_LONG: Status = Status(1);

#[derive(Debug, Default)]
pub(super) struct World {
    ports: Vec<Port>,
    pairs: BTreeMap<(Place, u32), PairState>,
    pub(super) memories: BTreeMap<u32, Memory>,
    last_number: u32,
    pub(super) chaos: Chaos,
}

#[derive(Debug)]
pub(super) struct Port {
    device: String,
    pub(super) gids: Vec<[u8; 16]>,
    completions: VecDeque<Completion>,
    /// Those that are late.
    late: VecDeque<Completion>,
    /// Reports that are kept back.
    held: VecDeque<Completion>,
    holds: bool,
    is_cut: bool,
    starves: bool,
    pub(super) seeks: bool,
    is_gone: bool,
    pub(super) is_open: bool,
    pub(super) is_exhausted: bool,
    pairs_max: usize,
    /// Numbers of pairs that are gone, where they are given out again.
    free: Option<Vec<u32>>,
    armed: bool,
    pub(super) troubles: Vec<Trouble>,
    completion: OwnedFd,
    trouble: OwnedFd,
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) place: Place,
    pub(super) domain: u32,
    pub(super) region: Region,
    pub(super) address: u64,
    pub(super) access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    New,
    Receiving,
    Sending,
    Broken,
}

#[derive(Debug)]
pub(super) struct PairState {
    domain: u32,
    gid: [u8; 16],
    pub(super) options: PairOptions,
    pub(super) stage: Stage,
    pub(super) remote: ([u8; 16], u32),
    /// Whether the other end was ever there.
    met: bool,
    pub(super) works: VecDeque<Work>,
    /// Posts whose places are taken: by id, and how many.
    pub(super) used: VecDeque<(u64, u32)>,
    receives: VecDeque<u32>,
    pub(super) arrived: BTreeMap<u32, Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

/// What a pair has to do.
#[derive(Debug)]
pub(super) enum Work {
    Write {
        from: Region,
        local_key: u32,
        offset: usize,
        len: u32,
        address: u64,
        key: u32,
    },
    Send {
        message: Vec<u8>,
        id: u64,
        report: bool,
    },
}

/// What has become of a work.
enum Done {
    Yes,
    NotYet,
    Failed { here: Status, there: bool },
}

impl PairState {
    /// Posts all receives again whose messages were taken out.
    pub(super) fn replenish(&mut self) {
        let posted = |slot: &u32| !self.receives.contains(slot) && !self.arrived.contains_key(slot);
        let free: Vec<u32> = (0..self.options.receives).filter(posted).collect();
        self.receives.extend(free);
    }

    fn is_receiving(&self) -> bool {
        matches!(self.stage, Stage::Receiving | Stage::Sending)
    }
}

/// What handles do.
impl World {
    pub(super) fn add_port(
        &mut self,
        device: &str,
        gids: &[[u8; 16]],
        (completion, trouble): (OwnedFd, OwnedFd),
    ) -> Place {
        self.ports.push(Port {
            device: device.to_owned(),
            gids: gids.to_vec(),
            completions: VecDeque::new(),
            late: VecDeque::new(),
            held: VecDeque::new(),
            holds: false,
            is_cut: false,
            starves: false,
            seeks: false,
            is_gone: false,
            is_open: true,
            is_exhausted: false,
            pairs_max: usize::MAX,
            free: None,
            armed: false,
            troubles: Vec::new(),
            completion,
            trouble,
        });
        self.ports.len() - 1
    }

    pub(super) fn port(&self, place: Place) -> &Port {
        &self.ports[place]
    }

    pub(super) fn port_mut(&mut self, place: Place) -> &mut Port {
        &mut self.ports[place]
    }

    /// A number that nothing else has.
    pub(super) fn next_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn add_pair(
        &mut self,
        place: Place,
        domain: u32,
        options: PairOptions,
    ) -> io::Result<u32> {
        let gids = &self.ports[place].gids;
        let gid = gids.get(usize::from(options.gid_index)).copied();
        let gid = gid.ok_or(io::Error::from(Errno::INVAL))?;
        let others = self.pairs.keys().filter(|id| id.0 == place).count();
        if others >= self.ports[place].pairs_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let free = self.ports[place].free.as_mut().and_then(Vec::pop);
        let number = free.unwrap_or_else(|| self.next_number());
        self.pairs.insert(
            (place, number),
            PairState {
                domain,
                gid,
                options,
                stage: Stage::New,
                remote: ([0; 16], 0),
                met: false,
                works: VecDeque::new(),
                used: VecDeque::new(),
                receives: (0..options.receives).collect(),
                arrived: BTreeMap::new(),
                sent: Vec::new(),
            },
        );
        Ok(number)
    }

    pub(super) fn remove_pair(&mut self, id: (Place, u32)) {
        self.pairs.remove(&id);
        if let Some(free) = &mut self.ports[id.0].free {
            free.push(id.1);
        }
        self.run_all();
    }

    /// The pair, unless its device is gone.
    pub(super) fn pair(&mut self, id: (Place, u32)) -> io::Result<&mut PairState> {
        let gone = self.ports[id.0].is_gone;
        self.pairs
            .get_mut(&id)
            .filter(|_| !gone)
            .ok_or(Errno::IO.into())
    }

    pub(super) fn arm(&mut self, place: Place) -> io::Result<()> {
        self.ports[place].armed = true;
        if self.ports[place].is_gone {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, place: Place, found: &mut Vec<Completion>) -> io::Result<usize> {
        let port = &mut self.ports[place];
        if port.is_gone {
            return Err(Errno::IO.into());
        }
        let n = port.completions.len().min(POLL_MAX);
        let taken: Vec<Completion> = port.completions.drain(..n).collect();
        for completion in &taken {
            if let Completion::Sent { pair, id } = completion
                && let Some(pair) = self.pairs.get_mut(&(place, *pair))
            {
                pair.used.retain(|(used, _)| used > id);
            }
        }
        found.extend(taken);
        Ok(n)
    }
}

/// What tests do.
impl World {
    fn find(&mut self, device: &str) -> &mut Port {
        let mut ports = self.ports.iter_mut();
        let port = ports.find(|port| port.device == device);
        port.unwrap_or_else(|| panic!("there is no device {device}"))
    }

    fn place_of(&self, device: &str) -> Place {
        let place = self.ports.iter().position(|port| port.device == device);
        place.unwrap_or_else(|| panic!("there is no device {device}"))
    }

    pub(super) fn hold(&mut self, device: &str, holds: bool) {
        let place = self.place_of(device);
        self.ports[place].holds = holds;
        if !holds {
            let held = std::mem::take(&mut self.ports[place].held);
            held.into_iter().for_each(|one| self.complete(place, one));
        }
    }

    pub(super) fn cut(&mut self, device: &str, is_cut: bool) {
        self.find(device).is_cut = is_cut;
        self.run_all();
    }

    pub(super) fn starve(&mut self, device: &str, starves: bool) {
        self.find(device).starves = starves;
        self.run_all();
    }

    pub(super) fn seek(&mut self, device: &str, seeks: bool) {
        self.find(device).seeks = seeks;
    }

    pub(super) fn limit_pairs(&mut self, device: &str, most: usize) {
        self.find(device).pairs_max = most;
    }

    pub(super) fn reuse_numbers(&mut self, device: &str) {
        self.find(device).free = Some(Vec::new());
    }

    pub(super) fn exhaust(&mut self, device: &str, is_exhausted: bool) {
        self.find(device).is_exhausted = is_exhausted;
    }

    pub(super) fn fail(&mut self, device: &str, pair: u32, status: Status) {
        let place = self.place_of(device);
        self.break_pair((place, pair), status);
    }

    pub(super) fn trouble(&mut self, device: &str, trouble: Trouble) {
        let port = self.find(device);
        port.is_gone |= trouble == Trouble::Gone;
        port.report(trouble);
    }

    pub(super) fn forget_gids(&mut self, device: &str) {
        self.find(device).gids.clear();
        self.trouble(device, Trouble::GidChange);
    }

    pub(super) fn say(&mut self, device: &str, pair: u32, bytes: &[u8]) {
        let id = (self.place_of(device), pair);
        let arrived = self.arrive(id, bytes);
        assert!(matches!(arrived, Done::Yes), "pair {pair} does not receive");
    }

    pub(super) fn sends(&self, device: &str, pair: u32) -> bool {
        let pair = self.pairs.get(&(self.place_of(device), pair));
        pair.is_some_and(|pair| pair.stage == Stage::Sending)
    }

    pub(super) fn heard(&mut self, device: &str, pair: u32) -> Vec<Vec<u8>> {
        let id = (self.place_of(device), pair);
        let pair = self.pairs.get_mut(&id);
        pair.map(|pair| std::mem::take(&mut pair.sent))
            .unwrap_or_default()
    }

    pub(super) fn pairs_of(&self, device: &str) -> Vec<u32> {
        let place = self.place_of(device);
        let numbers = self.pairs.keys().filter(|id| id.0 == place);
        numbers.map(|id| id.1).collect()
    }

    pub(super) fn is_writable(&self, device: &str, key: u32) -> bool {
        let place = self.place_of(device);
        let memory = self.memories.get(&key);
        memory.is_some_and(|one| one.place == place && one.access == Access::RemoteWrite)
    }

    pub(super) fn is_open(&self, device: &str) -> bool {
        self.ports[self.place_of(device)].is_open
    }

    pub(super) fn registered(&self, device: &str) -> usize {
        let place = self.place_of(device);
        let ours = self.memories.values().filter(|one| one.place == place);
        ours.count()
    }

    /// Lets some of what is late go on.
    pub(super) fn step(&mut self) -> bool {
        for place in 0..self.ports.len() {
            while !self.chaos.is_late() && self.release(place) {}
        }
        self.run_all();
        let late = self.ports.iter().any(|port| !port.late.is_empty());
        late || self.pairs.values().any(|pair| !pair.works.is_empty())
    }

    fn release(&mut self, place: Place) -> bool {
        let port = &mut self.ports[place];
        let next = port.late.pop_front();
        next.map(|completion| port.show(completion)).is_some()
    }
}

/// What travels.
impl World {
    /// Lets all pairs work.
    pub(super) fn run_all(&mut self) {
        let ids: Vec<_> = self.pairs.keys().copied().collect();
        for id in ids {
            self.run(id);
        }
    }

    /// Lets a pair work until it has to wait.
    pub(super) fn run(&mut self, id: (Place, u32)) {
        while let Some(pair) = self.pairs.get_mut(&id) {
            let late = self.chaos.is_late();
            if pair.stage != Stage::Sending || pair.works.is_empty() || late {
                return;
            }
            match self.work(id) {
                Done::NotYet => return,
                Done::Yes => self.finish(id),
                Done::Failed { here, there } => {
                    let peer = self.peer(id);
                    self.break_pair(id, here);
                    if let (Some(peer), true) = (peer, there) {
                        let pair = Trouble::Pair { pair: peer.1 };
                        self.ports[peer.0].report(pair);
                        self.break_pair(peer, FLUSHED);
                    }
                    return;
                }
            }
        }
    }

    /// The other end, if it is there and means this one.
    fn peer(&self, id: (Place, u32)) -> Option<(Place, u32)> {
        let own = self.pairs.get(&id)?;
        let mut others = self.pairs.iter();
        let is_it = |other: (Place, u32), pair: &PairState| {
            (pair.gid, other.1) == own.remote && pair.remote == (own.gid, id.1)
        };
        others
            .find(|(other, pair)| is_it(**other, pair))
            .map(|(other, _)| *other)
    }

    fn work(&mut self, id: (Place, u32)) -> Done {
        let Some(peer) = self.peer(id) else {
            // Once it was there: its device does not answer for it any more.
            let gone = self.pairs[&id].met && !self.ports[id.0].is_cut;
            let exists = |(other, pair): (&(Place, u32), &PairState)| {
                (pair.gid, other.1) == self.pairs[&id].remote
            };
            return if gone && !self.pairs.iter().any(exists) {
                Done::Failed {
                    here: RETRIES_EXCEEDED,
                    there: false,
                }
            } else {
                Done::NotYet
            };
        };
        if self.ports[id.0].is_cut || self.ports[peer.0].is_cut {
            return Done::NotYet;
        }
        match self.pairs[&peer].stage {
            Stage::New => return Done::NotYet,
            Stage::Broken => {
                return Done::Failed {
                    here: RETRIES_EXCEEDED,
                    there: false,
                };
            }
            Stage::Receiving | Stage::Sending => {}
        }
        let Some(pair) = self.pairs.get_mut(&id) else {
            return Done::NotYet;
        };
        pair.met = true;
        match pair.works.front() {
            Some(Work::Send { message, .. }) => {
                let message = message.clone();
                self.arrive(peer, &message)
            }
            Some(Work::Write { .. }) => self.write(id, peer),
            None => Done::NotYet,
        }
    }

    fn write(&self, id: (Place, u32), peer: (Place, u32)) -> Done {
        let Some(Work::Write {
            from,
            local_key,
            offset,
            len,
            address,
            key,
        }) = self.pairs[&id].works.front()
        else {
            return Done::NotYet;
        };
        let fault = |here, there| Done::Failed { here, there };
        let own = self.memories.get(local_key);
        if own.is_none_or(|own| own.domain != self.pairs[&id].domain) {
            return fault(PROTECTION, false);
        }
        let Some(target) = self.memories.get(key).filter(|target| {
            target.place == peer.0
                && target.domain == self.pairs[&peer].domain
                && target.access == Access::RemoteWrite
        }) else {
            return fault(REMOTE_ACCESS, true);
        };
        let at = address.checked_sub(target.address);
        let fits = |at: &u64| at.saturating_add(u64::from(*len)) <= target.region.len() as u64;
        let Some(at) = at.filter(fits) else {
            return fault(REMOTE_ACCESS, true);
        };
        let mut bytes = vec![0; *len as usize];
        from.read(*offset, bytes.as_mut_slice().into());
        target.region.write(at as usize, Source::from(&bytes[..]));
        Done::Yes
    }

    /// A message reaches a pair.
    fn arrive(&mut self, id: (Place, u32), message: &[u8]) -> Done {
        let starves = self.ports[id.0].starves;
        let Some(pair) = self.pairs.get_mut(&id) else {
            return Done::NotYet;
        };
        if starves || !pair.is_receiving() {
            return Done::NotYet;
        }
        let Some(slot) = pair.receives.pop_front() else {
            return Done::NotYet;
        };
        if message.len() > MESSAGE_MAX {
            self.break_pair(id, TOO_LONG);
            return Done::Yes;
        }
        pair.arrived.insert(slot, message.to_vec());
        let (pair, len) = (id.1, message.len() as u32);
        self.complete(id.0, Completion::Received { pair, slot, len });
        Done::Yes
    }

    /// The first work of a pair is done.
    fn finish(&mut self, id: (Place, u32)) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        if let Some(Work::Send {
            message,
            id: post,
            report,
        }) = pair.works.pop_front()
        {
            pair.sent.push(message);
            if report {
                let (pair, id_) = (id.1, post);
                self.complete(id.0, Completion::Sent { pair, id: id_ });
            }
        }
    }

    fn break_pair(&mut self, id: (Place, u32), status: Status) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        pair.stage = Stage::Broken;
        pair.works.clear();
        pair.receives.clear();
        let pair = id.1;
        self.complete(id.0, Completion::Failed { pair, status });
        if !status.is_flush() {
            let status = FLUSHED;
            self.complete(id.0, Completion::Failed { pair, status });
        }
    }

    fn complete(&mut self, place: Place, completion: Completion) {
        let late = self.chaos.is_late();
        let port = &mut self.ports[place];
        if port.holds && matches!(completion, Completion::Sent { .. }) {
            port.held.push_back(completion);
        // What is late keeps back what comes after it: a queue has one order.
        } else if late || !port.late.is_empty() {
            port.late.push_back(completion);
        } else {
            port.show(completion);
        }
    }
}

impl Port {
    fn show(&mut self, completion: Completion) {
        self.completions.push_back(completion);
        if std::mem::take(&mut self.armed) {
            poke(&self.completion);
        }
    }

    fn report(&mut self, trouble: Trouble) {
        self.troubles.push(trouble);
        poke(&self.trouble);
    }
}

fn poke(fd: &OwnedFd) {
    // Its counter never comes near the end, which is all that could fail.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
