//! The main path on a real cluster: apply, preload, read, write, read-through, rest.

#![allow(clippy::indexing_slicing, reason = "a field that is missing fails the test")]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::{Duration, Instant};
use system_tests::e2e::{GroupOptions, Scene, kubectl, kubectl_json, wait_until};

const SUBSCRIBERS: u64 = 2_000;

/// Apply to Ready with the preload complete, on labelled nodes only; then reads and writes.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_group_is_preloaded_serves_and_writes_through() -> Result<()> {
    let options = GroupOptions { replicas: 2, ..GroupOptions::default() };
    let scene = Scene::ready("main", SUBSCRIBERS, &options)?;
    every_row_was_preloaded(&scene)?;
    pods_stand_on_labelled_nodes_only(&scene)?;
    every_node_answers_by_root_and_by_lookup_key(&scene)?;
    a_write_reaches_the_backend(&scene)?;
    a_row_inserted_after_the_preload_is_read_through(&scene)?;
    a_new_subscriber_is_inserted_through_the_cache(&scene)?;
    nothing_is_written_while_nothing_happens(&scene)?;
    ensure!(scene.compare()? > SUBSCRIBERS, "the comparison covered too few rows");
    Ok(())
}

fn every_row_was_preloaded(scene: &Scene) -> Result<()> {
    let rows = scene.database.number(
        "SELECT (SELECT count(*) FROM subscriber) + (SELECT count(*) FROM access_info)
              + (SELECT count(*) FROM special_facility) + (SELECT count(*) FROM call_forwarding)",
    )?;
    let group = scene.group()?;
    let tables = group["status"]["preload"]["tables"].as_array().cloned().unwrap_or_default();
    let loaded: i64 = tables.iter().filter_map(|t| t["rows"].as_i64()).sum();
    ensure!(loaded == rows, "{rows} rows in the backend, status says {}", group["status"]);
    ensure!(scene.compare()? == rows as u64, "compare covers exactly the loaded rows");
    Ok(())
}

fn pods_stand_on_labelled_nodes_only(scene: &Scene) -> Result<()> {
    let nodes =
        kubectl_json(&["get", "nodes", "-l", "feature.node.kubernetes.io/memory-nv.present=true"])?;
    let labelled: Vec<&str> = nodes["items"]
        .as_array()
        .context("no node list")?
        .iter()
        .filter_map(|n| n["metadata"]["name"].as_str())
        .collect();
    let pods = scene.pods()?;
    ensure!(pods.len() == 2, "{} cache nodes instead of 2", pods.len());
    for pod in &pods {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        ensure!(labelled.contains(&node), "a cache node runs on {node}, labelled are {labelled:?}");
    }
    Ok(())
}

fn every_node_answers_by_root_and_by_lookup_key(scene: &Scene) -> Result<()> {
    for node in ["hlr-0", "hlr-1"] {
        for id in [1, 2, 17, 999, SUBSCRIBERS] {
            let number = format!("{id:015}");
            let by_root = read(scene, node, &[&id.to_string()])?;
            let by_lookup = read(scene, node, &["--by", &format!("sub_nbr={number}")])?;
            ensure!(by_root == by_lookup, "{node} answers differently by root and lookup key");
            ensure!(
                by_root["tables"]["subscriber"][0]["sub_nbr"] == number.as_str(),
                "{node} answered {by_root}"
            );
        }
        let nobody = read(scene, node, &["99999999"])?;
        ensure!(nobody["found"] == false, "{node} found a subscriber that does not exist");
    }
    Ok(())
}

fn read(scene: &Scene, node: &str, key: &[&str]) -> Result<Value> {
    let mut arguments = vec!["--node", node, "get"];
    arguments.extend_from_slice(key);
    arguments.extend_from_slice(&["-o", "json"]);
    let mut answer: Value = serde_json::from_str(&scene.cachectl(&arguments)?)?;
    if let Some(answer) = answer.as_object_mut() {
        answer.remove("source");
    }
    Ok(answer)
}

