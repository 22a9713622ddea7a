//! How many CPUs this process may use, by affinity and by the quota of its control group.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

/// Whether the CPU quota of the control group leaves this process two CPUs or more. Read once for each process.
///
/// Under a smaller quota every CPU cycle that is spun away is one that the peer may not use: throttling instead of speed.
pub(super) fn allows_two_cpus() -> bool {
    static ALLOWS: OnceLock<bool> = OnceLock::new();
    *ALLOWS.get_or_init(|| {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        quota(Path::new("/sys/fs/cgroup"), &groups).is_none_or(|cpus| cpus >= 2.0)
    })
}

/// The smallest quota in CPUs on the way from the group to the root; None if there is none. `groups` is the text of
/// /proc/self/cgroup: lines of number, controllers, path; the unified hierarchy has number 0 and no controllers.
fn quota(root: &Path, groups: &str) -> Option<f64> {
    let quotas = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            smallest(root, path, unified)
        } else if controllers.split(',').any(|name| name == "cpu") {
            smallest(&root.join("cpu"), path, legacy)
        } else {
            None
        }
    });
    quotas.reduce(f64::min)
}

fn smallest(root: &Path, path: &str, read: fn(&Path) -> Option<f64>) -> Option<f64> {
    let group: PathBuf = root.join(path);
    group
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(read)
        .reduce(f64::min)
}

/// `cpu.max`: "max 100000", or microseconds in each period of microseconds.
fn unified(folder: &Path) -> Option<f64> {
    let text = read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

/// `cpu.cfs_quota_us`, -1 for none, and `cpu.cfs_period_us`.
fn legacy(folder: &Path) -> Option<f64> {
    let number = |name: &str| {
        read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse::<f64>()
            .ok()
    };
    number("cpu.cfs_quota_us")
        .filter(|quota| *quota > 0.0)
        .zip(number("cpu.cfs_period_us"))
        .map(|(quota, period)| quota / period)
}

/// Where this thread runs, as the header page publishes it: CPU + 1 below, and above it CPU + 1 of the only CPU that the
/// affinity mask holds, 0 if it holds more.
pub(super) fn cpu_word() -> u64 {
    let cpu = sched_getcpu() as u64 + 1;
    cpu | only_cpu().map_or(0, |only| (only as u64 + 1) << 32)
}

fn only_cpu() -> Option<usize> {
    let mask = sched_getaffinity(None).ok()?;
    let first = || (0..CpuSet::MAX_CPU).find(|&cpu| mask.is_set(cpu));
    if mask.count() == 1 { first() } else { None }
}

/// Whether two ends that published `mine` and `theirs` can run at the same time, as far as is known.
pub(super) fn run_together(mine: u64, theirs: u64) -> bool {
    let (cpu, only) = (mine as u32, (mine >> 32) as u32);
    let (their_cpu, their_only) = (theirs as u32, (theirs >> 32) as u32);
    let on_one_cpu = cpu == their_cpu;
    let bound_to_one_cpu = only != 0 && only == their_only;
    !on_one_cpu && !bound_to_one_cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("smcfast-quota-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a temporary folder");
            Self(folder)
        }

        fn write(&self, path: &str, text: &str) {
            let file = self.0.join(path);
            std::fs::create_dir_all(file.parent().expect("inside the folder")).expect("a folder");
            std::fs::write(file, text).expect("a file");
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_quota_on_the_way_up_counts() {
        let root = Folder::new("unified");
        root.write("a/b/cpu.max", "max 100000\n");
        root.write("a/cpu.max", "150000 100000\n");
        root.write("cpu.max", "400000 100000\n");
        assert_eq!(quota(&root.0, "0::/a/b\n"), Some(1.5));
        assert_eq!(quota(&root.0, "0::/\n"), Some(4.0));
        assert_eq!(quota(&root.0, ""), None);
    }

    #[test]
    fn the_legacy_hierarchy_is_read_too() {
        let root = Folder::new("legacy");
        root.write("cpu/x/cpu.cfs_quota_us", "50000\n");
        root.write("cpu/x/cpu.cfs_period_us", "100000\n");
        root.write("cpu/cpu.cfs_quota_us", "-1\n");
        root.write("cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota(&root.0, "4:cpu,cpuacct:/x\n3:memory:/y\n"), Some(0.5));
        assert_eq!(quota(&root.0, "4:cpuset:/x\n"), None);
    }

    #[test]
    fn two_ends_on_one_cpu_do_not_run_together() {
        assert!(run_together(1, 2));
        assert!(!run_together(2, 2));
        assert!(
            run_together(1 | 1 << 32, 2 | 2 << 32),
            "each bound to a CPU of its own"
        );
        assert!(
            !run_together(1 | 1 << 32, 2 | 1 << 32),
            "both bound to one, whatever was seen last"
        );
        assert!(run_together(1 | 1 << 32, 2));
    }

    #[test]
    fn the_own_word_names_a_cpu() {
        assert_ne!(cpu_word() as u32, 0);
    }
}
