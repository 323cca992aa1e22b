//! Random histories against a model: whatever happens, what was acknowledged is there, in order,
//! and what is there was appended.

use std::time::Duration;

use cachetier_journal::file_system::{FaultyFileSystem, PowerCut};
use cachetier_journal::{JournalError, JournalOptions, Sequence};
use proptest::prelude::*;

use crate::support::{Driven, relaxed, small};

#[derive(Clone, Debug)]
enum Step {
    /// Appends frames of this length without giving the writer a turn.
    Append {
        count: usize,
        bytes: usize,
    },
    /// One turn of the writer.
    Turn,
    /// Turns until idle.
    Run,
    /// Time passes, so that a relaxed sync falls due.
    Pass,
    /// Allows trimming up to this share (in 1/256) of what is synced.
    Trim(u8),
    Attribute(u8),
    Kill,
    Cut(u64),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..20_usize, 0..1500_usize).prop_map(|(count, bytes)| Step::Append { count, bytes }),
        4 => Just(Step::Turn),
        3 => Just(Step::Run),
        1 => Just(Step::Pass),
        1 => any::<u8>().prop_map(Step::Trim),
        1 => any::<u8>().prop_map(Step::Attribute),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(Step::Cut),
        1 => Just(Step::Close),
    ]
}

/// What must be true of the journal.
#[derive(Default)]
struct Model {
    /// Every frame accepted and not known to be lost, in order.
    frames: Vec<(Sequence, Vec<u8>)>,
    trim_allowed: Sequence,
    attribute: Option<u8>,
    appended: u64,
}

impl Model {
    /// After a restart: everything up to `kept` must be there, the rest may be, as a prefix.
    fn recover(&mut self, journal: &Driven, kept: Sequence) {
        let found = journal.frames();
        let first = found.first().map_or(Sequence::MAX, |frame| frame.sequence);
        let trimmed: Vec<_> = self.frames.iter().filter(|(s, _)| *s < first).cloned().collect();
        for (sequence, _) in &trimmed {
            let gone_by_cut = *sequence > kept;
            assert!(*sequence <= self.trim_allowed || gone_by_cut, "{sequence} was not trimmable");
        }
        let expected: Vec<_> = self.frames.iter().filter(|(s, _)| *s >= first).collect();
        assert!(found.len() <= expected.len(), "more frames than were ever appended");
        for (frame, (sequence, payload)) in found.iter().zip(&expected) {
            assert_eq!(frame.sequence, *sequence);
            assert_eq!(&frame.payload[..], &payload[..]);
        }
        let missing = expected.get(found.len()).map(|(sequence, _)| *sequence);
        assert!(missing.is_none_or(|missing| missing > kept), "{missing:?} of {kept} is lost");
        let last = journal.recovery.last;
        self.frames.retain(|(sequence, _)| *sequence <= last);
        assert_eq!(journal.journal.synced(), last, "what was found counts as synced");
        let attribute = journal.journal.attribute("model").map(|value| value[0]);
        assert_eq!(attribute, self.attribute);
    }

    fn append(&mut self, journal: &Driven, bytes: usize) {
        self.appended += 1;
        let mut payload = self.appended.to_le_bytes().to_vec();
        payload.resize(payload.len() + bytes, self.appended as u8);
        if let Ok(sequence) = journal.journal.append(3, &payload) {
            assert!(self.frames.last().is_none_or(|(last, _)| *last < sequence));
            self.frames.push((sequence, payload));
        }
    }
}

type Open = fn(&FaultyFileSystem, JournalOptions) -> Result<Driven, JournalError>;

fn run(open: Open, options: &JournalOptions, steps: &[Step]) {
    let fs = FaultyFileSystem::new();
    let mut model = Model::default();
    let mut journal = open(&fs, options.clone()).unwrap();
    for step in steps {
        match step {
            Step::Append { count, bytes } => {
                (0..*count).for_each(|_| model.append(&journal, *bytes));
            }
            Step::Turn => {
                journal.driver.turn(journal.now);
            }
            Step::Run => {
                journal.run();
            }
            Step::Pass => {
                journal.pass(Duration::from_secs(3601));
            }
            Step::Trim(share) => {
                let synced = journal.journal.synced();
                let known: Vec<_> = model.frames.iter().filter(|(s, _)| *s <= synced).collect();
                let index = known.len() * usize::from(*share) / 256;
                if let Some((sequence, _)) = known.get(index) {
                    model.trim_allowed = model.trim_allowed.max(*sequence);
                    journal.journal.trim(*sequence);
                }
            }
            Step::Attribute(value) => {
                journal.journal.set_attribute("model", &[*value]).unwrap();
                model.attribute = Some(*value);
            }
            Step::Kill => {
                let kept = journal.journal.watch().borrow().written;
                journal.abandon().kill_process();
                journal = open(&fs, options.clone()).unwrap();
                model.recover(&journal, kept);
            }
            Step::Cut(seed) => {
                let kept = journal.journal.synced();
                journal.abandon().cut_power(PowerCut::Random(*seed));
                journal = open(&fs, options.clone()).unwrap();
                model.recover(&journal, kept);
            }
            Step::Close => {
                close(&mut journal);
                let kept = journal.journal.synced();
                assert_eq!(kept, model.frames.last().map_or(kept, |(last, _)| (*last).max(kept)));
                journal.abandon().cut_power(PowerCut::LoseAll);
                journal = open(&fs, options.clone()).unwrap();
                assert!(journal.recovery.clean);
                model.recover(&journal, kept);
            }
        }
    }
}

fn close(journal: &mut Driven) {
    let mut closing = std::pin::pin!(journal.journal.clone().close());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(closing.as_mut().poll(&mut context).is_pending());
    journal.run();
    assert!(closing.as_mut().poll(&mut context).is_ready());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_sync_no_history_loses_an_acknowledged_frame(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(Driven::open, &small(), &steps);
    }

    #[test]
    fn at_relaxed_no_history_loses_a_synced_frame_or_a_written_one_to_a_kill(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(Driven::open, &relaxed(), &steps);
    }

    #[test]
    fn in_persistent_memory_no_history_loses_an_acknowledged_frame(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(Driven::open_dax, &small(), &steps);
    }

    #[test]
    fn in_persistent_memory_at_relaxed_no_history_loses_a_synced_frame(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(Driven::open_dax, &relaxed(), &steps);
    }
}
