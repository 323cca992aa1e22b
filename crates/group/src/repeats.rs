//! Transactions with an idempotency key: the first one goes its way, a repeated one is answered as
//! the first was (R26).
//!
//! Owns the order of looking, waiting and answering. What is remembered is in `answers`; what makes
//! it survive is in the journal: the key travels in the transaction's frame, and answers that no
//! transaction of this journal carries have frames of their own. Must never let a repeated call
//! commit, nor answer it before what the first one waits for (R7).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cachetier_journal::{Journal, Sequence};
use cachetier_model::{IdempotencyKey, Transaction};
use tokio::time::Instant;

use crate::answers::{Answer, Answers, Claim, Fate, Found, Name, Request};
use crate::calls::{KeySelector, Position, Transacted};
use crate::core::Core;
use crate::error::{GroupError, RefusalReason, in_full};
use crate::frames::{self, Keyed, Payload};
use crate::ownership::SlotState;
use crate::restore::Tail;
use crate::status::Problem;

/// The longest a repeated call waits for the first one.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);

/// What a call with a key may do.
pub(crate) enum Admitted {
    First(Claim),
    Again(Answer),
}

impl Core {
    /// The request as it is remembered; refused where it cannot be.
    pub(crate) fn keyed_request(
        &self,
        key: IdempotencyKey,
        selector: &KeySelector,
        transaction: &Transaction,
    ) -> Result<Request, GroupError> {
        let refuse = |why: &str| Err(GroupError::refused(RefusalReason::Request, why));
        if !self.answers.are_kept() {
            return refuse(
                "idempotency_key: this group keeps no answers; set idempotencyWindow, or leave the \
                 key out",
            );
        }
        let KeySelector::Root(root) = selector else {
            return refuse(
                "idempotency_key: name the instance by its root key; a lookup key may be another \
                 instance's when the request is repeated",
            );
        };
        let name = Arc::new(Name { root: root.clone(), key });
        Ok(Request { name, digest: transaction.digest() })
    }

    /// Returns once this call is the first of its name, or knows how the first was answered.
    pub(crate) async fn admit(&self, request: &Request) -> Result<Admitted, GroupError> {
        let until = Instant::now() + FIRST_WAIT_MAX;
        let mut changed = self.answers.watch();
        loop {
            changed.mark_unchanged();
            let undecided = match self.answers.begin(request) {
                Found::First(claim) => return Ok(Admitted::First(claim)),
                Found::Another => {
                    return Err(GroupError::refused(
                        RefusalReason::KeyReused,
                        "idempotency_key: it was used for another request on this instance; give \
                         each request a key of its own",
                    ));
                }
                Found::Known(answer) => match answer.fate {
                    Fate::Done => return Ok(Admitted::Again(answer)),
                    Fate::SetAside => {
                        return Err(GroupError::InDoubt {
                            reason: "the backend refused the transaction, or one before it, for \
                                     good; it was set aside until an administrator replays or \
                                     discards it"
                                .into(),
                        });
                    }
                    Fate::Unknown => {
                        return Err(GroupError::InDoubt {
                            reason:
                                "the node ended before it noted what the backend decided; read \
                                     the instance, then use another idempotency key"
                                    .into(),
                        });
                    }
                    Fate::Undecided => true,
                },
                Found::UnderWay => false,
            };
            let waited = tokio::time::timeout_at(until, changed.changed()).await;
            if !matches!(waited, Ok(Ok(()))) {
                return Err(match undecided {
                    true => GroupError::InDoubt {
                        reason: "the backend has not decided yet; the transaction stays queued \
                                 and will be sent"
                            .into(),
                    },
                    false => GroupError::Busy {
                        what: "the first request of this idempotency key is still under way",
                        retry_after: Duration::from_secs(1),
                    },
                });
            }
        }
    }

    /// Answers a repeated call as the first was, once that may be known.
    pub(crate) async fn answer_again(
        &self,
        request: &Request,
        answer: Answer,
        urgent: bool,
    ) -> Result<Transacted, GroupError> {
        self.visible(answer.durable_at).await?;
        let Answer { position, rows, .. } = answer;
        // what came with its slot was flushed before
        let here = position.journal == self.shared.journal.id() && position.sequence > 0;
        let slot = request.name.root.slot();
        if urgent && here && !self.reached(slot, position.sequence, FIRST_WAIT_MAX).await? {
            return Err(crate::write::not_yet_flushed());
        }
        if position.sequence == 0 {
            self.rest_on_what_is(&request.name.root, urgent).await?;
        }
        self.answers.note_repeat();
        Ok(Transacted { position, rows: rows.to_vec() })
    }

