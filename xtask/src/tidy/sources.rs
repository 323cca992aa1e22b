//! Rules about source files: size, names, opening words, and which folder may name which types.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{process, workspace};

const LINES_MAX: usize = 600;
const VAGUE_NAMES: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "misc", "manager"];
/// Paths that exist on one machine only; written in halves so that this file does not match itself.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/root", "/."), concat!("/tmp/", "plan")];

/// A word that only some files below a folder may contain.
struct Reserved {
    word: &'static str,
    below: &'static str,
    except: &'static [&'static str],
    why: &'static str,
}

const RESERVED: [Reserved; 3] = [
    Reserved {
        word: "tokio_postgres",
        below: "crates/",
        except: &["crates/write-through/src/postgres", "/tests/", "/examples/", "/benches/"],
        why: "only write-through's postgres side names the SQL driver",
    },
    Reserved {
        word: "tokio_postgres",
        below: "cache-node/",
        except: &[],
        why: "only write-through's postgres side names the SQL driver",
    },
    Reserved {
        word: "tonic::",
        below: "cache-node/src/",
        except: &["cache-node/src/rpc"],
        why: "only rpc names transport types",
    },
];

/// A source file: its path from the root, and its text.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
}

/// All text files that belong to the tree: known to git, or new and not ignored.
pub fn tracked() -> Result<Vec<Source>> {
    let root = workspace::root();
    let mut git = process::command(
        "git",
        &["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
    );
    let list = process::capture(git.current_dir(&root))?;
    Ok(list
        .lines()
        .filter(|path| !path.ends_with("go.sum") && !path.ends_with("Cargo.lock"))
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(Source { path: path.into(), text })
        })
        .collect())
}

pub fn check(files: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(machine_paths(file));
        if file.path.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(names(&file.path));
            findings.extend(size(file));
            findings.extend(opening(file));
            findings.extend(reserved(file));
        }
    }
    findings
}

fn machine_paths(file: &Source) -> Option<String> {
    let found = MACHINE_PATHS.iter().find(|path| file.text.contains(**path))?;
    Some(format!("{}: names the machine path {found}", file.path.display()))
}

fn names(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_string_lossy().into_owned();
    if stem == "mod" {
        return Some(format!("{}: use name.rs and name/ instead of mod.rs", path.display()));
    }
    let folders = path.parent().into_iter().flat_map(Path::iter);
    let vague = folders
        .map(|part| part.to_string_lossy().into_owned())
        .chain([stem])
        .find(|name| VAGUE_NAMES.contains(&name.as_str()))?;
    Some(format!("{}: `{vague}` says nothing; name what it does", path.display()))
}

fn size(file: &Source) -> Option<String> {
    let lines = file.text.lines().count();
    let path = file.path.display();
    (lines > LINES_MAX).then(|| format!("{path}: {lines} lines; split it at {LINES_MAX}"))
}

/// Modules say what they own; a file of tests only needs none.
fn opening(file: &Source) -> Option<String> {
    let path = file.path.to_string_lossy();
    let exempt =
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("build.rs");
    let opens = file.text.trim_start().starts_with("//!");
    (!exempt && !opens).then(|| format!("{path}: a module opens with what it owns (`//!`)"))
}

fn reserved(file: &Source) -> Vec<String> {
    let path = file.path.to_string_lossy();
    RESERVED
        .iter()
        .filter(|rule| path.starts_with(rule.below))
        .filter(|rule| !rule.except.iter().any(|part| path.contains(part)))
        .filter(|rule| code_lines(&file.text).any(|line| line.contains(rule.word)))
        .map(|rule| format!("{path}: names `{}`: {}", rule.word, rule.why))
        .collect()
}

/// Lines that are not only a comment.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn each_broken_rule_is_found() {
        assert_eq!(findings("crates/a/src/lib.rs", "//! Owns a.\n"), 0);
        assert_eq!(findings("crates/a/src/b/mod.rs", "//! B.\n"), 1);
        assert_eq!(findings("crates/a/src/utils.rs", "//! B.\n"), 1);
        assert_eq!(findings("crates/a/src/b.rs", "fn f() {}\n"), 1);
        assert_eq!(findings("crates/a/src/b.rs", &format!("//! B.\n{}", "\n".repeat(700))), 1);
        assert_eq!(findings("crates/a/src/b.rs", "//! B.\nuse tokio_postgres::Row;\n"), 1);
        assert_eq!(findings("cache-node/src/node.rs", "//! B.\nuse tonic::Status;\n"), 1);
        assert_eq!(findings("cache-node/src/rpc/read.rs", "//! B.\nuse tonic::Status;\n"), 0);
    }
}
