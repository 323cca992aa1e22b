//! Many calls in flight on one stream.
//!
//! At most [`IN_FLIGHT_MAX`] at a time: further requests stay unread, so that flow control slows
//! the sender down and nothing piles up here.

use super::cache::CacheService;
use super::errors;
use cachetier_proto::v1;
use cachetier_proto::v1::pipeline_request::Call;
use cachetier_proto::v1::pipeline_response::Result as Outcome;
use futures::{Stream, StreamExt};
use tonic::{Status, Streaming};

const IN_FLIGHT_MAX: usize = 512;

/// Answers as they come, in any order; ends when the sender's stream ends.
pub fn run(
    service: CacheService,
    requests: Streaming<v1::PipelineRequest>,
) -> impl Stream<Item = Result<v1::PipelineResponse, Status>> + Send + 'static {
    requests
        .map(move |request| {
            let service = service.clone();
            async move { Ok(answer(&service, request?).await) }
        })
        .buffer_unordered(IN_FLIGHT_MAX)
}

async fn answer(service: &CacheService, request: v1::PipelineRequest) -> v1::PipelineResponse {
    let v1::PipelineRequest { id, call } = request;
    let outcome = match call {
        Some(Call::Read(read)) => Box::pin(service.read_one(read)).await.map(Outcome::Read),
        Some(Call::Transact(transact)) => {
            Box::pin(service.transact_one(transact)).await.map(Outcome::Transact)
        }
        None => Err(errors::missing("the call")),
    };
    let result = outcome.unwrap_or_else(|status| Outcome::Error(errors::to_pipeline(&status)));
    v1::PipelineResponse { id, result: Some(result) }
}
