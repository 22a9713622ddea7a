//! Reads the repository's own files, for the tests that hold its rules.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
pub(crate) struct File {
    /// Relative to the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text files below `folder` (`""`: the whole repository) whose name ends with one of `endings`, sorted by path.
/// What builds and environments leave behind is passed over, as are the test vectors.
pub(crate) fn files(folder: &str, endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                if !passed_over(&path) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name(&path).ends_with(ending)) {
                let text = fs::read_to_string(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.push(File {
                    path: relative(&path),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn passed_over(folder: &Path) -> bool {
    let name = name(folder);
    let dot = name.starts_with('.') && name != ".ci";
    dot || [
        "target",
        "dist",
        "build",
        "vectors",
        "corpus",
        "artifacts",
        "__pycache__",
    ]
    .contains(&name.as_str())
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn relative(path: &Path) -> String {
    let relative: PathBuf = path.strip_prefix(root()).expect("below the root").into();
    relative.to_string_lossy().into_owned()
}

/// Rust code with the contents of comments, strings and characters blanked out; line breaks stay where they are.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blanked = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(rest, out.chars().last()) {
            length
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        if blanked == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let (gone, after) = rest.split_at(blanked);
            out.extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = after;
        }
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string at the start of `text`, unless an identifier that ends in `r` goes on there.
fn raw_string(text: &str, before: Option<char>) -> Option<usize> {
    if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let opening = text.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = opening.len() - opening.trim_start_matches('#').len();
    if text.len() - opening.len() > 2 || !opening[hashes..].starts_with('"') {
        return None;
    }
    let start = text.len() - opening.len() + hashes + 1;
    let closing = format!("\"{}", "#".repeat(hashes));
    Some(
        text[start..]
            .find(&closing)
            .map_or(text.len(), |at| start + at + closing.len()),
    )
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal at the start of `text`; 0 where the quote opens a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(text, '\''),
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 0,
    }
}

/// The words (identifiers) of `code`, each with the number of its line, from 1.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(at, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .map(move |word| (at + 1, word))
    })
}
