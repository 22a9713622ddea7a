//! The rules of style that no other tool holds: where unsafe may be, how long a file may be, what is never committed.

mod source;

use source::{File, code, files, words};

/// The layers that may contain unsafe code; docs/safety.md says why each is sound.
const ISLANDS: [&str; 3] = ["src/mem/", "src/fabric/verbs/", "src/python/"];
/// Lines of one file: one noun a file keeps it far below.
const LONGEST: usize = 700;

/// Words for work that is not done. Put together here, so that this file does not contain them.
fn unfinished() -> [String; 5] {
    [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["X", "XX"],
        ["to", "do"],
        ["unimple", "mented"],
    ]
    .map(|halves| halves.concat())
}

fn is_island(path: &str) -> bool {
    ISLANDS.iter().any(|island| path.starts_with(island))
}

/// A layer's `mod.rs` outside the islands forbids unsafe code, or denies it if an island lies in the layer; and no file there
/// says `unsafe`.
fn unsafe_faults(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/") || is_island(&file.path) {
        return Vec::new();
    }
    let code = code(&file.text);
    let mut faults: Vec<String> = words(&code)
        .filter(|(_, word)| *word == "unsafe")
        .map(|(line, _)| {
            format!(
                "{}:{line}: unsafe outside the islands {ISLANDS:?}",
                file.path
            )
        })
        .collect();
    let top = file.path.matches('/').count() == 2 && file.path.ends_with("/mod.rs");
    let layer = file.path.trim_end_matches("mod.rs");
    let level = match ISLANDS.iter().any(|island| island.starts_with(layer)) {
        true => "#![deny(unsafe_code)]",
        false => "#![forbid(unsafe_code)]",
    };
    if top && !code.lines().any(|line| line.trim() == level) {
        faults.push(format!(
            "{}: a layer outside the islands begins with {level}",
            file.path
        ));
    }
    faults
}

fn text_faults(file: &File) -> Vec<String> {
    let (path, text) = (&file.path, &file.text);
    let mut faults = Vec::new();
    if text.contains('\r') {
        faults.push(format!("{path}: line ends other than LF"));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(format!("{path}: the last line has no end"));
    }
    for (at, line) in text.lines().enumerate() {
        if line.trim_end_matches('\r').ends_with([' ', '\t']) {
            faults.push(format!("{path}:{}: blanks at the end of the line", at + 1));
        }
    }
    faults
}

fn length_faults(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines > LONGEST {
        return vec![format!(
            "{}: {lines} lines; split it by nouns ({LONGEST} at most)",
            file.path
        )];
    }
    Vec::new()
}

fn unfinished_faults(file: &File) -> Vec<String> {
    let unfinished = unfinished();
    let (markers, macros) = unfinished.split_at(3);
    let is_rust = file.path.ends_with(".rs");
    let code = if is_rust {
        code(&file.text)
    } else {
        String::new()
    };
    let marked = words(&file.text).filter(|(_, word)| markers.iter().any(|one| one == word));
    let called = words(&code).filter(|(_, word)| macros.iter().any(|one| one == word));
    let report = |(line, word)| format!("{}:{line}: {word} marks work that is not done", file.path);
    marked.chain(called).map(report).collect()
}

/// The relative targets of the links of a Markdown file, anchors cut off.
fn links(markdown: &str) -> Vec<&str> {
    let targets = markdown
        .match_indices("](")
        .filter_map(|(at, _)| markdown[at + 2..].split_once(')'));
    targets
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

fn link_faults(file: &File) -> Vec<String> {
    let folder = source::root().join(&file.path);
    let folder = folder.parent().expect("a file lies in a folder");
    let broken = links(&file.text)
        .into_iter()
        .filter(|target| !folder.join(target).exists());
    broken
        .map(|target| format!("{}: nothing is at {target}", file.path))
        .collect()
}

/// The crates that a manifest names in its tables of dependencies, as code spells them.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if let Some(table) = line.strip_prefix('[') {
            inside = table
                .trim_end()
                .trim_end_matches(']')
                .ends_with("dependencies");
        } else if inside && let Some((name, _)) = line.split_once(" = ") {
            found.push(name.trim().replace('-', "_"));
        }
    }
    found
}

