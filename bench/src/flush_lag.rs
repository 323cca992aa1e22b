//! How long acknowledged writes stay away from the backend: some of them are followed until their
//! position is flushed.
//!
//! One write at a time, the next that comes once the last has arrived: a sample in time, not of
//! every write.

use anyhow::{Context, Result};
use cachetier_client::{Client, Position};
use hdrhistogram::Histogram;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two followed writes, so that following costs nothing worth measuring.
const PAUSE: Duration = Duration::from_millis(10);
const LAG_MAX_NS: u64 = 120_000_000_000;

/// Where acknowledged positions are offered.
#[derive(Clone)]
pub struct Offer {
    positions: mpsc::Sender<(Position, Instant)>,
}

impl Offer {
    /// Followed when nobody is being followed now; else left alone.
    pub fn offer(&self, position: Position) {
        // Full is the usual case.
        let _ = self.positions.try_send((position, Instant::now()));
    }
}

/// A running observation.
pub struct FlushLag {
    follower: JoinHandle<Result<Histogram<u64>>>,
}

impl FlushLag {
    pub fn start(client: Client) -> (Offer, Self) {
        let (positions, receiver) = mpsc::channel(1);
        (Offer { positions }, Self { follower: tokio::spawn(follow(client, receiver)) })
    }

    /// The lags in nanoseconds; call when every [`Offer`] is dropped.
    pub async fn finish(self) -> Result<Histogram<u64>> {
        self.follower.await?
    }
}

async fn follow(
    client: Client,
    mut positions: mpsc::Receiver<(Position, Instant)>,
) -> Result<Histogram<u64>> {
    let mut lags = Histogram::new_with_bounds(1, LAG_MAX_NS, 3)?;
    while let Some((position, acknowledged)) = positions.recv().await {
        let flushed = client.wait_flushed(&position, PATIENCE).await;
        flushed.context("following a write to the backend")?;
        lags.saturating_record(acknowledged.elapsed().as_nanos() as u64);
        tokio::time::sleep(PAUSE).await;
        // What waited in the channel meanwhile is old.
        while positions.try_recv().is_ok() {}
    }
    Ok(lags)
}
