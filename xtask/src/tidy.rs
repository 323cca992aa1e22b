//! Checks of the house rules that the compiler does not know: which crate may depend on which, who
//! may name which foreign types, how large files are and what modules are called; and that what can
//! go wrong has a page that says what to do.
//! Reads the tree and cargo's metadata; changes nothing.

mod edges;
mod runbooks;
mod sources;

use anyhow::{Result, bail};

/// Reports every broken rule, then fails if there was one.
pub fn run() -> Result<()> {
    let files = sources::tracked()?;
    let mut findings = edges::check()?;
    findings.extend(sources::check(&files));
    findings.extend(runbooks::check(&files));
    for finding in &findings {
        println!("tidy: {finding}");
    }
    if !findings.is_empty() {
        bail!("{} house rules are broken", findings.len());
    }
    println!("tidy: {} files follow the house rules", files.len());
    Ok(())
}
