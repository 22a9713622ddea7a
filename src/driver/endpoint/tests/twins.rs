//! The same dialogue on both media: whoever looks only at the streams sees no difference.

use proptest::prelude::*;

use super::pairs::{Kind, Pair, pair_of};
use super::{Incoming, read};
use crate::driver::endpoint::Endpoint;
use crate::mem::Source;

/// What one end does, the server's if the flag is set.
#[derive(Debug, Clone)]
enum Step {
    Write(bool, usize),
    Read(bool, usize),
    Flush(bool),
    ArmRead(bool, u32),
    ArmWrite(bool),
    /// What is under way goes on.
    Arrive,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..40_000usize).prop_map(|(end, n)| Step::Write(end, n)),
        4 => (any::<bool>(), 1..40_000usize).prop_map(|(end, n)| Step::Read(end, n)),
        1 => any::<bool>().prop_map(Step::Flush),
        1 => (any::<bool>(), 1..8_192u32).prop_map(|(end, n)| Step::ArmRead(end, n)),
        1 => any::<bool>().prop_map(Step::ArmWrite),
        2 => Just(Step::Arrive),
    ];
    prop::collection::vec(step, 1..60)
}

/// One direction: what was written, and what came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream {
    written: Vec<u8>,
    read: Vec<u8>,
}

/// Both ends on one medium, the streams from the server and from the client.
struct Twin {
    pair: Pair,
    streams: [Stream; 2],
}

impl Twin {
    fn new(kind: Kind, codes: (u8, u8), chaos: (u64, u32)) -> Self {
        let pair = pair_of(kind, codes.0, codes.1);
        if let Some(fabric) = &pair.fabric {
            fabric.set_chaos(chaos.0, chaos.1);
        }
        Self {
            pair,
            streams: Default::default(),
        }
    }

    fn end(&mut self, server: bool) -> &mut Endpoint {
        if server {
            &mut self.pair.server
        } else {
            &mut self.pair.client
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write(server, n) => self.write(server, n),
            Step::Read(server, n) => self.read(server, n),
            Step::Flush(server) => self.end(server).flush(),
            Step::ArmRead(server, need) => drop(self.end(server).arm_read(need)),
            Step::ArmWrite(server) => drop(self.end(server).arm_write()),
            Step::Arrive => self.pair.step(),
        }
    }

    fn write(&mut self, server: bool, n: usize) {
        let written = &mut self.streams[usize::from(!server)].written;
        let begun = written.len();
        written.extend((begun..begun + n).map(|at| (at ^ (at >> 8) ^ usize::from(server)) as u8));
        let bytes = written[begun..].to_vec();
        let taken = self.end(server).write(Source::from(&bytes[..]));
        taken.expect("nothing has ended");
    }

    fn read(&mut self, server: bool, n: usize) {
        if let Incoming::Bytes(there) = self.end(server).incoming(n as u32) {
            let bytes = read(self.end(server), n.min(there as usize));
            self.streams[usize::from(server)].read.extend(bytes);
        }
    }

    /// Ends both streams, and reads them to their end.
    fn finish(mut self) -> [Stream; 2] {
        for server in [true, false] {
            self.end(server).write_eof();
        }
        let mut ended = [false; 2];
        for _ in 0..100_000 {
            for server in [true, false] {
                self.read(server, usize::MAX >> 32);
                self.end(server).flush();
                ended[usize::from(server)] = self.end(server).incoming(1) == Incoming::End;
            }
            if ended == [true; 2] {
                return self.streams;
            }
            self.pair.step();
        }
        panic!("the streams do not end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn both_media_carry_the_same_dialogue(
        steps in steps(),
        codes in (0..3u8, 0..3u8),
        chaos in (any::<u64>(), 0..80u32),
    ) {
        let streams = [Kind::Shared, Kind::Lane].map(|kind| {
            let mut twin = Twin::new(kind, codes, chaos);
            for step in &steps {
                twin.take(step);
            }
            twin.finish()
        });
        for stream in streams.iter().flatten() {
            prop_assert!(stream.read == stream.written);
        }
        prop_assert!(streams[0] == streams[1]);
    }
}
