//! Setting the ticks of a timer descriptor: the one ioctl of this crate, which the library has no safe function for.

use std::os::fd::AsFd;

use rustix::io;
use rustix::ioctl::{Setter, ioctl, opcode};

/// `TFD_IOC_SET_TICKS` of linux/timerfd.h: `_IOW('T', 0, __u64)`; since Linux 3.17, where it is built with CHECKPOINT_RESTORE.
const SET_TICKS: rustix::ioctl::Opcode = opcode::write::<u64>(b'T', 0);

/// Makes the timer of `fd` have expired `ticks` times (not 0), and wakes who polls it. It takes one spin lock of the kernel:
/// it cannot block, whatever the timer, its count of ticks and the flags of its file are.
///
/// # Errors
/// `ENOTTY`: this kernel has no such ioctl, or `fd` is no timer. `EBADF`: it cannot be used at all. `ECANCELED`: its owner
/// has it cancelled when the clock is set, and that has happened.
pub fn set(fd: impl AsFd, ticks: u64) -> io::Result<()> {
    // SAFETY: the opcode states direction and size of its argument, one u64 that is read from the value in `Setter`, which
    // outlives the call. A driver of another kind of file that knows the opcode would read as many bytes of it, too.
    let setter = unsafe { Setter::<SET_TICKS, u64>::new(ticks) };
    // SAFETY: as above; nothing is written to the memory of this process.
    unsafe { ioctl(fd, setter) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    #[test]
    fn what_is_set_is_read() {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).expect("timer");
        match set(&fd, 3) {
            Err(io::Errno::NOTTY) => return eprintln!("not checked: this kernel cannot set ticks"),
            other => other.expect("a timer"),
        }
        let mut ticks = [0; 8];
        assert_eq!(rustix::io::read(&fd, &mut ticks), Ok(8));
        assert_eq!(u64::from_ne_bytes(ticks), 3);
    }

    #[test]
    fn what_is_no_timer_is_refused() {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(set(&null, 1), Err(io::Errno::NOTTY));
    }
}
