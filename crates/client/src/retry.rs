//! Whether to try again, and after which pause. Pure.

use crate::error::{ClientError, Reason};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// Repeated only when the answer proves that nothing happened.
    Write,
    /// Has an idempotency key: repeated also when nobody knows whether it happened.
    KeyedWrite,
}

/// The pause before the next attempt, or `None` when the error goes to the caller.
pub(crate) fn pause(kind: Kind, attempt: u32, error: &ClientError) -> Option<Duration> {
    let again = match error {
        ClientError::Unreachable { .. } | ClientError::Unsent { .. } => true,
        ClientError::Interrupted { .. } => kind != Kind::Write,
        ClientError::Refused(refusal) => match refusal.reason {
            reason if reason.retry_is_safe() => true,
            // A read changes nothing, so another node may be asked.
            Reason::PeerAway | Reason::BackendAway => kind == Kind::Read,
            Reason::Latched => kind != Kind::Write,
            Reason::InDoubt => kind == Kind::KeyedWrite,
            _ => false,
        },
        _ => false,
    };
    if !again {
        return None;
    }
    // A wrong turn costs nothing to correct.
    if error.reason() == Some(Reason::NotOwner) && attempt == 0 {
        return Some(Duration::ZERO);
    }
    let grown = FIRST_PAUSE.saturating_mul(1 << attempt.min(6)).min(LONGEST_PAUSE);
    Some(error.retry_after().map_or(grown, |hint| hint.min(LONGEST_PAUSE)))
}

/// What earlier tries of a write with an idempotency key left open.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    first: Option<ClientError>,
}

impl Doubt {
    /// A try ended with this, and another follows.
    pub(crate) fn note(&mut self, error: ClientError) {
        if self.first.is_none() && error.in_doubt() {
            self.first = Some(error);
        }
    }

    /// What the caller is told when no try follows: an earlier one that may have happened outlives
    /// a later one that says only of itself that it did not.
    pub(crate) fn last_word(self, error: ClientError) -> ClientError {
        match self.first {
            Some(first) if !error.reason().is_some_and(Reason::settles_key) => first,
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;
    use cachetier_proto::v1::ErrorDetail;
    use tonic::Code;

    fn refused(reason: Reason) -> ClientError {
        ClientError::Refused(Box::new(Refusal {
            node: "n".into(),
            code: Code::Unavailable,
            reason,
            message: String::new(),
            detail: ErrorDetail::default(),
        }))
    }

    #[test]
    fn a_write_is_repeated_only_when_nothing_happened() {
        let lost = ClientError::Interrupted { node: "n".into(), message: String::new() };
        assert_eq!(pause(Kind::Write, 0, &lost), None);
        assert!(pause(Kind::Read, 0, &lost).is_some());
        let unsent = ClientError::Unsent { node: "n".into(), message: String::new() };
        assert!(pause(Kind::Write, 0, &unsent).is_some());
        assert!(pause(Kind::Write, 0, &refused(Reason::SlotMoving)).is_some());
        assert_eq!(pause(Kind::Write, 0, &refused(Reason::InDoubt)), None);
        assert_eq!(pause(Kind::Write, 0, &refused(Reason::Latched)), None);
        assert_eq!(pause(Kind::Write, 3, &refused(Reason::BacklogFull)), None);
        assert_eq!(pause(Kind::Read, 0, &refused(Reason::GuardFailed)), None);
    }

    #[test]
    fn r26_a_write_with_a_key_is_repeated_while_its_outcome_is_unknown() {
        let lost = ClientError::Interrupted { node: "n".into(), message: String::new() };
        assert!(pause(Kind::KeyedWrite, 0, &lost).is_some());
        assert!(pause(Kind::KeyedWrite, 0, &refused(Reason::InDoubt)).is_some());
        assert!(pause(Kind::KeyedWrite, 0, &refused(Reason::Latched)).is_some());
        assert_eq!(pause(Kind::KeyedWrite, 0, &refused(Reason::GuardFailed)), None);
        assert_eq!(pause(Kind::KeyedWrite, 0, &refused(Reason::KeyReused)), None);
    }

    #[test]
    fn r26_a_try_that_may_have_happened_is_not_forgotten_for_a_later_refusal() {
        let doubtful = |error: ClientError| {
            let mut doubt = Doubt::default();
            doubt.note(refused(Reason::InDoubt));
            doubt.note(refused(Reason::Starting));
            doubt.last_word(error).in_doubt()
        };
        assert!(doubtful(refused(Reason::Starting)));
        let away = ClientError::Unreachable { node: "n".into(), message: String::new() };
        assert!(doubtful(away));
        assert!(!doubtful(refused(Reason::GuardFailed)), "the owner knows that none happened");
        assert!(!Doubt::default().last_word(refused(Reason::Starting)).in_doubt());
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let away = ClientError::Unreachable { node: "n".into(), message: String::new() };
        assert_eq!(pause(Kind::Read, 0, &away), Some(FIRST_PAUSE));
        assert_eq!(pause(Kind::Read, 40, &away), Some(LONGEST_PAUSE));
    }
}
