//! The mistakes people make: each ends in a message that says what to do, and heals by fixing only
//! its cause.

#![allow(clippy::indexing_slicing, reason = "a field that is missing fails the test")]

use anyhow::{Result, ensure};
use system_tests::e2e::{GroupOptions, Scene, kubectl, wait_until};

const SUBSCRIBERS: u64 = 100;

fn names(message: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(message.contains(word), "the message does not name {word:?}: {message}");
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_missing_secret_is_named_and_heals_when_created() -> Result<()> {
    let options = GroupOptions { secret: false, ..GroupOptions::default() };
    let scene = Scene::with_group("nosecret", SUBSCRIBERS, &options)?;
    let (_, message) = scene.wait_condition("ConfigValid", "False")?;
    names(&message, &["hlr-backend"])?;
    scene.create_secret(&scene.database.uri)?;
    scene.wait_ready(1)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_wrong_password_is_said_and_heals_with_the_secret() -> Result<()> {
    let options = GroupOptions { secret: false, ..GroupOptions::default() };
    let scene = Scene::empty("password", SUBSCRIBERS)?;
    let (head, host) = scene.database.uri.rsplit_once('@').unwrap_or_default();
    let (user, _) = head.rsplit_once(':').unwrap_or_default();
    scene.create_secret(&format!("{user}:not-the-password@{host}"))?;
    scene.apply_group(&options)?;
    let (reason, message) = scene.wait_condition("BackendReachable", "False")?;
    names(&reason, &["AuthenticationFailed"])?;
    ensure!(!message.contains("not-the-password"), "the message shows the password");
    scene.create_secret(&scene.database.uri)?;
    scene.wait_ready(1)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_missing_table_is_named_and_heals_when_created() -> Result<()> {
    let scene = Scene::empty("notable", SUBSCRIBERS)?;
    scene.database.execute("ALTER TABLE call_forwarding RENAME TO elsewhere")?;
    scene.create_secret(&scene.database.uri)?;
    scene.apply_group(&GroupOptions::default())?;
    let (_, message) = scene.wait_condition("ConfigValid", "False")?;
    names(&message, &["call_forwarding"])?;
    scene.database.execute("ALTER TABLE elsewhere RENAME TO call_forwarding")?;
    scene.wait_ready(1)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_no_suitable_node_is_said_in_get_and_describe() -> Result<()> {
    let options = GroupOptions {
        spec: "  placement: {nodeSelector: {example.com/no-such-label: \"yes\"}}\n".to_owned(),
        ..GroupOptions::default()
    };
    let scene = Scene::with_group("nonode", SUBSCRIBERS, &options)?;
    let (reason, message) = scene
        .wait_condition("Progressing", "False")
        .or_else(|_| scene.wait_condition("Ready", "False"))?;
    ensure!(!reason.is_empty(), "no reason");
    names(&message, &["example.com/no-such-label"])?;
    scene.apply_group(&GroupOptions::default())?;
    scene.wait_ready(1)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_no_storage_class_is_said() -> Result<()> {
    let options = GroupOptions {
        spec: "  journal: {volume: {storageClassName: no-such-class, size: 512Mi}}\n".to_owned(),
        ..GroupOptions::default()
    };
    let scene = Scene::with_group("noclass", SUBSCRIBERS, &options)?;
    let (_, message) = scene.wait_condition("Ready", "False").and_then(|first| {
        wait_until(
            "a message that names the storage class",
            system_tests::e2e::scene::SETTLE,
            || {
                let condition = scene.condition("Ready")?;
                Ok(condition.filter(|c| c.2.contains("no-such-class")).map(|c| (c.1, c.2)))
            },
        )
        .map_err(|error| error.context(format!("first message was {first:?}")))
    })?;
    names(&message, &["no-such-class"])?;
    let described = kubectl(&["-n", &scene.namespace, "describe", "cg", "hlr"])?;
    names(&described, &["no-such-class"])
}
