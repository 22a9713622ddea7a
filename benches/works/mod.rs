//! The pieces of work that `parts.rs` times and `count.rs` counts.

mod ends;
#[path = "../../tests/wire_support/mod.rs"]
mod wire_support;

use std::hint::black_box;
use std::sync::Arc;

use smcfast::mem::{Memory, Region, Source, Target, memfd};
use smcfast::proto::connection::Connection;
use smcfast::proto::position::{Position, RingSize};
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::Cdc;
use smcfast::wire::clc::Message;

/// Something that can be done again and again.
pub(crate) struct Work {
    /// What it is called, in the table of counts too.
    pub(crate) name: String,
    /// Bytes that one time moves; 0 where that says nothing.
    #[allow(dead_code, reason = "counts do not ask")]
    pub(crate) bytes: usize,
    /// Does it once.
    pub(crate) once: Box<dyn FnMut()>,
}

fn work(name: impl Into<String>, bytes: usize, once: impl FnMut() + 'static) -> Work {
    Work {
        name: name.into(),
        bytes,
        once: Box::new(once),
    }
}

/// All of them.
pub(crate) fn works() -> Vec<Work> {
    let mut all = clc();
    all.extend(cdc());
    all.extend(numbers());
    all.extend(copies());
    all.extend(ends());
    all
}

/// Messages of a handshake between two kernels.
fn clc() -> Vec<Work> {
    let vectors = wire_support::clc_vectors();
    let names = [
        ("proposal", "kk_00008_clc_proposal_v2r"),
        ("accept", "kk_00010_clc_accept_v2r_fc"),
        ("confirm", "kk_00012_clc_confirm_v2r_fc_2gids"),
    ];
    let mut all = Vec::new();
    for (kind, name) in names {
        let vector = vectors.iter().find(|vector| vector.name == name);
        let bytes = vector.expect("the vector is there").bytes.clone();
        let message = Message::decode(&bytes).expect("a message");
        all.push(work(format!("wire: decode CLC {kind}"), 0, move || {
            black_box(Message::decode(black_box(&bytes))).expect("a message");
        }));
        all.push(work(format!("wire: encode CLC {kind}"), 0, move || {
            black_box(black_box(&message).encode());
        }));
    }
    all
}

fn cdc() -> Vec<Work> {
    let ring = RingSize::from_code(SizeCode::MIN);
    let cdc = Cdc {
        producer: ring.cursor(Position::new(123_456)),
        consumer: ring.cursor(Position::new(120_000)),
        ..Cdc::default()
    };
    let bytes = cdc.encode();
    let words = (cdc.producer_word(), cdc.consumer_word());
    vec![
        work("wire: decode CDC", 0, move || {
            black_box(Cdc::decode(black_box(&bytes))).expect("a CDC");
        }),
        work("wire: encode CDC", 0, move || {
            black_box(black_box(cdc).encode());
        }),
        work("wire: CDC from words and back", 0, move || {
            let (producer, consumer) = black_box(words);
            let cdc = Cdc::from_words(producer, consumer);
            black_box((cdc.producer_word(), cdc.consumer_word()));
        }),
    ]
}

/// Positions, cursors and windows: no bytes.
fn numbers() -> Vec<Work> {
    let ring = RingSize::from_code(SizeCode::MIN);
    let size = u64::from(ring.bytes());
    let mut at = Position::new(size - 1000);
    let mut writer = Connection::new(ring, ring);
    let mut reader = Connection::new(ring, ring);
    vec![
        work("cursor: there and back, over the end", 0, move || {
            let cursor = ring.cursor(black_box(at.plus(64)));
            let by = ring.advance(at, cursor, size).expect("a legal cursor");
            black_box(ring.spans(at, by as u32));
            at = at.plus(by);
        }),
        work("window: 64 B produced, consumed, announced", 0, move || {
            black_box(writer.write_spans(64));
            writer.produced(64);
            reader
                .handle_producer(writer.producer_cursor())
                .expect("legal");
            black_box(reader.read_spans(64));
            reader.consumed(64);
            let (cursor, ..) = reader.take_consumer();
            writer.handle_consumer(cursor).expect("legal");
        }),
    ]
}

/// Copies into shared memory and out of it, from the same place modulo 4 KiB too: there `rep movsb` is slow.
fn copies() -> Vec<Work> {
    const LEN: usize = 4 << 20;
    let fd = memfd::create(LEN, false).expect("a memfd");
    let memory = Memory::map(&fd, LEN).expect("a mapping");
    let region = Region::new(Arc::new(memory), 0, LEN);
    let mut all = Vec::new();
    for size in [16, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        for (what, shift) in [("", 2048), (", same place modulo 4 KiB", 0)] {
            let (region, mut bytes) = (region.clone(), vec![7u8; size + 8192]);
            let aligned = bytes.as_ptr().align_offset(4096);
            all.push(work(
                format!("copy: {size} B in and out{what}"),
                2 * size,
                move || {
                    let bytes = &mut bytes[aligned..aligned + size];
                    region.write(shift, Source::from(&*bytes));
                    region.read(shift, Target::from(bytes));
                },
            ));
        }
    }
    all
}

/// From one end of a connection to the other.
fn ends() -> Vec<Work> {
    [64, 4 << 10, 64 << 10]
        .map(|size| {
            let (mut client, mut server) = ends::pair();
            let (bytes, mut buffer) = (vec![7u8; size], vec![0u8; size]);
            work(format!("ring: write and read {size} B"), size, move || {
                ends::through(&mut client, &mut server, &bytes, &mut buffer);
            })
        })
        .into()
}
