//! An upgrade of the resource definition under a live group. Alone in its program: it changes the
//! definition.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use system_tests::local::eventually;
use system_tests::operator::stage::{LIMIT, install_definition};
use system_tests::operator::{Stage, minimal_group};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o75_a_status_field_of_a_newer_definition_is_seen_and_not_pruned() -> Result<()> {
    let mut stage = Stage::without_operator("o75").await?;
    stage.create_secret().await?;
    downgrade(&stage).await?;
    stage.apply(&minimal_group(1)).await?;
    stage.start_operator().await?;
    let nodes = || async {
        let group = stage.group().await?;
        anyhow::Ok(group.status.map(|status| (status.ready == "1/1", status.nodes.len())))
    };
    eventually("it works by the older definition, without the field", LIMIT, || async {
        Ok(nodes().await?.filter(|(ready, listed)| *ready && *listed == 0))
    })
    .await?;
    install_definition(&stage.client).await?;
    eventually("the field appears", LIMIT, || async {
        Ok(nodes().await?.filter(|(ready, listed)| *ready && *listed == 1))
    })
    .await?;
    Ok(())
}

/// The definition as it was before `status.nodes` existed.
async fn downgrade(stage: &Stage) -> Result<()> {
    let name = "cachegroups.cachetier.dev";
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let mut definition = cachetier_api::crd::cache_group();
    let version = definition.spec.versions.first_mut().context("no version")?;
    let schema = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
    let fields = schema.and_then(|schema| schema.properties.as_mut()).context("no schema")?;
    let status = fields.get_mut("status").and_then(|status| status.properties.as_mut());
    let removed = status.context("no status")?.remove("nodes");
    ensure!(removed.is_some(), "the field has another name now");
    definition.metadata.resource_version = definitions.get(name).await?.metadata.resource_version;
    definitions.replace(name, &PostParams::default(), &definition).await?;
    Ok(())
}
