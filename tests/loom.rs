//! The doorbell under the model checker: every interleaving and every outcome that the memory model allows.
//!
//! Run with `make loom` (RUSTFLAGS="--cfg loom"); without that this file is empty.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use smcfast::fabric::shm::signal::{arm, must_ring};
use smcfast::mem::Half;
use smcfast::mem::sync::{Ordering, Site, WITHOUT_FENCE};

/// One direction: the writer's half, the reader's half, and the doorbell as a flag that stays up.
#[derive(Default)]
struct Shared {
    writer: Half,
    reader: Half,
    rung: AtomicBool,
}

impl Shared {
    fn publish(&self, produced: u64) {
        self.writer.producer.store(produced, Ordering::Release);
        if must_ring(&self.reader.reader_armed, || {
            produced - self.reader.consumer.load(Ordering::Acquire)
        }) {
            self.rung.store(true, Ordering::Release);
        }
    }

    fn readable(&self) -> u64 {
        self.writer.producer.load(Ordering::Acquire) - self.reader.consumer.load(Ordering::Relaxed)
    }
}

/// The writer publishes `chunks` and ends; the reader, asleep at a threshold of `need` bytes after it has consumed
/// `consumed`, must find the bell rung if all that it waits for has come. A sleeper that nobody rings is a lost wake-up.
fn sleeper(chunks: &'static [u64], need: u64, consumed: u64) {
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut produced = 0;
                for chunk in chunks {
                    produced += chunk;
                    shared.publish(produced);
                }
            })
        };
        // A reader takes what it saw and announces it before it arms, as the driver does.
        let consumed = consumed.min(shared.readable());
        shared.reader.consumer.store(consumed, Ordering::Release);
        let sleeps = arm(&shared.reader.reader_armed, need, || shared.readable());
        writer.join().expect("the writer ends");
        let total: u64 = chunks.iter().sum();
        if sleeps && total - consumed >= need {
            assert!(
                shared.rung.load(Ordering::Acquire),
                "asleep with {} of {need} bytes there",
                total - consumed
            );
        }
        if !sleeps {
            assert!(shared.readable() >= need, "awake too early");
        }
    });
}

/// The other direction: a writer that found the ring full sleeps until the reader has made room.
fn blocked_writer(size: u64, reads: &'static [u64], need: u64) {
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        shared.writer.producer.store(size, Ordering::Release);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut consumed = 0;
                for read in reads {
                    consumed += read;
                    shared.reader.consumer.store(consumed, Ordering::Release);
                    let room =
                        || size - (shared.writer.producer.load(Ordering::Acquire) - consumed);
                    if must_ring(&shared.writer.writer_armed, room) {
                        shared.rung.store(true, Ordering::Release);
                    }
                }
            })
        };
        let room = || {
            let produced = shared.writer.producer.load(Ordering::Relaxed);
            size - (produced - shared.reader.consumer.load(Ordering::Acquire))
        };
        let sleeps = arm(&shared.writer.writer_armed, need, room);
        reader.join().expect("the reader ends");
        let freed: u64 = reads.iter().sum();
        if sleeps && freed >= need {
            assert!(
                shared.rung.load(Ordering::Acquire),
                "asleep with room for {freed} of {need} bytes"
            );
        }
    });
}

/// An end that is declared while the reader arms: it must be rung whatever it waits for, and then see all the bytes.
/// The flag is the top bit of the consumer's word, as it is a part of that word in the real page.
fn declared_end(bytes: u64, need: u64) {
    const CLOSED: u64 = 1 << 63;
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.publish(bytes);
                shared.writer.consumer.store(CLOSED, Ordering::Release);
                if must_ring(&shared.reader.reader_armed, || u64::MAX) {
                    shared.rung.store(true, Ordering::Release);
                }
            })
        };
        let look = || {
            let ended = shared.writer.consumer.load(Ordering::Acquire) & CLOSED != 0;
            let readable = shared.readable();
            if ended {
                assert_eq!(
                    readable, bytes,
                    "an end that is ahead of the bytes before it"
                );
                u64::MAX
            } else {
                readable
            }
        };
        let sleeps = arm(&shared.reader.reader_armed, need, look);
        writer.join().expect("the writer ends");
        assert!(
            !sleeps || shared.rung.load(Ordering::Acquire),
            "asleep at a stream that has ended"
        );
    });
}

fn all() {
    declared_end(0, 1);
    declared_end(3, 5);
    declared_end(3, 2);
    sleeper(&[1], 1, 0);
    sleeper(&[1, 1], 1, 1);
    sleeper(&[3, 5], 8, 0);
    sleeper(&[3, 5], 4, 3);
    sleeper(&[2, 2, 2], 5, 2);
    blocked_writer(8, &[8], 1);
    blocked_writer(8, &[2, 2], 4);
    blocked_writer(8, &[1, 3, 4], 4);
}

/// One test, since leaving a fence out is a switch of the whole process.
#[test]
fn no_wake_up_is_lost_and_without_a_fence_one_is() {
    all();
    let broken: [(&str, fn()); 3] = [
        ("end", || declared_end(3, 5)),
        ("reader", || sleeper(&[1], 1, 0)),
        ("writer", || blocked_writer(8, &[8], 1)),
    ];
    for site in [Site::Arm, Site::Publish] {
        WITHOUT_FENCE.store(site as u8, std::sync::atomic::Ordering::Relaxed);
        for (name, model) in broken {
            let found = std::panic::catch_unwind(model);
            assert!(
                found.is_err(),
                "without the fence of {site:?} the {name}'s lost wake-up must be found"
            );
        }
    }
}
