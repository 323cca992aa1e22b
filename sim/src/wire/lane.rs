//! The sessions of the lanes and the scans of loads, by the same way; and the oracle's eye on what a
//! lane commits.

use std::collections::BTreeSet;

use cachetier_model::{Instance, RootKey, SlotId};
use cachetier_write_through::{
    Backend, BackendError, BackendFuture, FlushOutcome, FlushRequest, LaneSession, Scan, WalState,
    WriterRow,
};
use futures::FutureExt;

use super::{Wire, broken, place};
use crate::check;
use crate::line::Line;
use crate::tables;
use crate::world::{GROUP_UID, World};

pub(super) struct WireLane {
    pub wire: Wire,
    pub inner: Box<dyn LaneSession>,
    /// A connection that broke stays broken.
    pub broken: bool,
}

impl WireLane {
    fn note<T>(&mut self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        let lasting =
            |e: &BackendError| e.disposition() != cachetier_write_through::Disposition::Reject;
        self.broken |= answer.as_ref().is_err_and(lasting);
        answer
    }

    /// There, the act, and back.
    async fn cross<T: Send>(
        &mut self,
        act: impl for<'s> FnOnce(&'s mut dyn LaneSession) -> BackendFuture<'s, T> + Send,
    ) -> Result<T, BackendError> {
        if self.broken {
            return Err(broken());
        }
        let answer = async {
            let world = self.wire.go().await?;
            let answer = act(self.inner.as_mut()).await?;
            self.wire.back(&world, answer).await
        };
        let answer = answer.await;
        self.note(answer)
    }

    async fn send(&mut self, request: &FlushRequest<'_>) -> Result<FlushOutcome, BackendError> {
        let world = self.wire.go().await?;
        let outcome = self.inner.flush(request).await;
        match &outcome {
            Ok(FlushOutcome::Committed) => committed(&world, &self.wire.line, request),
            Ok(FlushOutcome::FenceMissed) => world.history.say(format!(
                "{} lane {}: the fence refuses a batch",
                self.wire.line.name(),
                request.fence.writer.lane
            )),
            Err(error) => world.history.say(format!(
                "{} lane {}: a batch is refused: {}",
                self.wire.line.name(),
                request.fence.writer.lane,
                error.reason
            )),
        }
        self.wire.back(&world, outcome?).await
    }
}

impl LaneSession for WireLane {
    fn flush<'a>(&'a mut self, request: &'a FlushRequest<'a>) -> BackendFuture<'a, FlushOutcome> {
        Box::pin(async move {
            if self.broken {
                return Err(broken());
            }
            let answer = self.send(request).await;
            self.note(answer)
        })
    }

    fn writer(&mut self) -> BackendFuture<'_, Option<WriterRow>> {
        Box::pin(self.cross(|inner| inner.writer()))
    }

    fn wal(&mut self) -> BackendFuture<'_, WalState> {
        Box::pin(self.cross(|inner| inner.wal()))
    }
}

pub(super) struct WireScan {
    pub wire: Wire,
    pub inner: Box<dyn Scan>,
}

impl Scan for WireScan {
    fn next(&mut self) -> BackendFuture<'_, Option<Vec<(RootKey, Instance)>>> {
        Box::pin(async move {
            let world = self.wire.go().await?;
            let page = self.inner.next().await?;
            self.wire.back(&world, page).await
        })
    }
}

fn moves(request: &FlushRequest<'_>) -> String {
    let told = request.moves().map(|(fence, next)| {
        let (lane, from) = (fence.writer.lane, place(fence.position));
        format!(" lane {lane}: position {from} to {}", place(next))
    });
    told.collect::<Vec<String>>().join(",")
}

/// The database committed a batch: by whom, of which slots, with what result.
fn committed(world: &World, line: &Line, request: &FlushRequest<'_>) {
    let fence = &request.fence;
    let schema = tables::schema();
    let statements = request.waves.iter().flat_map(|wave| &wave.statements);
    let keys: BTreeSet<RootKey> = statements
        .flat_map(|s| s.rows.iter().filter_map(|row| schema.root_key_of_row(s.table, row).ok()))
        .collect();
    if request.rows() > 0 || !request.rejects.is_empty() {
        world.history.say(format!(
            "{} commits {} rows, {} set aside,{}",
            line.name(),
            request.rows(),
            request.rejects.len(),
            moves(request)
        ));
    }
    world.judge(|oracle| oracle.committed_by(&line.node, fence.token));
    let slots: Vec<SlotId> = keys.iter().map(RootKey::slot).collect();
    let holders = world.database.holders(GROUP_UID).now_or_never().and_then(Result::ok);
    let mine = holders.into_iter().flatten().find(|holder| holder.node == line.node);
    if let Some(foreign) =
        slots.iter().find(|s| !mine.as_ref().is_some_and(|m| m.slots.contains(**s)))
    {
        let slot = foreign.number();
        world.violate(format!("{} wrote rows of slot {slot}, which is not its own", line.name()));
    }
    check::all_stored(world);
    if world.chance(0.1) {
        for (_, next) in request.moves() {
            check::position_is_synced(world, &line.node, next);
        }
    }
}
