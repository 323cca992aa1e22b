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
}

/// The pause before the next attempt, or `None` when the error goes to the caller.
pub(crate) fn pause(kind: Kind, attempt: u32, error: &ClientError) -> Option<Duration> {
    let again = match error {
        ClientError::Unreachable { .. } | ClientError::Unsent { .. } => true,
        ClientError::Interrupted { .. } => kind == Kind::Read,
        ClientError::Refused(refusal) => match refusal.reason {
            reason if reason.retry_is_safe() => true,
            // A read changes nothing, so another node may be asked.
            Reason::Latched | Reason::PeerAway | Reason::BackendAway => kind == Kind::Read,
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
        assert_eq!(pause(Kind::Write, 3, &refused(Reason::BacklogFull)), None);
        assert_eq!(pause(Kind::Read, 0, &refused(Reason::GuardFailed)), None);
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let away = ClientError::Unreachable { node: "n".into(), message: String::new() };
        assert_eq!(pause(Kind::Read, 0, &away), Some(FIRST_PAUSE));
        assert_eq!(pause(Kind::Read, 40, &away), Some(LONGEST_PAUSE));
    }
}
