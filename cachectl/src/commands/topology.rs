//! `topology`: which node owns which slots.

use crate::arguments::Format;
use crate::exit::Exit;
use crate::output;
use crate::reach::Reach;
use anyhow::{Context, Result};

pub async fn run(reach: &Reach, format: Format) -> Result<Exit> {
    let topology = reach.client().await?.topology().context("the group has no topology yet")?;
    match format {
        Format::Json => output::print_json(&serde_json::to_value(topology.as_ref())?)?,
        Format::Table => {
            say!("version {}", topology.epoch.0);
            let mut table = output::table(["node", "slots", "address"]);
            for node in &topology.nodes {
                let slots = topology.slots_of(&node.name).len().to_string();
                table.add_row([node.name.clone(), slots, node.address.clone()]);
            }
            output::print_table(&table);
        }
    }
    Ok(Exit::Done)
}
