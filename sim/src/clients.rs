//! Clients: each has its own accounts, and does one thing at a time with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cachetier_group::{
    AnswerWhen, GroupError, KeySelector, Position, ReadCall, RefusalReason, TransactCall,
    Transacted,
};
use cachetier_model::{IdempotencyKey, ReadPlan};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::account::{Account, Act, Content, Deed, show};
use crate::check;
use crate::oracle::Told;
use crate::settings::Scene;
use crate::tables;
use crate::world::{Process, World};

/// The longest a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// Works until its steps are done or the history is over.
pub async fn work(world: Arc<World>, number: usize) {
    let clients = world.settings.clients as i64;
    let mine: Vec<i64> =
        (1..=world.settings.keys).filter(|id| id % clients == number as i64).collect();
    let mut version = number as i64 + 1;
    let mut done: Vec<(Deed, Transacted)> = Vec::new();
    let mut failovers = 0;
    for _ in 0..world.settings.steps_per_client {
        world.pause(world.settings.pace).await;
        if world.violated.is_cancelled() {
            return;
        }
        let happened = world.failovers.load(Ordering::Relaxed);
        if world.settings.looks_after_failover() && happened > failovers {
            failovers = happened;
            for id in &mine {
                if let Some(process) = check::owner(&world, *id) {
                    read(&world, &process, *id).await;
                }
            }
        }
        if world.settings.repeats && world.chance(0.25) {
            repeat_late(&world, &done).await;
            continue;
        }
        let Some(id) = world.draw(|dice| mine.choose(dice).copied()) else { return };
        let Some(process) = someone(&world, id).await else { continue };
        match world.draw(|dice| dice.random_range(0..10)) {
            0 => read(&world, &process, id).await,
            1 => {
                // another client's, which may be changing it at this moment
                let any = world.draw(|dice| dice.random_range(1..=world.settings.keys));
                if let Some(process) = check::owner(&world, any) {
                    read(&world, &process, any).await;
                }
            }
            2 => look_up(&world, &process, id).await,
            _ => {
                let deed = choose(&world, id, version);
                version += clients;
                let answer = write(&world, &process, &deed).await;
                done.extend(answer.map(|answer| (deed, answer)));
            }
        }
    }
}

