//! A program that an administrator has installed: a BPF file system of its own, with two files.
//!
//! `link` keeps the program attached to the root cgroup, and only root may open it. Who may open `marks` can use it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::fs::statfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::cgroup::{self, Which};
use super::{Error, Program};

/// The name of the map's file.
pub const MARKS: &str = "marks";
const LINK: &str = "link";

/// What statfs says of a BPF file system.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Mounts a file system at `directory`, which is made if need be, and keeps the program there.
///
/// # Errors
/// EEXIST when one is installed there, those of [`Program::attach`], and those of mount. Nothing is left behind.
pub fn install(directory: &Path, group: Option<u32>) -> Result<(), Error> {
    if is_there(directory) {
        let exists = std::io::Error::from(rustix::io::Errno::EXIST);
        return Err(Error::new("installing the program", exists));
    }
    fs::create_dir_all(directory).map_err(|error| Error::new("making the directory", error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("smcfast", directory, "bpf", flags, c"mode=0755")
        .map_err(|error| Error::new("mounting a BPF file system", error))?;
    let done = keep(directory, group);
    if done.is_err() {
        let _ = remove(directory);
    }
    done
}

fn keep(directory: &Path, group: Option<u32>) -> Result<(), Error> {
    let (link, marks) = (directory.join(LINK), directory.join(MARKS));
    Program::attach(cgroup::open(Which::Root)?)?.pin(&link, &marks)?;
    let doing = "giving the files to the group";
    let limit = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| Error::new(doing, error))
    };
    limit(&link, 0o600)?;
    chown(&marks, None, group).map_err(|error| Error::new(doing, error))?;
    limit(&marks, if group.is_some() { 0o660 } else { 0o600 })
}

/// Detaches the program that is installed at `directory`, and unmounts its file system. False when there is none.
///
/// # Errors
/// Those of unlink and umount.
pub fn remove(directory: &Path) -> Result<bool, Error> {
    if !is_there(directory) {
        return Ok(false);
    }
    // Where other mount namespaces have the file system too, unmounting alone would leave the program attached.
    for name in [LINK, MARKS] {
        match fs::remove_file(directory.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::new("removing the program", error));
            }
            _ => {}
        }
    }
    unmount(directory, UnmountFlags::DETACH)
        .map_err(|error| Error::new("unmounting the BPF file system", error))?;
    let _ = fs::remove_dir(directory);
    Ok(true)
}

/// Is a BPF file system mounted at `directory`?
#[must_use]
pub fn is_there(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|system| u64::try_from(system.f_type) == Ok(BPF_FS_MAGIC))
}
