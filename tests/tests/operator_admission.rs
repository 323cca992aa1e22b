//! What the API server itself refuses or accepts, by the rules of the resource definition.

use anyhow::{Result, ensure};
use cachetier_api::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use system_tests::operator::{Stage, minimal_group};

/// The patch is refused, and the refusal names every word.
async fn refused(stage: &Stage, patch: Value, words: &[&str]) -> Result<()> {
    match stage.merge(patch.clone()).await {
        Ok(_) => anyhow::bail!("{patch} was accepted"),
        Err(kube::Error::Api(status)) => {
            ensure!(status.code == 422, "{patch}: {status:?}");
            for word in words {
                let message = &status.message;
                ensure!(message.contains(word), "{patch} does not name {word}: {message}");
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

async fn stage(name: &str) -> Result<Stage> {
    let stage = Stage::without_operator(name).await?;
    stage.apply(&minimal_group(1)).await?;
    Ok(stage)
}

#[tokio::test]
async fn o08_journal_volumes_of_a_live_group_cannot_change() -> Result<()> {
    let stage = stage("o08").await?;
    let volume = |volume: Value| json!({"spec": {"journal": {"volume": volume}}});
    refused(&stage, volume(json!({"size": "30Gi"})), &["journal.volume.size"]).await?;
    refused(&stage, volume(json!({"storageClassName": "other"})), &["storageClassName"]).await?;
    stage.merge(volume(json!({"size": "20480Mi"}))).await?;
    stage.merge(volume(json!({"retention": "Delete"}))).await?;
    Ok(())
}

#[tokio::test]
async fn o81_an_immutable_optional_field_can_neither_be_unset_nor_set_later() -> Result<()> {
    let stage = stage("o81").await?;
    let unset = json!({"spec": {"journal": {"volume": {"storageClassName": null}}}});
    refused(&stage, unset, &["storageClassName"]).await?;
    let mut group = minimal_group(1);
    group["metadata"]["name"] = json!("later");
    group["spec"]["journal"] = json!({});
    stage.apply(&group).await?;
    group["spec"]["journal"] = json!({"volume": {"storageClassName": "local"}});
    ensure!(stage.apply(&group).await.is_err(), "a class was set later");
    Ok(())
}

#[tokio::test]
async fn o26_names_that_no_service_could_carry_are_refused() -> Result<()> {
    let stage = Stage::without_operator("o26").await?;
    let mut group = minimal_group(1);
    let long = "g".repeat(41);
    for name in [long.as_str(), "with.dots", "1digit"] {
        group["metadata"]["name"] = json!(name);
        let error = stage.apply(&group).await.err();
        let message = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(message.contains("at most 40 characters"), "{name}: {message}");
    }
    group["metadata"]["name"] = json!("g".repeat(40));
    stage.apply(&group).await?;
    Ok(())
}

#[tokio::test]
async fn o29_odd_units_are_taken_or_refused_and_compared_across_units() -> Result<()> {
    let stage = stage("o29").await?;
    let capacity = |value: Value| json!({"spec": {"memory": {"capacity": value}}});
    for value in [json!("0.5Gi"), json!("1e9"), json!("1E9"), json!(2_147_483_648_u64)] {
        stage.merge(capacity(value)).await?;
    }
    refused(&stage, capacity(json!("500m")), &["memory.capacity"]).await?;
    refused(&stage, capacity(json!("1.5")), &["memory.capacity"]).await?;
    refused(&stage, capacity(json!("much")), &["must be a size"]).await?;
    refused(&stage, capacity(json!("2Pi")), &["below 1Pi"]).await?;
    let backlog = json!({"spec": {"writeThrough": {"maxBacklog": "21000Mi"}}});
    refused(&stage, backlog, &["maxBacklog", "journal.volume.size"]).await
}

#[tokio::test]
async fn o35_nulled_blocks_get_their_defaults() -> Result<()> {
    let stage = stage("o35").await?;
    let before = stage.group().await?.spec;
    let patch: Value = json!({"spec": {
        "memory": null, "writeThrough": null, "copies": null, "preload": null, "bypass": null,
        "nodeLoss": null, "placement": null, "tls": null, "deletion": null, "paused": null,
    }});
    let after = stage.merge(patch).await?.spec;
    ensure!(before == after, "nulls changed the spec: {after:?}");
    // a null that is stored, not a removal
    let mut group = minimal_group(1);
    group["metadata"]["name"] = json!("nulls");
    group["spec"]["memory"] = Value::Null;
    group["spec"]["preload"] = json!({"where": null, "mode": null});
    let stored = stage.apply(&group).await?;
    ensure!(stored.spec.memory == before.memory, "{stored:?}");
    Ok(())
}

#[tokio::test]
async fn o34_the_live_definition_is_the_rendered_one() -> Result<()> {
    let stage = stage("o34").await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let live = definitions.get("cachegroups.cachetier.dev").await?;
    let rendered = crd::cache_group();
    ensure!(live.spec.versions == rendered.spec.versions, "the server changed the definition");
    Ok(())
}

#[tokio::test]
async fn what_does_not_exist_yet_is_refused_by_name() -> Result<()> {
    let stage = stage("refused").await?;
    for (field, spec) in [
        ("spec.copies", json!({"copies": 2})),
        ("spec.nodeLoss.reassignAfter", json!({"nodeLoss": {"reassignAfter": "30s"}})),
        ("spec.memory.medium", json!({"memory": {"medium": "CXL"}})),
        ("spec.memory.hugePages", json!({"memory": {"hugePages": "Require"}})),
        ("spec.writeThrough.uniqueness", json!({"writeThrough": {"uniqueness": "Late"}})),
        ("spec.writeThrough.mode", json!({"writeThrough": {"mode": "Sync"}})),
        ("spec.preload.schedule", json!({"preload": {"schedule": "@daily"}})),
        ("spec.preload.maxRowsPerSecond", json!({"preload": {"maxRowsPerSecond": 5}})),
        ("spec.tls.mode", json!({"tls": {"mode": "Disabled"}})),
    ] {
        refused(&stage, json!({"spec": spec}), &[field]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn r26_an_idempotency_window_is_taken_unless_it_is_too_short() -> Result<()> {
    let stage = stage("window").await?;
    let short = json!({"spec": {"idempotencyWindow": "100ms"}});
    refused(&stage, short, &["spec.idempotencyWindow must be at least 1s"]).await?;
    let mut group = minimal_group(1);
    group["spec"]["idempotencyWindow"] = json!("10m");
    let stored = stage.apply(&group).await?;
    let window = stored.spec.idempotency_window.as_ref().map(|window| window.millis());
    ensure!(window == Some(600_000), "{stored:?}");
    Ok(())
}

#[tokio::test]
async fn tables_form_one_tree_and_stay_as_they_are() -> Result<()> {
    let stage = stage("tables").await?;
    let other = json!({"spec": {"tables": [{"name": "other"}]}});
    refused(&stage, other, &["spec.tables cannot be changed"]).await?;
    let mut group = minimal_group(1);
    group["metadata"]["name"] = json!("tree");
    for (tables, word) in [
        (json!([{"name": "a"}, {"name": "b"}]), "exactly one root"),
        (json!([{"name": "a"}, {"name": "b", "parent": "c"}]), "each parent"),
        (
            json!([{"name": "a"}, {"name": "b", "parent": "a", "lookupKeys": [["x"]]}]),
            "lookupKeys belong to the root",
        ),
    ] {
        group["spec"]["tables"] = tables;
        let error = stage.apply(&group).await.err().map(|error| error.to_string());
        ensure!(error.as_deref().is_some_and(|e| e.contains(word)), "{word}: {error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn o24_scaling_works_by_the_scale_subresource_and_conflicts_are_visible() -> Result<()> {
    let stage = stage("o24").await?;
    let api = stage.api::<cachetier_api::v1alpha1::CacheGroup>();
    let scale = json!({"spec": {"replicas": 4}});
    let parameters = PatchParams { field_manager: Some("scaler".into()), ..Default::default() };
    api.patch_scale("hlr", &parameters, &Patch::Merge(&scale)).await?;
    ensure!(stage.group().await?.spec.replicas == 4, "replicas did not follow");
    let again = PatchParams::apply("a-person");
    let result = api.patch("hlr", &again, &Patch::Apply(&minimal_group(1))).await;
    let conflict = matches!(result, Err(kube::Error::Api(status)) if status.code == 409);
    ensure!(conflict, "the old manifest took the scaled value back without a word");
    Ok(())
}
