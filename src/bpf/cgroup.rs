//! The cgroup whose sockets the program sees.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::Error;

/// Which cgroup of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// That of this process: its sockets, and those of its neighbours there and below.
    Own,
    /// The uppermost one that can be seen from here.
    Root,
}

/// Opens the directory of a cgroup. Where no hierarchy is mounted, and this process may mount one, it does so for
/// itself alone.
///
/// # Errors
/// There is no hierarchy (ENOENT), or none can be opened.
pub fn open(which: Which) -> Result<OwnedFd, Error> {
    let root = match mounted(&read("/proc/self/mountinfo")?) {
        Some(path) => open_at(CWD, &path)?,
        None => detached()?,
    };
    if which == Which::Root {
        return Ok(root);
    }
    let Some(own) = own(&read("/proc/self/cgroup")?) else {
        return Ok(root);
    };
    // From within a namespace the own path may lead above what is mounted.
    open_at(&root, Path::new(&own)).or(Ok(root))
}

fn read(path: &str) -> Result<String, Error> {
    let text = fs::read(path).map_err(|error| Error::new("looking for the cgroup", error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn open_at(base: impl rustix::fd::AsFd, path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(base, path, flags, Mode::empty())
        .map_err(|error| Error::new("opening the cgroup", error))
}

fn detached() -> Result<OwnedFd, Error> {
    let none = |error: Errno| match error {
        Errno::PERM | Errno::NOSYS | Errno::NODEV => {
            Error::new("looking for a cgroup hierarchy of version 2", Errno::NOENT)
        }
        error => Error::new("mounting a cgroup hierarchy", error),
    };
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).map_err(none)?;
    fsconfig_create(&context).map_err(none)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
    .map_err(none)
}

/// Where the hierarchy of version 2 is mounted, with its root if there is a choice.
fn mounted(mountinfo: &str) -> Option<PathBuf> {
    let mut found: Option<(bool, &str)> = None;
    for line in mountinfo.lines() {
        let Some((mount, system)) = line.split_once(" - ") else {
            continue;
        };
        if system.split(' ').next() != Some("cgroup2") {
            continue;
        }
        let mut fields = mount.split(' ').skip(3);
        if let (Some(root), Some(target)) = (fields.next(), fields.next())
            && found.is_none_or(|(whole, _)| !whole)
        {
            found = Some((root == "/", target));
        }
    }
    found.map(|(_, target)| PathBuf::from(unescaped(target)))
}

/// Blanks and their like are written as three octal digits.
fn unescaped(path: &str) -> String {
    let mut plain = path.to_owned();
    for (written, meant) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        plain = plain.replace(written, meant);
    }
    plain
}

/// The path of the own cgroup below the root, without its slash.
fn own(cgroups: &str) -> Option<String> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.is_empty()).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 0:20 / /proc rw - proc proc rw
31 1 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw
40 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
41 31 0:38 /part /srv/part rw shared:9 - cgroup2 cgroup2 rw
42 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw
43 31 0:38 / /elsewhere rw - cgroup2 cgroup2 rw
";

    #[test]
    fn the_hierarchy_is_found_among_mounts() {
        assert_eq!(
            mounted(MOUNTS),
            Some(PathBuf::from("/sys/fs/cgroup/uni fied"))
        );
        let part = MOUNTS.lines().take(4).collect::<Vec<_>>().join("\n");
        assert_eq!(mounted(&part), Some(PathBuf::from("/srv/part")));
        assert_eq!(mounted("22 1 0:20 / /proc rw - proc proc rw\nodd\n"), None);
    }

    #[test]
    fn the_own_cgroup_is_that_of_version_2() {
        assert_eq!(
            own("9:cpu:/a\n0::/system.slice/x.service\n"),
            Some("system.slice/x.service".to_owned())
        );
        assert_eq!(own("0::/\n"), None);
        assert_eq!(own("9:cpu:/a\n"), None);
    }
}
