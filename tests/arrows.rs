//! The arrows between the layers: who may import whom. The picture is in `src/lib.rs` and in docs/layers.md.
//! The arrows of the Python package are in `tests/test_arrows.py`.

mod source;

use source::{File, code, files};

/// Each layer with the layers that it may import, besides itself.
const ARROWS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("proto", &["wire"]),
    ("mem", &[]),
    ("bpf", &[]),
    ("fabric", &["mem"]),
    ("driver", &["wire", "proto", "mem", "fabric"]),
    (
        "python",
        &["wire", "proto", "mem", "fabric", "driver", "bpf"],
    ),
];

/// The layer of a file below `src`, and how deep its module lies below the crate: `src/wire/mod.rs` is 1.
fn place(path: &str) -> Option<(&str, usize)> {
    let inside = path.strip_prefix("src/")?;
    let (layer, below) = inside.split_once('/')?;
    let folders = below.matches('/').count();
    Some((
        layer,
        folders + if below.ends_with("mod.rs") { 1 } else { 2 },
    ))
}

/// What comes after each `crate::` in code, groups taken apart: the first names of the paths.
fn imports(code: &str) -> Vec<(usize, String)> {
    let dense: String = code
        .split_inclusive('\n')
        .map(|line| line.trim_start())
        .collect();
    let mut found = Vec::new();
    for (at, _) in dense.match_indices("crate::") {
        let word_before = dense[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$');
        if word_before {
            continue;
        }
        let line = dense[..at].matches('\n').count() + 1;
        let rest = &dense[at + "crate::".len()..];
        let firsts = match rest.strip_prefix('{') {
            Some(group) => group_firsts(group),
            None => vec![first_name(rest)],
        };
        found.extend(firsts.into_iter().map(|name| (line, name)));
    }
    found
}

/// The first names inside `{a::b, c::{d, e}, f}`, whose opening brace is gone.
fn group_firsts(group: &str) -> Vec<String> {
    let mut depth = 1;
    let mut starts = vec![0];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => starts.push(at + 1),
            _ => {}
        }
        if depth == 0 {
            return starts
                .into_iter()
                .map(|start| first_name(&group[start..at]))
                .filter(|name| !name.is_empty())
                .collect();
        }
    }
    panic!("a group without an end: {group}");
}

fn first_name(path: &str) -> String {
    path.trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The longest chain of `super::` in code.
fn climbs(code: &str) -> usize {
    let mut longest = 0;
    let mut rest = code;
    while let Some(at) = rest.find("super::") {
        let mut chain = 0;
        rest = &rest[at..];
        while let Some(after) = rest.strip_prefix("super::") {
            chain += 1;
            rest = after;
        }
        longest = longest.max(chain);
    }
    longest
}

/// What is wrong with the imports of one file.
fn faults(file: &File) -> Vec<String> {
    let Some((layer, depth)) = place(&file.path) else {
        return Vec::new();
    };
    let Some((_, below)) = ARROWS.iter().find(|(name, _)| *name == layer) else {
        return vec![format!(
            "{}: layer {layer} has no arrows in tests/arrows.rs",
            file.path
        )];
    };
    let code = code(&file.text);
    let mut faults: Vec<String> = imports(&code)
        .into_iter()
        .filter(|(_, name)| name != layer && !below.contains(&name.as_str()))
        .map(|(line, name)| format!("{}:{line}: {layer} imports crate::{name}", file.path))
        .collect();
    // Modules inside the file (its tests) lie one deeper.
    let inner = usize::from(
        code.lines()
            .any(|line| line.trim_start().starts_with("mod ") && line.trim_end().ends_with('{')),
    );
    if climbs(&code) >= depth + inner {
        faults.push(format!(
            "{}: a chain of super:: leaves the layer; write crate:: so that it can be seen",
            file.path
        ));
    }
    faults
}

#[test]
fn layers_import_only_what_lies_below_them() {
    let sources = files("src", &[".rs"]);
    assert!(
        sources.iter().any(|file| file.path == "src/wire/mod.rs"),
        "the sources were not found"
    );
    let faults: Vec<String> = sources.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_crate_root_only_lists_the_layers() {
    let root =
        code(&std::fs::read_to_string(source::root().join("src/lib.rs")).expect("src/lib.rs"));
    let mut listed = Vec::new();
    for line in root
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("#[") && !line.starts_with("#!["))
    {
        let module = line
            .trim_start_matches("pub ")
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'));
        listed.push(
            module.unwrap_or_else(|| panic!("src/lib.rs is a list of layers, but has: {line}")),
        );
    }
    let mut known: Vec<&str> = ARROWS.iter().map(|(layer, _)| *layer).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn a_wrong_arrow_is_found_in_every_spelling() {
    let wrong = [
        ("src/wire/cdc.rs", "use crate::proto::Position;"),
        (
            "src/proto/window.rs",
            "use crate::{wire::Cursor, mem::Region};",
        ),
        (
            "src/mem/map.rs",
            "use crate::{\n    mem::{self, page},\n    wire,\n};",
        ),
        (
            "src/fabric/shm/mod.rs",
            "fn f() -> u32 { crate::proto::window::SIZE }",
        ),
        ("src/driver/mod.rs", "pub(crate) use crate::python::Engine;"),
        ("src/wire/mod.rs", "use super::proto::Position;"),
        ("src/wire/cdc.rs", "use super::super::mem;"),
        (
            "src/proto/handshake/client.rs",
            "use super::super::super::mem;",
        ),
        ("src/cellar/mod.rs", ""),
    ];
    for (path, text) in wrong {
        let file = File {
            path: path.into(),
            text: text.into(),
        };
        assert_eq!(
            faults(&file).len(),
            1,
            "{path}: {text}: {:?}",
            faults(&file)
        );
    }
}

#[test]
fn a_right_arrow_is_left_alone() {
    let right = [
        (
            "src/proto/window.rs",
            "use crate::{proto::Position, wire::{Cdc, Cursor}};",
        ),
        (
            "src/wire/cdc.rs",
            "// crate::proto has the machine\nconst TEXT: &str = \"crate::mem\";",
        ),
        (
            "src/wire/cdc.rs",
            "use super::prim;\nmod tests {\n    use super::super::prim;\n}",
        ),
        (
            "src/python/mod.rs",
            "use crate::driver::Engine; use pyo3::prelude::*;",
        ),
        (
            "src/fabric/shm/bell.rs",
            "use super::super::loopback; use crate::mem::Region;",
        ),
        (
            "src/wire/mod.rs",
            "macro_rules! m { () => { $crate::proto::X } }",
        ),
    ];
    for (path, text) in right {
        let file = File {
            path: path.into(),
            text: text.into(),
        };
        assert_eq!(faults(&file), Vec::<String>::new(), "{path}: {text}");
    }
}