fn check(endings: &[&str], rule: fn(&File) -> Vec<String>) {
    let files = files("", endings);
    assert!(
        files.iter().any(|file| file.path == "src/lib.rs"),
        "the sources were not found"
    );
    let faults: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn unsafe_code_stays_on_its_islands() {
    check(&[".rs"], unsafe_faults);
}

#[test]
fn files_are_short() {
    check(&[".rs", ".py", ".pyi"], length_faults);
}

#[test]
fn nothing_is_left_for_later() {
    check(
        &[".rs", ".py", ".pyi", ".toml", "Makefile", "run", ".md"],
        unfinished_faults,
    );
}

#[test]
fn text_is_clean() {
    check(
        &[
            ".rs", ".py", ".pyi", ".toml", "Makefile", ".md", ".yml", "run",
        ],
        text_faults,
    );
}

#[test]
fn links_lead_somewhere() {
    let files = files("", &[".md"]);
    assert!(
        files.iter().any(|file| file.path == "README.md"),
        "the pages were not found"
    );
    let faults: Vec<String> = files.iter().flat_map(link_faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_dependency_is_used() {
    let manifest = std::fs::read_to_string(source::root().join("Cargo.toml")).expect("Cargo.toml");
    let named = dependencies(&manifest);
    assert!(
        named.contains(&"pyo3".to_owned()),
        "the dependencies were not found: {named:?}"
    );
    let code: String = ["src", "tests", "benches"]
        .iter()
        .flat_map(|folder| files(folder, &[".rs"]))
        .map(|file| code(&file.text))
        .collect();
    let unused: Vec<&String> = named
        .iter()
        .filter(|name| !words(&code).any(|(_, word)| word == **name))
        .collect();
    assert!(unused.is_empty(), "not used anywhere: {unused:?}");
}

fn file(path: &str, text: &str) -> File {
    File {
        path: path.into(),
        text: text.into(),
    }
}

#[test]
fn unsafe_code_elsewhere_is_found() {
    let forbid = "#![forbid(unsafe_code)]\n";
    assert_eq!(
        unsafe_faults(&file("src/wire/mod.rs", forbid)),
        Vec::<String>::new()
    );
    assert_eq!(
        unsafe_faults(&file("src/wire/mod.rs", "//! #![forbid(unsafe_code)]\n")).len(),
        1
    );
    assert_eq!(
        unsafe_faults(&file("src/fabric/mod.rs", "#![deny(unsafe_code)]\n")),
        Vec::<String>::new()
    );
    for (path, text) in [
        ("src/wire/mod.rs", "#![deny(unsafe_code)]\n"),
        ("src/fabric/mod.rs", "mod verbs;\n"),
        ("src/fabric/shm/bell.rs", "unsafe { g() }"),
    ] {
        assert_eq!(unsafe_faults(&file(path, text)).len(), 1, "{path}: {text}");
    }
    assert_eq!(
        unsafe_faults(&file("src/wire/cdc.rs", "fn f() { unsafe { g() } }")).len(),
        1
    );
    assert_eq!(
        unsafe_faults(&file("src/lib.rs", "unsafe extern \"C\" {}")).len(),
        1
    );
    let innocent = "// unsafe\nconst A: &str = \"unsafe\"; const B: &str = r#\"un\"safe \"unsafe\"#; /* unsafe /* unsafe */ unsafe */ struct S<'a>(&'a u8); const C: char = '\"'; fn unsafe_looking() {}";
    assert_eq!(
        unsafe_faults(&file("src/wire/cdc.rs", innocent)),
        Vec::<String>::new()
    );
    assert_eq!(
        unsafe_faults(&file("src/mem/map.rs", "unsafe { g() }")),
        Vec::<String>::new()
    );
}

#[test]
fn unclean_text_is_found() {
    for text in ["a\r\n", "a", "a \nb\n"] {
        assert_eq!(text_faults(&file("docs/a.md", text)).len(), 1, "{text:?}");
    }
    assert_eq!(
        text_faults(&file("docs/a.md", "a\n\nb\n")),
        Vec::<String>::new()
    );
}

#[test]
fn a_long_file_is_found() {
    assert_eq!(
        length_faults(&file("src/wire/a.rs", &"\n".repeat(LONGEST + 1))).len(),
        1
    );
    assert_eq!(
        length_faults(&file("src/wire/a.rs", &"\n".repeat(LONGEST))),
        Vec::<String>::new()
    );
}

#[test]
fn unfinished_work_is_found() {
    let [first, .., macro_one, macro_two] = unfinished();
    for text in [
        format!("// {first}: later"),
        format!("fn f() {{ {macro_one}!() }}"),
        format!("{macro_two}!(\"x\")"),
    ] {
        assert_eq!(
            unfinished_faults(&file("src/wire/a.rs", &text)).len(),
            1,
            "{text}"
        );
    }
    assert_eq!(
        unfinished_faults(&file("python/smcfast/a.py", &format!("pass  # {first}"))).len(),
        1
    );
    assert_eq!(
        unfinished_faults(&file(
            "src/wire/a.rs",
            &format!("// a {macro_one} list of XXXXXX")
        )),
        Vec::<String>::new()
    );
}

#[test]
fn a_broken_link_is_found() {
    let text = "[a](layers.md#here) [b](https://example.org) [c](#there) [d](../README.md)\n";
    assert_eq!(links(text), ["layers.md", "../README.md"]);
    assert_eq!(link_faults(&file("docs/a.md", text)), Vec::<String>::new());
    assert_eq!(
        link_faults(&file("docs/a.md", "[a](no-such-page.md)")).len(),
        1
    );
}

#[test]
fn dependencies_are_found_in_every_table() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na-b = \"1\"\n[target.'cfg(loom)'.dependencies]\nc = { version = \"1\" }\n[lints.rust]\nd = \"deny\"\n[dev-dependencies]\ne = \"2\"\n";
    assert_eq!(dependencies(manifest), ["a_b", "c", "e"]);
}
