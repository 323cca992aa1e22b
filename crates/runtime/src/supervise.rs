//! Background tasks a process cannot live without: when one ends early, the process goes down
//! visibly instead of running on as a shell of itself.
//!
//! Owns the tasks' handles and the process's cancellation token. Must never restart a task: a
//! fresh process does that, from a known state.

use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a supervised process has to end.
#[derive(Debug, thiserror::Error)]
pub enum TaskEnded {
    #[error("background task {name} ended although the process was not asked to stop")]
    Finished { name: &'static str },
    #[error("background task {name} failed")]
    Failed { name: &'static str, source: BoxError },
    #[error("background task {name} panicked")]
    Panicked { name: &'static str },
    #[error("background tasks did not stop within {grace:?}")]
    Stuck { grace: Duration },
}

/// The tasks of one process.
pub struct Tasks {
    shutdown: CancellationToken,
    running: JoinSet<Result<(), TaskEnded>>,
}

impl Tasks {
    /// `shutdown` asks all tasks to stop; it is cancelled by [`Tasks::supervise`] too.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown, running: JoinSet::new() }
    }

    pub fn spawn<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let inner = tokio::spawn(task);
        self.running.spawn(async move {
            match inner.await {
                Ok(Ok(())) => Err(TaskEnded::Finished { name }),
                Ok(Err(error)) => Err(TaskEnded::Failed { name, source: error.into() }),
                Err(_) => Err(TaskEnded::Panicked { name }),
            }
        });
    }

    /// Runs until the token is cancelled or the first task ends; then waits up to `grace` for the
    /// others. `Ok` only for an orderly stop in which no task failed.
    pub async fn supervise(mut self, grace: Duration) -> Result<(), TaskEnded> {
        let first = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => None,
            ended = self.running.join_next() => ended,
        };
        let mut outcome = match first {
            // asked to stop, a task may have finished before this one looks: that is no failure
            Some(Ok(Err(TaskEnded::Finished { .. }))) if self.shutdown.is_cancelled() => Ok(()),
            Some(Ok(Err(ended))) => Err(ended),
            _ => Ok(()),
        };
        self.shutdown.cancel();
        let stopped = tokio::time::timeout(grace, async {
            while let Some(ended) = self.running.join_next().await {
                match ended {
                    // Finishing is what a task is supposed to do now.
                    Ok(Err(TaskEnded::Finished { .. })) => {}
                    Ok(Err(failure)) if outcome.is_ok() => outcome = Err(failure),
                    _ => {}
                }
            }
        })
        .await;
        if stopped.is_err() && outcome.is_ok() {
            outcome = Err(TaskEnded::Stuck { grace });
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn d11_a_task_that_ends_early_stops_the_process_and_the_other_tasks() {
        let token = CancellationToken::new();
        let mut tasks = Tasks::new(token.clone());
        let other = token.clone();
        tasks.spawn("other", async move {
            other.cancelled().await;
            Ok::<(), std::io::Error>(())
        });
        tasks.spawn("short", async { Ok::<(), std::io::Error>(()) });
        let ended = tasks.supervise(Duration::from_secs(10)).await;
        assert!(matches!(ended, Err(TaskEnded::Finished { name: "short" })), "{ended:?}");
        assert!(token.is_cancelled());
    }

    #[tokio::test]
    async fn d11_a_panic_in_a_task_is_reported_by_name() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("flusher", async {
            if std::hint::black_box(true) {
                panic!("broken");
            }
            Ok::<(), std::io::Error>(())
        });
        let ended = tasks.supervise(Duration::from_secs(10)).await;
        assert!(matches!(ended, Err(TaskEnded::Panicked { name: "flusher" })), "{ended:?}");
    }

    /// The tasks of a stopping process may all be gone before the supervisor looks.
    #[tokio::test]
    async fn tasks_that_stop_faster_than_their_supervisor_looks_are_not_an_error() {
        for _ in 0..64 {
            let token = CancellationToken::new();
            let mut tasks = Tasks::new(token.clone());
            let inner = token.clone();
            tasks.spawn("server", async move {
                inner.cancelled().await;
                Ok::<(), std::io::Error>(())
            });
            token.cancel();
            // on this runtime of one thread the task and its watcher end while others are polled
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            let ended = tasks.supervise(Duration::from_secs(10)).await;
            assert!(ended.is_ok(), "{ended:?}");
        }
    }

    #[tokio::test]
    async fn an_orderly_stop_is_not_an_error() {
        let token = CancellationToken::new();
        let mut tasks = Tasks::new(token.clone());
        let inner = token.clone();
        tasks.spawn("server", async move {
            inner.cancelled().await;
            Ok::<(), std::io::Error>(())
        });
        token.cancel();
        assert!(tasks.supervise(Duration::from_secs(10)).await.is_ok());
    }
}
