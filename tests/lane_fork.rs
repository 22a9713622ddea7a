//! A forked child has nothing of the links: no thread, no lock, no memory; and leaves its parent's alone.

mod lane_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lane_support::*;
use nix::libc::_exit;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::process::{PidfdFlags, pidfd_open};
use smcfast::driver::rdma::*;
use smcfast::wire::SizeCode;
use smcfast::wire::clc::{Mtu, Version};

/// What a child may do with what it inherited, and what its end does.
fn in_the_child(net: Net, lanes: [Lane; 2], places: [Place; 2]) -> bool {
    let [a, b] = lanes;
    a.push(News::default());
    a.poll();
    b.arm();
    b.tcp_ended(true);
    let group = places[0].group();
    let refused = net
        .client
        .port
        .new_group(Side::Client, Version::V2, None)
        .is_err()
        && net.client.engine.port(net.client.port.own()).is_err()
        && group
            .place(SizeCode::MIN)
            .is_ok_and(|place| place.is_none())
        && places[0].tell_key().is_err()
        && places[0].key_state() == KeyState::Silent;
    places[0].end(Mtu::B1024);
    net.client.engine.close_links();
    drop((places, a, b, net));
    refused
}

/// Ends the thread that looks, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_child_touches_nothing_and_does_not_hang() {
    let net = Net::new();
    let lanes = net.connection();
    let [_, b] = &lanes;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Some children are made while this thread has a lock.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                b.poll();
            }
        });
        let _end = End(&over);
        for _ in 0..50 {
            let places = net.first_contact([SizeCode::MIN; 2]);
            fork_once(&net, &lanes, places);
        }
    });
    let [a, b] = lanes;
    write(&a, 0, b"as ever");
    net.until("news", || told(&b).producer == at(0, 7));
    assert_eq!(read(&b, 0, 7), b"as ever");
}

fn fork_once(net: &Net, lanes: &[Lane; 2], places: [Place; 2]) {
    // SAFETY: the child uses what it inherited, which is what is tested, and ends without the handlers of the parent.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            // SAFETY: the copy is the child's own; the original is never dropped here, for it ends below.
            let net = unsafe { std::ptr::read(net) };
            // SAFETY: as above.
            let lanes = unsafe { std::ptr::read(lanes) };
            let end = AssertUnwindSafe(|| in_the_child(net, lanes, places));
            let good = catch_unwind(end).unwrap_or(false);
            // SAFETY: ends the process.
            unsafe { _exit(i32::from(!good)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(end_of(child), Some(WaitStatus::Exited(child, 0)));
            drop(places);
        }
    }
}

/// How the child ends; `None` if it hangs.
fn end_of(child: Pid) -> Option<WaitStatus> {
    let pid = rustix::process::Pid::from_raw(child.as_raw()).expect("a child");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    let mut fds = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    let time = rustix::event::Timespec {
        tv_sec: Duration::from_secs(10).as_secs() as i64,
        tv_nsec: 0,
    };
    let ended = rustix::event::poll(&mut fds, Some(&time)).expect("poll") == 1;
    if !ended {
        kill(child, Signal::SIGKILL).expect("it is there");
    }
    let status = waitpid(child, None).expect("a child");
    ended.then_some(status)
}
