//! A stored group that no longer parses. Alone in its program: it changes the resource definition.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use system_tests::local::eventually;
use system_tests::operator::stage::{LIMIT, install_definition};
use system_tests::operator::{Stage, minimal_group};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o31_a_group_that_does_not_parse_hurts_only_itself() -> Result<()> {
    let mut stage = Stage::without_operator("o31").await?;
    stage.create_secret().await?;
    loosen(&stage).await?;
    let groups = dynamic(&stage);
    let mut poison: DynamicObject = serde_json::from_value(minimal_group(1))?;
    poison.metadata.name = Some("poison".to_owned());
    poison.data["spec"]["replicas"] = json!("two");
    eventually("the loose definition takes it", LIMIT, || async {
        Ok(Some(groups.create(&PostParams::default(), &poison).await.map(drop)?))
    })
    .await?;
    install_definition(&stage.client).await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    stage.until_ready().await?;
    let events: Api<Event> = stage.api();
    let told = eventually("an event about it", LIMIT, || async {
        let all = events.list(&Default::default()).await?;
        Ok(all.items.into_iter().find(|event| event.reason.as_deref() == Some("InvalidObject")))
    })
    .await?;
    let regarding = told.regarding.context("about nothing")?;
    ensure!(regarding.name.as_deref() == Some("poison"), "{regarding:?}");
    // it heals by fixing only the field
    let fixed = json!({"spec": {"replicas": 0}});
    groups.patch("poison", &PatchParams::default(), &Patch::Merge(&fixed)).await?;
    eventually("the healed group has a status", LIMIT, || async {
        Ok(groups.get("poison").await?.data.get("status").cloned())
    })
    .await?;
    Ok(())
}

fn dynamic(stage: &Stage) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cachetier.dev", "v1alpha1", "CacheGroup");
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(stage.client.clone(), &stage.namespace, &resource)
}

/// A definition that takes anything, as an earlier version might have.
async fn loosen(stage: &Stage) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let mut definition = cachetier_api::crd::cache_group();
    for version in &mut definition.spec.versions {
        if let Some(subresources) = &mut version.subresources {
            subresources.scale = None;
        }
        version.schema = Some(serde_json::from_value(json!({"openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        }}))?);
    }
    let live = definitions.get("cachegroups.cachetier.dev").await?;
    definition.metadata.resource_version = live.metadata.resource_version;
    let name = "cachegroups.cachetier.dev";
    definitions.replace(name, &PostParams::default(), &definition).await?;
    Ok(())
}
