//! Connections to the database in memory: they break when it crashes.

use super::state::{State, broken};
use crate::backend::BackendFuture;
use crate::backend::flush::{
    FlushOutcome, FlushRequest, LaneSession, WalState, WriterId, WriterRow,
};
use crate::backend::load::Scan;
use crate::error::{BackendError, Disposition};
use cachetier_model::{Instance, RootKey};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct DoubleLane {
    pub state: Arc<Mutex<State>>,
    pub writer: WriterId,
    pub session: u64,
}

fn check(state: &State, session: u64) -> Result<(), BackendError> {
    state.check_reachable()?;
    if state.session == session { Ok(()) } else { Err(broken()) }
}

impl LaneSession for DoubleLane {
    fn flush<'a>(&'a mut self, request: &'a FlushRequest<'a>) -> BackendFuture<'a, FlushOutcome> {
        Box::pin(async move {
            let mut state = self.state.lock();
            check(&state, self.session)?;
            let outcome = state.flush(request);
            if outcome.as_ref().is_err_and(|e| e.disposition() != Disposition::Reject) {
                // a broken connection stays broken
                self.session = 0;
            }
            outcome
        })
    }

    fn writer(&mut self) -> BackendFuture<'_, Option<WriterRow>> {
        Box::pin(async move {
            let (row, delay) = {
                let state = self.state.lock();
                check(&state, self.session)?;
                (state.writer_row(&self.writer), state.faults.writer_answer_delay)
            };
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(row)
        })
    }

    fn wal(&mut self) -> BackendFuture<'_, WalState> {
        Box::pin(async move {
            let state = self.state.lock();
            check(&state, self.session)?;
            Ok(WalState {
                position: state.writer_row(&self.writer).map(|row| row.position),
                system_identifier: "double".to_owned(),
                timeline: state.timeline,
                inserted: state.inserted,
                flushed: state.flushed,
            })
        })
    }
}

pub(super) struct DoubleScan {
    pub state: Arc<Mutex<State>>,
    pub session: u64,
    /// Taken when the scan was opened: one snapshot.
    pub pages: VecDeque<Vec<(RootKey, Instance)>>,
}

impl Scan for DoubleScan {
    fn next(&mut self) -> BackendFuture<'_, Option<Vec<(RootKey, Instance)>>> {
        Box::pin(async move {
            check(&self.state.lock(), self.session)?;
            Ok(self.pages.pop_front())
        })
    }
}
