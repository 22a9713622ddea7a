//! The program in the kernel, for as long as this process, or a child that it forked, lives.

use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::MapType;
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, ProgramType, SockOps};
use aya::sys::{is_map_supported, is_program_supported};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel, include_bytes_aligned};
use rustix::io::Errno;

use super::{Error, Marks};

const OBJECT: &[u8] = include_bytes_aligned!("tcp_option.bpf.o");
const NAME: &str = "smcfast_option";

/// Attached: closing its last descriptor, which the kernel does for a killed process, detaches it.
#[derive(Debug)]
pub struct Program {
    link: FdLink,
    marks: Marks,
}

impl Program {
    /// Loads the program and attaches it to a cgroup, beside the programs of others.
    ///
    /// # Errors
    /// EPERM without CAP_BPF and CAP_NET_ADMIN, EOPNOTSUPP where the kernel is too old or built without it, E2BIG where
    /// 64 programs are attached already.
    pub fn attach(cgroup: impl AsFd) -> Result<Self, Error> {
        probe()?;
        let mut ebpf = load()?;
        let marks = ebpf
            .take_map("marks")
            .ok_or_else(|| Error::new("looking into the program", Errno::NOENT))?;
        let link = attach(&mut ebpf, cgroup)?;
        Ok(Self {
            link,
            marks: Marks::new(marks)?,
        })
    }

    /// Keeps the program attached beyond this process, by two files in a BPF file system.
    ///
    /// # Errors
    /// The directory is in none, or there are such files.
    pub(super) fn pin(self, link: &Path, marks: &Path) -> Result<(), Error> {
        self.marks.pin(marks)?;
        let pinned = self.link.pin(link);
        pinned.map_err(|error| Error::within("pinning the program", &error))?;
        Ok(())
    }

    /// The map of its marks.
    pub const fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The same, to put marks in.
    pub const fn marks_mut(&mut self) -> &mut Marks {
        &mut self.marks
    }
}

/// Asks first whether the kernel takes such programs at all: without the right to load one, loading fails in odd ways.
fn probe() -> Result<(), Error> {
    let doing = "loading a BPF program";
    let has_program = is_program_supported(ProgramType::SockOps);
    let has_map = is_map_supported(MapType::SkStorage);
    if has_program.map_err(|error| Error::within(doing, &error))?
        && has_map.map_err(|error| Error::within(doing, &error))?
    {
        return Ok(());
    }
    Err(Error::new(doing, Errno::OPNOTSUPP))
}

fn load() -> Result<Ebpf, Error> {
    EbpfLoader::new()
        .btf(None)
        .verifier_log_level(VerifierLogLevel::DISABLE)
        .load(OBJECT)
        .map_err(|error| Error::within("loading the program's maps", &error))
}

fn attach(ebpf: &mut Ebpf, cgroup: impl AsFd) -> Result<FdLink, Error> {
    let doing = "loading the program";
    let program: &mut SockOps = ebpf
        .program_mut(NAME)
        .ok_or_else(|| Error::new(doing, Errno::NOENT))?
        .try_into()
        .map_err(|error| Error::within(doing, &error))?;
    program
        .load()
        .map_err(|error| Error::within(doing, &error))?;
    let doing = "attaching the program to the cgroup";
    let failed = |error| Error::within(doing, &error);
    // A link is always one of several, and takes no flags that say so.
    let id = program
        .attach(cgroup, CgroupAttachMode::Single)
        .map_err(failed)?;
    let link = program.take_link(id).map_err(failed)?;
    link.try_into()
        .map_err(|error| Error::within(doing, &error))
}
