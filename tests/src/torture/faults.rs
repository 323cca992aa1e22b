//! The faults, and how each is inflicted and undone.

use super::stage::Stage;
use anyhow::Result;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kill -9 of the node, started again at once or a moment later.
    KillNode,
    /// Kill -9 of all of PostgreSQL, started again a moment later.
    KillPostgres,
    /// Both at the same time.
    KillBoth,
    /// One session of PostgreSQL ended by an administrator.
    EndSessions,
    /// All connections between node and backend cut, and refused for a moment.
    CutBackend,
    /// All connections between clients and node cut.
    CutClients,
    /// The journal's volume full, for a moment.
    FillVolume,
    /// The node killed while its volume is full.
    KillOnFullVolume,
    FreezeNode,
    FreezePostgres,
    /// The node told to end in order, and started again.
    TerminateNode,
}

const ALL: [Fault; 11] = [
    Fault::KillNode,
    Fault::KillPostgres,
    Fault::KillBoth,
    Fault::EndSessions,
    Fault::CutBackend,
    Fault::CutClients,
    Fault::FillVolume,
    Fault::KillOnFullVolume,
    Fault::FreezeNode,
    Fault::FreezePostgres,
    Fault::TerminateNode,
];

impl Fault {
    pub fn draw(rng: &mut ChaCha8Rng) -> Self {
        ALL[rng.random_range(0..ALL.len())]
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::KillNode => "kill-node",
            Self::KillPostgres => "kill-postgres",
            Self::KillBoth => "kill-both",
            Self::EndSessions => "end-sessions",
            Self::CutBackend => "cut-backend",
            Self::CutClients => "cut-clients",
            Self::FillVolume => "fill-volume",
            Self::KillOnFullVolume => "kill-on-full-volume",
            Self::FreezeNode => "freeze-node",
            Self::FreezePostgres => "freeze-postgres",
            Self::TerminateNode => "terminate-node",
        }
    }

    /// Does it and undoes it; answers how many programs were killed.
    pub async fn inflict(self, stage: &mut Stage, rng: &mut ChaCha8Rng) -> Result<u64> {
        let mut moment = || Duration::from_millis(rng.random_range(0..2_000));
        match self {
            Self::KillNode => {
                stage.group.nodes[0].kill()?;
                tokio::time::sleep(moment()).await;
                stage.start_node()?;
                return Ok(1);
            }
            Self::KillPostgres => {
                kill_postgres(stage)?;
                tokio::time::sleep(moment()).await;
                stage.start_postgres().await?;
                return Ok(1);
            }
            Self::KillBoth => {
                kill_postgres(stage)?;
                stage.group.nodes[0].kill()?;
                tokio::time::sleep(moment()).await;
                stage.start_node()?;
                tokio::time::sleep(moment()).await;
                stage.start_postgres().await?;
                return Ok(2);
            }
            Self::EndSessions => {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE datname = current_database() AND pid <> pg_backend_pid()";
                stage.group.database.batch_execute(sql).await?;
            }
            Self::CutBackend => {
                stage.backend_proxy.refuse(true);
                stage.backend_proxy.cut();
                tokio::time::sleep(moment()).await;
                stage.backend_proxy.refuse(false);
            }
            Self::CutClients => stage.node_proxy.cut(),
            Self::FillVolume => {
                stage.volume.fill()?;
                tokio::time::sleep(moment() * 3).await;
                stage.volume.free()?;
            }
            Self::KillOnFullVolume => {
                stage.volume.fill()?;
                tokio::time::sleep(moment()).await;
                stage.group.nodes[0].kill()?;
                stage.start_node()?;
                tokio::time::sleep(moment()).await;
                stage.volume.free()?;
                stage.start_node()?;
                return Ok(1);
            }
            Self::FreezeNode => {
                stage.group.nodes[0].freeze()?;
                tokio::time::sleep(moment() * 2).await;
                stage.group.nodes[0].thaw()?;
            }
            Self::FreezePostgres => {
                stage.group.postgres.freeze()?;
                tokio::time::sleep(moment()).await;
                stage.group.postgres.thaw()?;
            }
            Self::TerminateNode => {
                stage.group.nodes[0].terminate().await?;
                stage.start_node()?;
            }
        }
        Ok(0)
    }
}

fn kill_postgres(stage: &mut Stage) -> Result<()> {
    stage.group.postgres.kill()?;
    stage.postgres_down = true;
    Ok(())
}
