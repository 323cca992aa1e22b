//! Where things are: the source tree, cargo's target folder and the per-machine tool cache.
//! Reads the environment once per question and never writes to it.

use std::path::{Path, PathBuf};

/// Root of the source tree, from where this crate was compiled or from the working directory.
pub fn root() -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = compiled.parent().unwrap_or(compiled);
    if root.join("Cargo.toml").exists() {
        return root.to_path_buf();
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    here.ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// Cargo's target folder, as cargo itself would choose it.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Folder for results that are costly to make and depend only on checked-in files.
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CACHETIER_CACHE") {
        return PathBuf::from(dir);
    }
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
    PathBuf::from(home).join(".cache/cachetier")
}

/// The cargo that runs us, or the one on the path.
pub fn cargo() -> std::process::Command {
    let mut command =
        std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The path of this program, for running it again. Cargo may have replaced the file meanwhile; the
/// kernel then calls ours deleted, and the new one of the same name does as well.
pub fn this_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}