/// The owner, if it is up before long; now and then any other node.
async fn someone(world: &World, id: i64) -> Option<Process> {
    let anyone = world.settings.scene != Some(Scene::GivenAway);
    if anyone && world.chance(0.05) {
        let all = world.processes();
        return world.draw(|dice| all.choose(dice).cloned());
    }
    for _ in 0..20 {
        if let Some(process) = check::owner(world, id) {
            return Some(process);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// Mostly something that the account's content allows.
fn choose(world: &World, id: i64, version: i64) -> Deed {
    let possible = world.oracle.lock().possible(id);
    let content = possible.into_iter().next_back().flatten();
    let scene = world.settings.scene == Some(Scene::SlowMisses);
    // what is deleted is in no memory, and read from whatever the backend is then
    let closing = (scene || world.settings.looks_after_failover()) && content.is_some();
    if closing && world.chance(0.2) {
        return Deed { id, version, act: Act::Close };
    }
    // what the backend decides would bring its log to its disk
    if world.settings.scene == Some(Scene::LostCommits) && content.is_some() {
        return Deed { id, version, act: Act::Touch };
    }
    let act = world.draw(|dice| {
        // few enough to be wanted by two
        let number = 2_000 + dice.random_range(0..12);
        match (content, dice.random_range(0..20)) {
            (None, 0..=15) => Act::Open { number },
            (_, 0..=5) => Act::Touch,
            (Some(Account { items, .. }), 6..=9) if !items.is_empty() => {
                let names: Vec<i64> = items.keys().copied().collect();
                Act::Take { name: names.choose(dice).copied().unwrap_or_default() }
            }
            (_, 6..=15) => Act::Put { name: dice.random_range(0..6) },
            (_, 16..=17) => Act::Rename { number },
            (_, 18) => Act::Open { number },
            _ => Act::Close,
        }
    });
    Deed { id, version, act }
}

/// An answer, or `None` when the process died or it took too long.
async fn answered<T>(process: &Process, call: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = process.line.died.cancelled() => None,
        answer = tokio::time::timeout(PATIENCE, call) => answer.ok().filter(|_| !process.line.is_dead()),
    }
}

fn call(world: &World, deed: &Deed) -> TransactCall {
    let flushed = world.chance(0.1);
    let key = format!("{}-{}", deed.id, deed.version);
    TransactCall {
        key: KeySelector::Root(tables::root(deed.id)),
        transaction: deed.transaction(),
        answer: if flushed { AnswerWhen::Flushed } else { AnswerWhen::Durable },
        idempotency_key: IdempotencyKey::new(key).ok().filter(|_| world.settings.repeats),
    }
}

/// What was acknowledged is asked for once more, whatever came after it: answered as it was the
/// first time, and nothing happens (R26).
async fn repeat_late(world: &World, done: &[(Deed, Transacted)]) {
    let Some((deed, first)) = world.draw(|dice| done.choose(dice)) else { return };
    let Some(process) = check::owner(world, deed.id) else { return };
    world.history.say(format!("client asks {} again: {deed}", process.line.name()));
    let answer = answered(&process, process.group.transact(call(world, deed))).await;
    match answer {
        Some(Ok(again)) if again != *first => {
            world.violate(format!("{deed}: repeated, it is done once more, or answered otherwise"));
        }
        Some(Err(GroupError::Refused(refusal))) => {
            world.violate(format!("{deed}: repeated, it is refused: {}", refusal.message));
        }
        _ => {}
    }
}

/// Repeats a write while its outcome is unknown; what is known in the end.
async fn repeat(
    world: &World,
    deed: &Deed,
    first: Option<Result<Transacted, GroupError>>,
) -> (Told, Option<Result<Transacted, GroupError>>) {
    let mut answer = first;
    let mut last = told(deed, answer.as_ref());
    for _ in 0..if world.settings.repeats { 4 } else { 0 } {
        if !matches!(last, Told::InDoubt { .. }) {
            break;
        }
        world.pause(1_000).await;
        let Some(process) = check::owner(world, deed.id) else { continue };
        let name = process.line.name();
        world.history.say(format!("client asks {name}, not knowing whether it was done: {deed}"));
        let again = answered(&process, process.group.transact(call(world, deed))).await;
        match told(deed, again.as_ref()) {
            // says nothing of the earlier try
            Told::NotNow => {}
            told => (last, answer) = (told, again),
        }
    }
    (last, answer)
}

/// What was answered, if it was acknowledged.
async fn write(world: &World, process: &Process, deed: &Deed) -> Option<Transacted> {
    world.history.say(format!("client asks {}: {deed}", process.line.name()));
    world.judge(|oracle| oracle.begin(deed));
    let answer = answered(process, process.group.transact(call(world, deed))).await;
    let (told, answer) = repeat(world, deed, answer).await;
    let words = match &answer {
        None => "no answer".to_owned(),
        Some(Ok(done)) => format!("done at {}", crate::wire::place(done.position.sequence)),
        Some(Err(error)) => error.to_string(),
    };
    world.history.say(format!("account {}, version {}: {words}", deed.id, deed.version));
    world.judge(|oracle| oracle.told(deed, &told));
    let certain = !world.settings.failover;
    let acknowledged = answer.and_then(Result::ok);
    if let Some(position) = acknowledged.as_ref().map(|done| done.position)
        && certain
        && world.chance(0.2)
    {
        past_the_cache(world, process, deed.id, position).await;
    }
    acknowledged
}

fn told(deed: &Deed, answer: Option<&Result<Transacted, GroupError>>) -> Told {
    let late = deed.is_decided_by_backend();
    match answer {
        None => Told::InDoubt { late },
        Some(Ok(done)) => Told::Acknowledged {
            journal: done.position.journal.to_string(),
            sequence: done.position.sequence,
        },
        Some(Err(GroupError::InDoubt { .. })) => Told::InDoubt { late },
        Some(Err(GroupError::Refused(refusal))) => Told::Refused {
            unique: refusal.reason == RefusalReason::Unique,
            by_backend: refusal.reason == RefusalReason::Backend
                || refusal.reason == RefusalReason::Schema,
        },
        Some(Err(_)) => Told::NotNow,
    }
}

fn whole(key: KeySelector) -> ReadCall {
    ReadCall::new(key, ReadPlan::default()).without_bypass()
}

async fn read(world: &World, process: &Process, id: i64) {
    let call = whole(KeySelector::Root(tables::root(id)));
    let glance = world.oracle.lock().glance(id);
    if let Some(Ok(outcome)) = answered(process, process.group.read(call)).await {
        let content = tables::account_of(&outcome.tables);
        let name = process.line.name();
        world.history.say(format!("{name} shows account {id}: {}", show(&content)));
        world.judge(|oracle| oracle.shown(id, &content, &glance));
    }
}

/// Reads by the number the account has, or had.
async fn look_up(world: &World, process: &Process, id: i64) {
    let possible = world.oracle.lock().possible(id);
    let numbers: Vec<i64> = possible.iter().flatten().map(|account| account.number).collect();
    let Some(number) = numbers.last().copied() else { return };
    let key = KeySelector::Lookup { lookup: 0, key: tables::number_key(number) };
    let Some(Ok(outcome)) = answered(process, process.group.read(whole(key))).await else { return };
    let content: Content = tables::account_of(&outcome.tables);
    let name = process.line.name();
    world.history.say(format!("{name} shows number {number}: {}", show(&content)));
    let has = |content: &Content| content.as_ref().is_some_and(|a| a.number == number);
    match &content {
        Some(_) if !has(&content) => {
            world.violate(format!("a read by number {number} shows {}", show(&content)));
        }
        None if possible.iter().all(has) && !world.settings.failover => {
            world.violate(format!("number {number} is account {id}'s, and was not found"));
        }
        _ => {}
    }
}

/// Right after an acknowledgement, past the cache of the same node, or of any at its position:
/// refused, or complete (R25).
async fn past_the_cache(world: &World, writer: &Process, id: i64, position: Position) {
    let mut call = ReadCall::new(KeySelector::Root(tables::root(id)), ReadPlan::default());
    let all = world.processes();
    // what is set aside has no place in the backend, whatever its position
    let anyone = Some(&all).filter(|_| !world.settings.poison && world.chance(0.7));
    let other = anyone.and_then(|all| world.draw(|dice| all.choose(dice)));
    call.min_position = other.map(|_| position);
    let process = other.unwrap_or(writer);
    let glance = world.oracle.lock().glance(id);
    if let Some(Ok(outcome)) = answered(process, process.group.bypass_read(&call)).await {
        let content = tables::account_of(&outcome.tables);
        world.history.say(format!("past the cache, account {id}: {}", show(&content)));
        world.judge(|oracle| oracle.shown(id, &content, &glance));
    }
}
