//! Which libraries a dynamic program needs, all the way down, as the dynamic linker itself says.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::process;

/// Paths of all libraries and of the dynamic linker, as the program will look for them.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = process::capture(std::process::Command::new("ldd").arg(program))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in text.lines() {
        if line.contains("not found") {
            bail!("a library is missing on this machine: {}", line.trim());
        }
        // `name => /path (address)`, or `/path (address)` for the linker; the kernel's own has none
        let place = line.split("=>").last().unwrap_or_default();
        match place.split_whitespace().next() {
            Some(path) if path.starts_with('/') => found.push(PathBuf::from(path)),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    #[test]
    fn the_linker_counts_and_the_kernels_page_does_not() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let expected = ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(super::parse(text).unwrap(), expected);
    }

    #[test]
    fn a_missing_library_is_an_error() {
        assert!(super::parse("\tlibx.so => not found\n").is_err());
    }
}
