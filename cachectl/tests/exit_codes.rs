//! The exit codes of the help's table, as a shell sees them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

fn cachectl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(arguments)
        .env_remove("CACHECTL_TLS_DIR")
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .output()
        .unwrap()
}

fn ends(arguments: &[&str], code: i32, says: &[&str]) {
    let output = cachectl(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for word in says {
        assert!(said.contains(word), "{arguments:?} does not say {word}: {said}");
    }
}

/// A port that refuses: it was free a moment ago.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn an_address_that_is_none_is_refused_before_anything_is_dialled() {
    for address in ["abc", "http://127.0.0.1:7070", "", ":99999", "127.0.0.1:99999", "::1:7070"] {
        ends(&["--server", address, "status"], 2, &["--server", "HOST:PORT"]);
    }
}

#[test]
fn mistakes_of_usage_end_with_two_whether_or_not_a_node_answers() {
    let server = nobody();
    let to = |rest: &[&'static str]| {
        let mut line = vec!["--server".to_owned(), server.clone()];
        line.extend(rest.iter().map(|word| (*word).to_owned()));
        line
    };
    for (line, says) in [
        (to(&["frobnicate"]), "frobnicate"),
        (to(&["get", "7", "--columns", "a"]), "--table"),
        (to(&["tx", "7"]), "--insert"),
        (to(&["tx", "7", "--update", "t"]), "--set"),
        (to(&["tx", "7", "--delete", "t", "--set", "a=1"]), "--where"),
        (to(&["tx", "7", "--insert", "t", "--expect", "1"]), "--expect"),
        (to(&["rejects", "discard"]), "--older-than"),
        (to(&["rejects", "replay", "7", "--all"]), "--all"),
        (to(&["rejects", "replay", "--older-than", "soon"]), "--older-than"),
        (to(&["-g", "hlr", "status"]), "--group"),
        (to(&["status", "-n", "telecom"]), "--namespace"),
        (to(&["--tls-dir", "/nonexistent", "get", "7"]), "tls.crt"),
    ] {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        ends(&words, 2, &[says]);
    }
    ends(&["-g", "hlr", "status"], 2, &["KUBECONFIG", "--server"]);
}

#[test]
fn nobody_there_ends_with_five() {
    let server = nobody();
    // each is patient for a while; all are at once
    std::thread::scope(|scope| {
        for rest in [&["status"][..], &["get", "7"], &["drain"], &["rejects", "list"]] {
            let mut line = vec!["--server", server.as_str()];
            line.extend(rest);
            scope.spawn(move || ends(&line, 5, &[]));
        }
    });
}

#[test]
fn help_and_version_end_with_zero_and_help_has_the_table() {
    let output = cachectl(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("6  it is not known"));
    ends(&["--version"], 0, &[]);
    ends(&["ddl"], 0, &[]);
}

/// An API server with one answer.
fn api_server(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = move |stream: TcpStream| {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
            line.clear();
        }
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = reader.get_mut().write_all(text.as_bytes());
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    address
}

fn through_cluster(address: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(["-g", "hlr", "status"])
        .env("KUBECONFIG", &file)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_api_server_that_is_away_refuses_or_does_not_know_the_group_is_told_apart() {
    let (code, said) = through_cluster(&nobody());
    assert_eq!(code, Some(5), "{said}");
    let words = said.matches("client error (Connect)").count();
    assert!(words <= 1, "a cause is said {words} times: {said}");
    assert_eq!(said.matches("refused").count(), 1, "{said}");
    let forbidden = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"cachegroups is forbidden","reason":"Forbidden","code":403}"#;
    let (code, said) = through_cluster(&api_server("403 Forbidden", forbidden));
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(said.matches("cachegroups is forbidden").count(), 1, "{said}");
    let absent = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"not found","reason":"NotFound","code":404}"#;
    let (code, said) = through_cluster(&api_server("404 Not Found", absent));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no cache group hlr"), "{said}");
}
