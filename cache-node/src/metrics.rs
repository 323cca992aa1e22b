//! Every metric of the node, all names in this file. Prefix `cachetier_node`.
//!
//! Gauges and counters of the group are read from its last status at each scrape; only the call
//! counters are kept here.

use crate::snapshot::Snapshot;
use cachetier_group::{Counters, Group, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Error;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    method: &'static str,
    /// `OK` or the reason of the refusal.
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// A method whose calls are counted.
#[derive(Clone, Copy, Debug)]
pub enum Method {
    Read,
    Transact,
}

/// Calls answered, by method and outcome, and how long they took.
#[derive(Clone)]
pub struct RpcMetrics {
    calls: Family<OutcomeLabels, Counter>,
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
    forwarded: Counter,
    read: MethodFigures,
    transact: MethodFigures,
}

/// The figures of one method that nearly every call changes, found without a look into a map.
#[derive(Clone)]
struct MethodFigures {
    name: &'static str,
    ok: Counter,
    seconds: Histogram,
}

impl Default for RpcMetrics {
    fn default() -> Self {
        let calls: Family<OutcomeLabels, Counter> = Family::default();
        let seconds = Family::new_with_constructor(call_histogram as fn() -> Histogram);
        let figures = |name: &'static str| MethodFigures {
            name,
            ok: calls.get_or_create(&OutcomeLabels { method: name, outcome: "OK" }).clone(),
            seconds: seconds.get_or_create(&MethodLabel { method: name }).clone(),
        };
        let (read, transact) = (figures("Read"), figures("Transact"));
        Self { calls, seconds, forwarded: Counter::default(), read, transact }
    }
}

/// 25 µs to 1.6 s.
fn call_histogram() -> Histogram {
    Histogram::new((0..17).map(|step| 25e-6 * f64::from(1_u32 << step)))
}

impl RpcMetrics {
    pub fn answered(&self, method: Method, outcome: &'static str, took: Duration) {
        let figures = match method {
            Method::Read => &self.read,
            Method::Transact => &self.transact,
        };
        match outcome {
            "OK" => figures.ok.inc(),
            outcome => {
                let labels = OutcomeLabels { method: figures.name, outcome };
                self.calls.get_or_create(&labels).inc()
            }
        };
        figures.seconds.observe(took.as_secs_f64());
    }

    pub fn forwarded(&self) {
        self.forwarded.inc();
    }
}

/// All sources of figures.
pub struct Metrics {
    pub group: Group,
    pub snapshot: Snapshot,
    pub rpc: RpcMetrics,
}

impl Metrics {
    pub fn into_registry(self) -> Registry {
        let Self { group, snapshot, rpc } = self;
        let mut registry = Registry::with_prefix("cachetier_node");
        registry.register("calls", "Calls answered, by outcome", rpc.calls);
        let help = "Time to answer a call";
        registry.register_with_unit("call_duration", help, Unit::Seconds, rpc.seconds);
        registry.register("forwarded", "Calls sent on to the slot's owner", rpc.forwarded);
        registry.register_collector(Box::new(GroupFigures { group, snapshot }));
        registry
    }
}

struct GroupFigures {
    group: Group,
    snapshot: Snapshot,
}

impl std::fmt::Debug for GroupFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GroupFigures")
    }
}

impl Collector for GroupFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let status = self.snapshot.borrow().clone();
        if let Some(status) = status {
            gauges(&mut encoder, &status)?;
        }
        counters(&mut encoder, &self.group.counters())
    }
}