    /// Keeps the answer of a transaction that changed nothing: what others do later must not make
    /// the repeated one change something. `None` when the slot is not served here any more;
    /// otherwise the frame that must be durable before the answer leaves.
    pub(crate) fn remember_nothing(
        &self,
        claim: &Claim,
        rows: &[u32],
    ) -> Result<Option<u64>, GroupError> {
        let journal = &self.shared.journal;
        let mut word = 0;
        // under the table's lock, through which the answers of a slot that leaves pass after it
        // was frozen
        let kept = claim.settle(|| {
            if self.shared.slots.state(claim.request.name.root.slot()) != SlotState::Serving {
                return Ok(None);
            }
            let position = Position { journal: journal.id(), sequence: 0 };
            let rows = Arc::from(rows);
            let mut answer = Answer { position, rows, fate: Fate::Done, durable_at: 0 };
            let payload = frames::answered(&claim.request, &answer);
            let appended = journal.append(frames::KIND_ANSWERED, &payload);
            word = appended.map_err(crate::write::from_append)?.get();
            answer.durable_at = word;
            Ok::<_, GroupError>(Some(answer))
        })?;
        if kept {
            self.lanes.note(word);
        }
        Ok(kept.then_some(word))
    }

    /// The backend accepted a transaction: the journal says so before anybody hears of it, since its
    /// frame alone does not tell it from one that was refused. Answers the frame to wait for, 0 where
    /// there is none.
    pub(crate) fn note_acceptance(&self, sequence: u64) -> u64 {
        let Some((request, answer)) = self.answers.awaiting(sequence) else { return 0 };
        let payload = frames::answered(&request, &answer);
        let noted = self.journal_word(frames::KIND_ANSWERED, &payload);
        self.answers.accepted(sequence, noted);
        noted
    }

    /// Takes the answers of slots that come from another node. They are durable here before the
    /// slots are taken, so that a crash in between loses none.
    pub(crate) async fn adopt_answers(&self, moved: &[Bytes]) -> Result<(), Problem> {
        let journal = &self.shared.journal;
        let mut last = 0;
        for payload in moved {
            let (request, mut answer) = read_answer(frames::KIND_ANSWERED, payload)?;
            if self.answers.has(&request, &answer.position) {
                continue;
            }
            let appended = journal.append(frames::KIND_ANSWERED, payload);
            last = appended.map_err(|error| not_taken(&in_full(&error)))?.get();
            self.lanes.note(last);
            answer.durable_at = last;
            self.answers.put(&request, answer);
        }
        self.visible(last).await.map_err(|error| not_taken(&error.to_string()))
    }
}

fn not_taken(why: &str) -> Problem {
    Problem::new(
        "Journal",
        format!("slots are not taken, their answers cannot be kept: {why}"),
        true,
    )
}

fn read_answer(kind: u8, payload: &Bytes) -> Result<(Request, Answer), Problem> {
    match frames::decode(kind, payload) {
        Ok(Payload::Answered { request, answer }) => Ok((request, answer)),
        Ok(_) => Err(not_taken("the other node sent something else")),
        Err(error) => Err(not_taken(&error.to_string())),
    }
}

/// Fills the table from everything the journal still holds. Blocks. Frames carry no time: what is
/// found is kept for a whole window from now on.
pub(crate) fn recall(journal: &Journal, tail: &Tail<'_>, answers: &Answers) -> Result<(), Problem> {
    if !answers.are_kept() || cachetier_defects::on("r26-answers-forgotten") {
        return Ok(());
    }
    let unreadable = |why: &dyn std::error::Error| {
        let why = in_full(why);
        let message = format!("the journal's idempotency answers cannot be read: {why}");
        Problem::new("JournalUnreadable", message, true)
    };
    let reader = journal.read_from(Sequence::ZERO).map_err(|error| unreadable(&error))?;
    for frame in reader {
        let frame = frame.map_err(|error| unreadable(&error))?;
        let sequence = frame.sequence.get();
        match frame.kind {
            frames::KIND_TRANSACTION => {
                let keyed = frames::keyed(&frame.payload).map_err(|error| unreadable(&error))?;
                let Some(Keyed { request, rows, awaits_backend }) = keyed else { continue };
                let position = Position { journal: journal.id(), sequence };
                // what became of it stands behind it
                let fate = if awaits_backend { Fate::Undecided } else { Fate::Done };
                // everything found in a journal is synced
                answers.put(&request, Answer { position, rows, fate, durable_at: 0 });
            }
            kind => match frames::decode(kind, &frame.payload).map_err(|e| unreadable(&e))? {
                Payload::Annul { sequence } => answers.refused(sequence),
                Payload::Rejected { sequences, .. } => {
                    sequences.into_iter().for_each(|sequence| answers.set_aside(sequence));
                }
                Payload::Answered { request, answer } => answers.put(&request, answer),
                Payload::Transaction(_) => {}
            },
        }
    }
    for (sequence, root) in answers.undecided() {
        if tail.is_flushed(sequence, &root) {
            answers.unknown(sequence);
        }
    }
    Ok(())
}
