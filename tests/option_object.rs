//! The compiled BPF program in the repository is what its source compiles to.

mod source;

use std::path::Path;
use std::process::Command;

/// What made the object: another compiler makes another one of the same source.
const COMPILER: &str = "clang version 14.";

fn compiler() -> Option<String> {
    let run = |program: &str| Command::new(program).arg("--version").output().ok();
    run("llvm-strip")?;
    let version = String::from_utf8_lossy(&run("clang")?.stdout).into_owned();
    Some(version.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn the_object_is_that_of_its_source() {
    match compiler() {
        Some(version) if version.contains(COMPILER) => {}
        other => {
            println!("not compared: the object is of {COMPILER}, here is {other:?}");
            return;
        }
    }
    let folder = source::root().join("src/bpf");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp_option.bpf.o");
    let status = Command::new(folder.join("build")).arg(&built).status();
    assert!(status.expect("src/bpf/build runs").success());
    let read = |path: &Path| std::fs::read(path).expect("an object");
    assert!(
        read(&built) == read(&folder.join("tcp_option.bpf.o")),
        "src/bpf/tcp_option.bpf.o is not that of its source: src/bpf/build src/bpf/tcp_option.bpf.o"
    );
}
