//! What can be known without a device, by the library in `fake.c`.

use std::ffi::CStr;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use super::abi;
use super::error::Unavailable;
use super::fake::{Built, Controls};
use super::library::Library;
use super::{listing, nic};
use crate::fabric::rdma::{Access, Nic, PairOptions, Trouble};

const OPTIONS: PairOptions = PairOptions {
    gid_index: 0,
    sends: 8,
    receives: 8,
};

/// Kept for the life of the process, like the real one.
fn load(built: &Built) -> Result<&'static Library, Unavailable> {
    static LOADED: Mutex<Vec<&Library>> = Mutex::new(Vec::new());
    let library: &Library = Box::leak(Box::new(Library::load(&built.path())?));
    LOADED.lock().expect("nobody panics with it").push(library);
    Ok(library)
}

fn whole(name: &str) -> Option<(&'static Library, Controls)> {
    let built = Built::new(name, &[], &[])?;
    let library = load(&built).expect("whole");
    let controls = built.controls();
    assert_eq!(controls.journal(), ["fork-init"]);
    controls.forget();
    Some((library, controls))
}

fn open(library: &'static Library) -> Arc<dyn Nic> {
    nic::open_with(library, "fake0", 1).expect("the device")
}

#[test]
fn a_missing_library_is_a_reason() {
    let error = Library::load(c"libnosuchverbs.so.1").expect_err("there is none");
    let text = error.to_string();
    assert!(
        text.starts_with("RDMA: libibverbs cannot be loaded: libnosuchverbs.so.1"),
        "{text}"
    );
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::Unsupported);
}

#[test]
fn a_file_that_is_no_library_is_a_reason() {
    let path: &CStr = c"/proc/self/status";
    let error = Library::load(path).expect_err("text");
    assert!(matches!(error, Unavailable::Library(_)), "{error}");
}

#[test]
fn a_missing_function_is_named() {
    let Some(built) = Built::new("missing", &["ibv_create_qp"], &[]) else {
        return;
    };
    let error = load(&built).expect_err("one is missing").to_string();
    assert!(
        error.ends_with("libfake.so has no ibv_create_qp of version IBVERBS_1.1"),
        "{error}"
    );
}

#[cfg(target_env = "gnu")]
#[test]
fn a_function_of_another_version_is_not_taken() {
    let Some(built) = Built::new("older", &[], &["ibv_reg_mr"]) else {
        return;
    };
    let error = load(&built).expect_err("one is older").to_string();
    assert!(
        error.ends_with("libfake.so has no ibv_reg_mr of version IBVERBS_1.1"),
        "{error}"
    );
}

#[test]
fn a_list_that_fails_is_a_reason() {
    let Some((library, controls)) = whole("list") else {
        return;
    };
    controls.fail_list(libc::ENOSYS);
    let error = nic::open_with(library, "fake0", 1).expect_err("no list");
    assert!(
        error.to_string().starts_with("RDMA: ibv_get_device_list: "),
        "{error}"
    );
    let error = listing::list(library).expect_err("no list");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::Unsupported);
}

#[test]
fn what_is_not_there_is_named() {
    let Some((library, _)) = whole("names") else {
        return;
    };
    let error = nic::open_with(library, "fake7", 1).expect_err("another device");
    assert_eq!(
        error.to_string(),
        "RDMA: no device fake7; the library knows [\"fake0\"]"
    );
    for port in [0, 2] {
        let error = nic::open_with(library, "fake0", port).expect_err("another port");
        assert_eq!(
            error.to_string(),
            format!("RDMA: fake0 has no port {port}; it has 1")
        );
    }
}

#[test]
fn a_device_is_listed() {
    let Some((library, _)) = whole("listed") else {
        return;
    };
    let listed = listing::list(library).expect("a list");
    assert_eq!(listed[0].name, "fake0");
    let port = &listed[0].ports.as_ref().expect("it opens")[0];
    assert_eq!((port.number, port.state, port.mtu), (1, "active", 1024));
    assert_eq!(port.gids.len(), 1);
    assert_eq!((port.gids[0].index, port.gids[0].gid), (0, [7; 16]));
}

