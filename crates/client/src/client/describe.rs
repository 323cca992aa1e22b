//! The first question of a client: which tables does this group have?

use crate::channel::{Channels, timed};
use crate::error::{ClientError, Reason};
use crate::options::Endpoint;
use cachetier_model::GroupSchema;
use cachetier_proto::v1::DescribeRequest;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct Described {
    pub schema: GroupSchema,
    pub group: String,
}

/// Asks the seeds in turn until one answers or the client's patience ends.
pub(super) async fn first_answer(
    channels: &Channels,
    seeds: &[Endpoint],
) -> Result<Described, ClientError> {
    let deadline = Instant::now() + channels.options().retry_for;
    let mut last = ClientError::NoNodes;
    loop {
        for seed in seeds {
            match ask(channels, seed).await {
                Ok(described) => return Ok(described),
                Err(error) => last = error,
            }
        }
        let hopeless = match &last {
            ClientError::NoNodes | ClientError::Protocol { .. } | ClientError::Tls(_) => true,
            ClientError::Refused(refusal) => {
                !matches!(refusal.reason, Reason::Starting | Reason::BackendAway)
            }
            _ => false,
        };
        if hopeless || Instant::now() >= deadline {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn ask(channels: &Channels, seed: &Endpoint) -> Result<Described, ClientError> {
    let request = timed(DescribeRequest {}, channels.options().read_timeout);
    let answer = channels.node(seed).cache().describe(request).await;
    let answer = answer.map_err(|s| ClientError::from_status(&seed.address, s))?.into_inner();
    let schema = serde_json::from_slice(&answer.schema).map_err(|e| ClientError::Protocol {
        node: seed.address.clone(),
        message: format!("its schema cannot be read: {e}"),
    })?;
    Ok(Described { schema, group: answer.group })
}
