//! Many calls in flight on one stream.
//!
//! At most [`IN_FLIGHT_MAX`] at a time: further requests stay unread, so that flow control slows
//! the sender down and nothing piles up here. A node that stops reads no more, answers what it has
//! read and says that it is done: the sender then knows that the rest did not happen.

use super::cache::CacheService;
use super::errors;
use cachetier_proto::v1;
use cachetier_proto::v1::pipeline_request::Call;
use cachetier_proto::v1::pipeline_response::Result as Outcome;
use futures::{Stream, StreamExt, stream};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

const IN_FLIGHT_MAX: usize = 512;

/// Answers as they come, in any order; ends when the sender's stream ends, or after `stop`.
pub fn run(
    service: CacheService,
    requests: Streaming<v1::PipelineRequest>,
    stop: &CancellationToken,
) -> impl Stream<Item = Result<v1::PipelineResponse, Status>> + Send + 'static {
    let stopped = Box::pin(stop.clone().cancelled_owned());
    let closing = Outcome::Closing(v1::PipelineClosing {});
    requests
        .take_until(stopped)
        .map(move |request| {
            let service = service.clone();
            async move { Ok(answer(&service, request?).await) }
        })
        .buffer_unordered(IN_FLIGHT_MAX)
        .chain(stream::iter([Ok(v1::PipelineResponse { id: 0, result: Some(closing) })]))
}

async fn answer(service: &CacheService, request: v1::PipelineRequest) -> v1::PipelineResponse {
    let v1::PipelineRequest { id, call, timeout_ms } = request;
    let call = async {
        match call {
            Some(Call::Read(read)) => service.read_one(read).await.map(Outcome::Read),
            Some(Call::Transact(transact)) => {
                service.transact_one(transact).await.map(Outcome::Transact)
            }
            None => Err(errors::missing("the call")),
        }
    };
    let outcome = match timeout_ms {
        0 => Box::pin(call).await,
        ms => match tokio::time::timeout(Duration::from_millis(ms.into()), Box::pin(call)).await {
            Ok(outcome) => outcome,
            // nobody waits for an answer any more
            Err(_) => Err(Status::deadline_exceeded("the sender's time ran out")),
        },
    };
    let result = outcome.unwrap_or_else(|status| Outcome::Error(errors::to_pipeline(&status)));
    v1::PipelineResponse { id, result: Some(result) }
}