#[test]
fn all_goes_in_the_right_order_whoever_lets_go_first() {
    let Some((library, controls)) = whole("order") else {
        return;
    };
    for order in 0..3 {
        controls.forget();
        let nic = open(library);
        let domain = nic.domain().expect("domain");
        let memory = domain.register(5000, Access::RemoteWrite).expect("memory");
        let pair = domain.pair(OPTIONS).expect("pair");
        match order {
            0 => drop((nic, domain, memory, pair)),
            1 => drop((pair, memory, domain, nic)),
            _ => drop((memory, pair, nic, domain)),
        }
        let journal = controls.journal();
        let at = |what: &str| journal.iter().position(|one| one == what).expect(what);
        let last = |what: &str| journal.iter().rposition(|one| one == what).expect(what);
        assert_eq!(at("stop") + 1, at("pair"), "{journal:?}");
        assert!(
            at("pair") < at("queue") && at("queue") < at("channel"),
            "{journal:?}"
        );
        assert!(
            at("pair") < at("domain") && last("memory") < at("domain"),
            "{journal:?}"
        );
        assert_eq!(last("device"), journal.len() - 1, "{journal:?}");
        // That of the test, and the pair's own.
        assert_eq!(journal.iter().filter(|one| *one == "memory").count(), 2);
        assert_eq!(journal.len(), 8);
    }
}

#[test]
fn a_pair_that_is_refused_leaves_nothing() {
    let Some((library, controls)) = whole("refused") else {
        return;
    };
    let nic = open(library);
    let domain = nic.domain().expect("domain");
    controls.forget();
    let many = PairOptions {
        receives: 2000,
        ..OPTIONS
    };
    let error = domain.pair(many).expect_err("more than the queue has");
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(controls.journal(), Vec::<String>::new());
    let error = domain
        .pair(PairOptions {
            sends: 0,
            ..OPTIONS
        })
        .expect_err("no sends");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    controls.inline(-1);
    domain.pair(OPTIONS).expect_err("the device makes none");
    controls.inline(0);
    // The places of those that failed are free again.
    let most = PairOptions {
        receives: 992,
        ..OPTIONS
    };
    domain.pair(most).expect("all of them");
}

#[test]
fn events_are_acknowledged_and_told_once() {
    let Some((library, controls)) = whole("events") else {
        return;
    };
    let nic = open(library);
    assert_eq!(nic.take_troubles(), []);
    controls.event(1, abi::EVENT_PORT_ERROR);
    controls.event(2, abi::EVENT_PORT_ERROR);
    controls.event(1, abi::EVENT_PORT_ACTIVE);
    controls.event(1, abi::EVENT_GID_CHANGE);
    // Of no use to us, and unknown: an acknowledgement all the same.
    controls.event(1, 12);
    controls.event(1, 1000);
    assert_eq!(
        nic.take_troubles(),
        [Trouble::PortDown, Trouble::PortUp, Trouble::GidChange]
    );
    assert_eq!(nic.take_troubles(), []);
    controls.event(0, abi::EVENT_DEVICE_FATAL);
    assert_eq!(nic.take_troubles(), [Trouble::Gone]);
    assert_eq!(controls.journal(), ["ack"; 7]);
}

#[test]
fn a_forked_child_calls_nothing_and_closes_what_it_has() {
    let Some((library, controls)) = whole("fork") else {
        return;
    };
    let nic = open(library);
    let domain = nic.domain().expect("domain");
    let memory = domain.register(5000, Access::RemoteWrite).expect("memory");
    let mut pair = domain.pair(OPTIONS).expect("pair");
    controls.forget();
    let fds = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    // SAFETY: the child only does what the test is about, and leaves without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let before = fds();
        let refused = |result: std::io::Result<()>| {
            result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        };
        let all = [
            refused(nic.arm()),
            refused(nic.mtu().map(drop)),
            refused(nic.gid(0).map(drop)),
            refused(nic.domain().map(drop)),
            refused(nic.take_events().map(drop)),
            refused(nic.poll(&mut Vec::new()).map(drop)),
            refused(domain.register(4096, Access::Local).map(drop)),
            refused(domain.pair(OPTIONS).map(drop)),
            refused(pair.post(&[], b"message", 1, true)),
            refused(pair.ready_to_send()),
            pair.received(0, 8).head_len == 0,
            nic.take_troubles().is_empty(),
        ];
        drop((pair, memory, domain, nic));
        let closed = before - fds();
        let right = all == [true; 12] && controls.journal().is_empty() && closed == 4;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child of just now.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child has failed");
    assert_eq!(controls.journal(), Vec::<String>::new());
    pair.post(&[], b"message", 1, true)
        .expect("the parent goes on");
    drop((pair, memory, domain, nic));
    assert_eq!(controls.journal().len(), 8);
}
