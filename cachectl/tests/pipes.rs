//! The program in a pipeline.

use std::process::{Command, Stdio};

/// `cachectl … | head`: the reader is gone before the writer has said everything.
#[test]
fn a_reader_that_has_seen_enough_ends_the_program_quietly() {
    for arguments in [["completion", "bash"], ["completion", "zsh"], ["ddl", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_cachectl"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {:?} {said}", output.status);
        assert!(said.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn an_error_that_nobody_reads_is_not_a_crash() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(["-g", "hlr", "status"])
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdout(Stdio::null())
        .stderr(writer)
        .status()
        .unwrap();
    assert!(matches!(status.code(), Some(1 | 2 | 5)), "{status:?}");
}