fn a_write_reaches_the_backend(scene: &Scene) -> Result<()> {
    scene.cachectl(&["tx", "17", "--update", "subscriber", "--set", "vlr_location=4242"])?;
    let answer = read(scene, "hlr-0", &["17"])?;
    ensure!(answer["tables"]["subscriber"][0]["vlr_location"] == 4242, "not visible: {answer}");
    wait_until("the write in the backend", Duration::from_secs(10), || {
        let now = scene.database.number("SELECT vlr_location FROM subscriber WHERE s_id = 17")?;
        Ok((now == 4242).then_some(()))
    })
}

fn a_row_inserted_after_the_preload_is_read_through(scene: &Scene) -> Result<()> {
    let columns = "s_id, sub_nbr, bit_1, msc_location, vlr_location";
    scene.database.execute(&format!(
        "INSERT INTO subscriber SELECT (jsonb_populate_record(s, jsonb_build_object(
             's_id', 5000001, 'sub_nbr', '000000005000001'))).*
         FROM subscriber s WHERE s_id = 1 /* {columns} */"
    ))?;
    for node in ["hlr-0", "hlr-1"] {
        let answer = read(scene, node, &["5000001"])?;
        ensure!(answer["found"] == true, "{node} did not read through: {answer}");
    }
    let answer = read(scene, "hlr-1", &["--by", "sub_nbr=000000005000001"])?;
    ensure!(answer["found"] == true, "not found by lookup key: {answer}");
    Ok(())
}

/// An insert of a root row is answered after the backend accepted it, and refused with a reason
/// when the backend refuses it.
fn a_new_subscriber_is_inserted_through_the_cache(scene: &Scene) -> Result<()> {
    let row = |id: &str, number: &str| -> Result<String> {
        let mut arguments =
            vec!["tx".to_owned(), id.to_owned(), "--insert".into(), "subscriber".into()];
        let mut set = |text: String| arguments.extend(["--set".to_owned(), text]);
        set(format!("s_id={id}"));
        set(format!("sub_nbr={number}"));
        for n in 1..=10 {
            set(format!("bit_{n}=0"));
            set(format!("hex_{n}=1"));
            set(format!("byte2_{n}=2"));
        }
        set("msc_location=7".to_owned());
        set("vlr_location=8".to_owned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        scene.cachectl(&arguments)
    };
    row("6000001", "000000006000001")?;
    let there = scene.database.number("SELECT count(*) FROM subscriber WHERE s_id = 6000001")?;
    ensure!(there == 1, "answered before the backend had the new subscriber");
    let refused = row("6000002", "000000006000001");
    let message = refused.err().map(|e| format!("{e:#}")).unwrap_or_default();
    ensure!(message.contains("sub_nbr"), "a taken number must be refused by name: {message:?}");
    let answer = read(scene, "hlr-0", &["6000002"])?;
    ensure!(answer["found"] == false, "a refused insert is visible: {answer}");
    Ok(())
}

/// No object of the group changes its resourceVersion for 30 s while nothing changes.
fn nothing_is_written_while_nothing_happens(scene: &Scene) -> Result<()> {
    wait_until("a quiet queue", Duration::from_secs(60), || {
        let group = scene.group()?;
        Ok((group["status"]["backlog"]["transactions"] == 0).then_some(()))
    })?;
    let quiet = Duration::from_secs(30);
    let mut since = Instant::now();
    let mut last = versions(scene)?;
    // The status may still take up the end of the writes above, hence a second chance to settle.
    let limit = Instant::now() + quiet * 3;
    while since.elapsed() < quiet {
        ensure!(Instant::now() < limit, "objects keep changing: {last}");
        std::thread::sleep(Duration::from_secs(2));
        let now = versions(scene)?;
        if now != last {
            since = Instant::now();
            last = now;
        }
    }
    Ok(())
}

fn versions(scene: &Scene) -> Result<String> {
    kubectl(&[
        "-n",
        &scene.namespace,
        "get",
        "cachegroup,statefulset,service,configmap,secret,poddisruptionbudget,serviceaccount,job",
        "-o",
        "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}",
    ])
}
