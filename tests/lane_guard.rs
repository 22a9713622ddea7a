//! The guard thread: what it does while the event loop does nothing, and that it is there for as long as it is needed.

mod lane_support;

use std::time::{Duration, Instant};

use lane_support::*;
use smcfast::driver::rdma::*;
use smcfast::fabric::shm::signal;
use smcfast::wire::llc::{Message, Turn};

/// Whether this process has a thread of this name.
fn guards() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let names = tasks.filter_map(|task| {
        let path = task.ok()?.path().join("comm");
        std::fs::read_to_string(path).ok()
    });
    names.filter(|name| name.trim() == "smcfast-guard").count()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        wait(&[], Duration::from_millis(5));
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
    }
}

/// One test, for it counts the threads of the process.
#[test]
fn the_guard_serves_what_the_loop_does_not() {
    assert_eq!(guards(), 0);
    let net = Net::new();
    assert_eq!(guards(), 0, "no group, no guard");
    let [a, b] = net.connection();
    // A thread takes its name when it begins.
    until("one for each engine", || guards() == 2);
    net.until("quiet", || net.server.serve().is_empty());
    assert!(signal::arm(&b.header().mine().reader_armed, 50, || 0));

    // From here on nobody serves the server, for five seconds and more: each time the kernel would have given up after two.
    let pair = net.fabric.pairs("s")[0];
    net.fabric.heard("s", pair);
    let begun = Instant::now();
    let mut position = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        net.fabric.say("s", pair, &test_link());
        write(&a, position, &[position as u8; 10]);
        position += 10;
        let mut answers = Vec::new();
        until("an answer", || {
            answers.extend(links(&net.fabric.heard("s", pair)));
            !answers.is_empty()
        });
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "the kernel has given up"
        );
        assert!(matches!(&answers[..], [Message::TestLink(one)] if one.turn == Turn::Response));
        until("the news", || told(&b).producer.count == position as u32);
        net.client.serve();
    }
    assert!(position >= 50, "{position} bytes");
    assert_eq!(net.server.serve(), [b.number()], "the reader was rung for");
    assert_eq!(read(&b, 0, 10), [0; 10]);
    assert!(!b.is_dead() && !a.is_dead());

    // It keeps the time of the links, and dies with the last group.
    net.client.engine.close_links();
    until("the server's end", || b.is_dead());
    until("the end of both", || guards() == 0);
    let [c, _d] = net.connection();
    until("one for each again", || guards() == 2);
    drop(net);
    assert_eq!(guards(), 0, "joined");
    assert!(matches!(c.cause(), Some(Cause::Ended { .. })));
}