fn gauges(encoder: &mut DescriptorEncoder, status: &Status) -> Result<(), Error> {
    let flag = |b: bool| f64::from(u8::from(b));
    let figures: [(&str, &str, f64); 31] = [
        ("ready", "1 when the node serves all its slots", flag(status.ready)),
        ("backend_reachable", "1 while the backend answers", flag(status.backend_reachable)),
        ("writes_stopped", "1 while writes are refused for a drain", flag(status.writes_stopped)),
        ("flushing_paused", "1 while flushing is paused", flag(status.flushing_paused)),
        ("problems", "Problems listed in the status", status.problems.len() as f64),
        ("topology_version", "Version of the topology held", status.topology_version as f64),
        ("slots_assigned", "Slots the topology gives to this node", status.slots_assigned.into()),
        ("slots_serving", "Slots served", status.slots_serving.into()),
        ("slots_covered", "Served slots whose load is complete", status.slots_covered.into()),
        ("slots_leaving", "Slots not yet let go", status.slots_leaving.into()),
        ("backlog_transactions", "Transactions not flushed", status.backlog.transactions as f64),
        ("backlog_bytes", "Bytes of the write-behind queue", status.backlog.bytes as f64),
        (
            "flush_lag_seconds",
            "Age of the oldest transaction not flushed",
            status.backlog.oldest.as_secs_f64(),
        ),
        ("flush_rows_per_second", "Rows flushed lately", status.backlog.flush_rows_per_second),
        ("instances", "Cache instances held", status.instances as f64),
        ("memory_bytes", "Memory of the store", status.memory_bytes as f64),
        ("memory_capacity_bytes", "Memory budget", status.memory_capacity_bytes as f64),
        (
            "memory_direct",
            "1 while the store lies in persistent memory with direct access",
            flag(status.store_direct),
        ),
        ("journal_direct", "1 while the journal does", flag(status.journal_direct)),
        ("images_bytes", "Slot images on the volume", status.images_bytes as f64),
        (
            "images_oldest_seconds",
            "Since the image was looked at that waited longest",
            status.images_oldest_seconds,
        ),
        ("journal_bytes", "Size of the journal", status.journal_bytes as f64),
        ("journal_capacity_bytes", "Bound of the journal", status.journal_capacity_bytes as f64),
        ("rejects", "Transactions refused by the backend and undecided", status.rejects as f64),
        ("oldest_reject_seconds", "Age of the oldest reject", status.oldest_reject_seconds),
        ("journal_appended", "Highest sequence appended", status.appended as f64),
        ("journal_durable", "Highest sequence on disk", status.durable as f64),
        ("journal_flushed", "Highest sequence in the backend", status.flushed as f64),
        (
            "idempotency_answers",
            "Answers kept for repeated calls",
            status.idempotency_answers as f64,
        ),
        ("idempotency_bytes", "Memory of these answers", status.idempotency_bytes as f64),
        ("generation", "Starts of a process on this journal", status.generation.into()),
    ];
    for (name, help, value) in figures {
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    Ok(())
}

fn counters(encoder: &mut DescriptorEncoder, counters: &Counters) -> Result<(), Error> {
    let figures: [(&str, &str, f64); 21] = [
        ("reads_cache", "Reads answered from the store", counters.reads_cache as f64),
        ("reads_through", "Reads that missed and asked the backend", counters.reads_through as f64),
        ("reads_bypass", "Reads answered past the store", counters.reads_bypass as f64),
        ("read_throughs_failed", "Misses that failed", counters.read_throughs_failed as f64),
        (
            "instances_evicted",
            "Instances that gave way to others",
            counters.instances_evicted as f64,
        ),
        (
            "instances_forgotten",
            "Instances read again because the backend had lost what they held",
            counters.instances_forgotten as f64,
        ),
        ("writes", "Transactions acknowledged", counters.writes as f64),
        ("writes_refused", "Transactions refused", counters.writes_refused as f64),
        (
            "writes_slowed",
            "Transactions held back before a queue that was nearly full",
            counters.writes_slowed as f64,
        ),
        ("write_slowdown_seconds", "Time they were held back", counters.write_slowdown_seconds),
        (
            "idempotent_repeats",
            "Calls answered as the first of their idempotency key",
            counters.idempotent_repeats as f64,
        ),
        (
            "idempotency_forgotten",
            "Idempotency answers that went before their time, for want of room",
            counters.idempotency_forgotten as f64,
        ),
        ("slots_taken", "Slots taken over", counters.slots_taken as f64),
        ("slots_released", "Slots let go", counters.slots_released as f64),
        ("rejected", "Transactions the backend refused for good", counters.rejects as f64),
        ("journal_syncs", "Syncs of the journal", counters.journal_syncs as f64),
        ("journal_written_bytes", "Bytes written to it", counters.journal_bytes_written as f64),
        ("journal_sync_seconds", "Time spent in syncs", counters.journal_sync_seconds),
        ("images_written", "Files of slot images written", counters.images_written as f64),
        ("images_written_bytes", "Bytes written to them", counters.images_bytes_written as f64),
        (
            "image_instances_restored",
            "Instances that the start took from images",
            counters.image_instances_restored as f64,
        ),
    ];
    for (name, help, value) in figures {
        let counter = ConstCounter::new(value);
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
    }
    let help = "Slots whose image was of no use, by reason";
    let mut dropped =
        encoder.encode_descriptor("image_slots_dropped", help, None, MetricType::Counter)?;
    for (reason, slots) in &counters.image_slots_dropped {
        ConstCounter::new(*slots).encode(dropped.encode_family(&ReasonLabel { reason })?)?;
    }
    Ok(())
}
