//! A process that may not lock as much memory as it likes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Runs `body` in a thread without CAP_IPC_LOCK, with `bytes` of locked memory allowed to the process.
pub(crate) fn without_the_right_to_lock<T: Send>(bytes: u64, body: impl FnOnce() -> T + Send) -> T {
    let before = getrlimit(Resource::Memlock);
    let limit = Rlimit {
        current: Some(bytes),
        maximum: before.maximum,
    };
    setrlimit(Resource::Memlock, limit).expect("a lower limit");
    let result = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).expect("capabilities");
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, sets).expect("fewer capabilities");
            body()
        });
        thread.join()
    });
    setrlimit(Resource::Memlock, before).expect("as it was");
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
