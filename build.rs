//! Links the unwinder into the Python module, so that it asks the loader for libc alone.
//!
//! The standard library asks for `-lgcc_s` by name, and `-static-libgcc` does not change what is asked for by name. So a
//! libgcc_s of our own is found first: a linker script that leads to the static halves of the same library.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if var("CARGO_CFG_TARGET_OS") != "linux" || var("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    // A compiler without these files, such as zig, has an unwinder of its own or leaves us with the shared one.
    let (Some(unwinder), Some(builtins)) = (archive("libgcc_eh.a"), archive("libgcc.a")) else {
        return;
    };
    let folder = PathBuf::from(var("OUT_DIR"));
    let script = format!("GROUP ( {} {} )\n", unwinder.display(), builtins.display());
    fs::write(folder.join("libgcc_s.so"), script).expect("OUT_DIR can be written");
    println!("cargo::rustc-link-arg-cdylib=-L{}", folder.display());
}

/// The compiler's own file of this name. Cargo names the linker unless it is the default one, which links for the host.
fn archive(name: &str) -> Option<PathBuf> {
    let linker = match env::var("RUSTC_LINKER") {
        Ok(linker) => linker,
        Err(_) if var("HOST") == var("TARGET") => "cc".to_owned(),
        Err(_) => return None,
    };
    let answer = Command::new(linker)
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    // What it has not is printed as it was asked for.
    (path.is_absolute() && path.is_file()).then_some(path)
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
