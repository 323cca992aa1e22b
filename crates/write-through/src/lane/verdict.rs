//! What the writer row says about a transaction whose outcome is unknown (D14).
//!
//! Pure. The position decides: it was written together with the rows.

use crate::backend::flush::WriterRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing of it happened and the row is as believed.
    NotDone,
    /// It happened.
    Done,
    /// The row is older than believed: the backend lost commits.
    Rewound { to: u64 },
    /// Another process of this journal, or a copy of its volume, has claimed.
    TokenTaken,
    /// No writer row.
    Missing,
    /// The position is one that this process never wrote.
    Unknown { found: u64 },
}

/// `believed` is the position before the attempt, `next` the one it would have written (the same
/// when nothing was attempted).
pub(super) fn judge(row: Option<&WriterRow>, token: u64, believed: u64, next: u64) -> Verdict {
    let Some(row) = row else { return Verdict::Missing };
    if row.token != token {
        return Verdict::TokenTaken;
    }
    match row.position {
        found if found == believed => Verdict::NotDone,
        found if found == next => Verdict::Done,
        found if found < believed => Verdict::Rewound { to: found },
        found => Verdict::Unknown { found },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::SlotSet;

    fn row(token: u64, position: u64) -> WriterRow {
        WriterRow { token, version: 1, epoch: 1, position, slots: SlotSet::empty() }
    }

    #[test]
    fn d14_the_position_decides_an_unknown_outcome() {
        assert_eq!(judge(Some(&row(7, 10)), 7, 10, 20), Verdict::NotDone);
        assert_eq!(judge(Some(&row(7, 20)), 7, 10, 20), Verdict::Done);
        assert_eq!(judge(Some(&row(7, 5)), 7, 10, 20), Verdict::Rewound { to: 5 });
        assert_eq!(judge(Some(&row(7, 15)), 7, 10, 20), Verdict::Unknown { found: 15 });
        assert_eq!(judge(Some(&row(8, 20)), 7, 10, 20), Verdict::TokenTaken);
        assert_eq!(judge(None, 7, 10, 20), Verdict::Missing);
    }
}
