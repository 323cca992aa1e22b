//! What must hold, whatever happens: the contents each account may have, given what clients were
//! told, and what may stand in the database after each of its commits.
//!
//! Owns the account books and the first violation. Never looks into a node. A transaction whose
//! outcome is unknown to its client leaves two possible contents; a later read or the final
//! comparison decides between them, never both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::account::{Content, Deed, show};

/// What a client was told about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Done, at this place of this journal.
    Acknowledged { journal: String, sequence: u64 },
    /// Perhaps. `late`: it may still be decided after later reads.
    InDoubt { late: bool },
    /// Refused by a rule of the data.
    Refused { unique: bool, by_backend: bool },
    /// Nothing happened, for a reason that has nothing to do with the data.
    NotNow,
}

#[derive(Debug)]
struct Book {
    possible: BTreeSet<Content>,
    /// An undecided transaction may still come true after a read that did not show it.
    late: bool,
    /// The backend may have refused a transaction: the instance is forgotten then, and read again.
    forgotten: bool,
    /// Every content that may ever have stood, in order.
    past: Vec<Content>,
    /// Where in `past` the database stood last.
    stored: usize,
    /// What is under way, with what it would leave; and whether a read showed that already.
    open: BTreeSet<Content>,
    open_shown: bool,
    /// Grows with every change of this book.
    changes: u64,
    /// What was possible, from when on; only as far as a journal may lose it.
    recent: Vec<(Instant, BTreeSet<Content>)>,
}

/// What a read may show, as far as its beginning tells.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    changes: u64,
    past: usize,
    allowed: BTreeSet<Content>,
}

/// See the module.
#[derive(Debug)]
pub struct Oracle {
    books: BTreeMap<i64, Book>,
    /// Who ever asked for a number.
    numbers: BTreeMap<i64, BTreeSet<i64>>,
    /// The transaction that was acknowledged at a place of a journal.
    places: BTreeMap<(String, u64), String>,
    /// Newest token claimed, by node.
    tokens: BTreeMap<String, u64>,
    violation: Option<String>,
    pub acknowledged: u64,
    pub in_doubt: u64,
    pub reads: u64,
}

impl Oracle {
    pub fn new(accounts: impl IntoIterator<Item = (i64, Content)>) -> Self {
        let mut numbers: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
        let mut books = BTreeMap::new();
        for (id, content) in accounts {
            if let Some(account) = &content {
                numbers.entry(account.number).or_default().insert(id);
            }
            let possible = BTreeSet::from([content.clone()]);
            let recent = vec![(Instant::now(), possible.clone())];
            let past = vec![content];
            let book = Book {
                possible,
                late: false,
                forgotten: false,
                past,
                stored: 0,
                open: BTreeSet::new(),
                open_shown: false,
                changes: 0,
                recent,
            };
            books.insert(id, book);
        }
        Self {
            books,
            numbers,
            places: BTreeMap::new(),
            tokens: BTreeMap::new(),
            violation: None,
            acknowledged: 0,
            in_doubt: 0,
            reads: 0,
        }
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// The first one stays.
    pub fn violate(&mut self, words: impl Into<String>) {
        self.violation.get_or_insert_with(|| words.into());
    }

    pub fn ids(&self) -> Vec<i64> {
        self.books.keys().copied().collect()
    }

    pub fn possible(&self, id: i64) -> BTreeSet<Content> {
        self.books.get(&id).map(|book| book.possible.clone()).unwrap_or_default()
    }

    pub fn show(&self, id: i64) -> String {
        let all: Vec<String> = self.possible(id).iter().map(show).collect();
        all.join(" or ")
    }

    /// A client is about to ask for it.
    pub fn begin(&mut self, deed: &Deed) {
        if let Some(number) = deed.number() {
            self.numbers.entry(number).or_default().insert(deed.id);
        }
        let Some(book) = self.books.get_mut(&deed.id) else { return };
        let after: Vec<Content> = book.possible.iter().filter_map(|c| deed.apply(c)).collect();
        book.past.extend(after.iter().cloned());
        book.open = after.into_iter().collect();
        book.open_shown = false;
        book.changes += 1;
    }

    /// A client was told.
    pub fn told(&mut self, deed: &Deed, told: &Told) {
        let contested =
            deed.number().and_then(|n| self.numbers.get(&n)).is_some_and(|ids| ids.len() > 1);
        let Some(book) = self.books.get_mut(&deed.id) else { return };
        let after: BTreeSet<Content> = book.possible.iter().filter_map(|c| deed.apply(c)).collect();
        let mut wrong = None;
        // what a read showed is durable, whatever its own client was told
        let shown = std::mem::take(&mut book.open_shown);
        let open = std::mem::take(&mut book.open);
        book.changes += 1;
        let acknowledged = matches!(told, Told::Acknowledged { .. });
        book.forgotten |= deed.is_decided_by_backend() && !acknowledged;
        match told {
            Told::InDoubt { .. } if shown => book.possible = open,
            Told::NotNow | Told::Refused { .. } if shown => {
                wrong = Some("it did not happen, and a read showed it");
            }
            Told::Acknowledged { journal, sequence } => {
                self.acknowledged += 1;
                if after.is_empty() {
                    wrong = Some("acknowledged, and no content it may have had allows it");
                }
                let place = (journal.clone(), *sequence);
                let taken = self.places.insert(place, deed.to_string());
                if *sequence != 0 && taken.is_some() {
                    wrong = Some("acknowledged at a place of the journal that another one has");
                }
                book.possible = after;
                book.late = false;
            }
            Told::InDoubt { late } => {
                self.in_doubt += 1;
                book.possible.extend(after);
                book.late |= late;
            }
            Told::Refused { unique: true, .. } => {
                if !contested {
                    wrong = Some("refused for a number that nobody else ever asked for");
                }
            }
            Told::Refused { by_backend: true, .. } | Told::NotNow => {}
            Told::Refused { .. } => {
                book.possible.retain(|content| deed.apply(content).is_none());
                if book.possible.is_empty() {
                    wrong = Some("refused, and every content it may have had allows it");
                }
            }
        }
        book.recent.push((Instant::now(), book.possible.clone()));
        if let Some(wrong) = wrong {
            self.violate(format!("{deed}: {wrong}"));
        }
    }

    /// A read begins.
    pub fn glance(&self, id: i64) -> Glance {
        let Some(book) = self.books.get(&id) else { return Glance::default() };
        let allowed = book.possible.union(&book.open).cloned().collect();
        Glance { changes: book.changes, past: book.past.len(), allowed }
    }

    /// A client was shown this by a read that began with the glance.
    pub fn shown(&mut self, id: i64, content: &Content, glance: &Glance) {
        self.reads += 1;
        let Some(book) = self.books.get_mut(&id) else { return };
        if book.changes != glance.changes {
            // something was changed meanwhile: whatever stood since the read began will do
            let since = book.past.get(glance.past..).unwrap_or_default();
            if !glance.allowed.contains(content) && !since.contains(content) {
                let words = format!("account {id}: read {} beside changes", show(content));
                self.violate(words);
            }
            return;
        }
        if book.open.contains(content) && !book.possible.contains(content) {
            book.open_shown = true;
            return;
        }
        if !book.possible.contains(content) {
            let expected = self.show(id);
            let words = format!("account {id}: read {}, expected {expected}", show(content));
            return self.violate(words);
        }
        if !book.late && book.open.is_empty() {
            book.possible = BTreeSet::from([content.clone()]);
            book.recent.push((Instant::now(), book.possible.clone()));
        }
    }

    /// A journal with relaxed durability lost what it had not synced for this long.
    pub fn journal_lost(&mut self, window: Duration) {
        let now = Instant::now();
        for book in self.books.values_mut() {
            let current = |(_, next): &(usize, Instant)| now.duration_since(*next) <= window;
            // a content counts until the next one took its place
            let ends = book.recent.iter().skip(1).map(|(since, _)| *since).chain([now]);
            let ends: Vec<(usize, Instant)> = ends.enumerate().filter(current).collect();
            for (index, _) in ends {
                if let Some((_, possible)) = book.recent.get(index) {
                    book.possible.extend(possible.iter().cloned());
                }
            }
            book.recent.push((now, book.possible.clone()));
        }
    }

    /// Something is asked for, and its client was not told yet.
    pub fn is_busy(&self, id: i64) -> bool {
        self.books.get(&id).is_some_and(|book| !book.open.is_empty())
    }

    /// A slot that counts as loaded has it in memory.
    pub fn stays_loaded(&self, id: i64) -> bool {
        self.books.get(&id).is_some_and(|book| !book.forgotten && book.open.is_empty())
    }

    /// What only a node knew that has lost its slots by hand is given up; this is left.
    pub fn given_up(&mut self, id: i64, held: &Content) {
        let Some(book) = self.books.get_mut(&id) else { return };
        book.possible = BTreeSet::from([held.clone()]);
        book.late = false;
        book.past.push(held.clone());
        book.changes += 1;
        book.recent.push((Instant::now(), book.possible.clone()));
    }

    /// A journal was claimed.
    pub fn claimed(&mut self, node: &str, token: u64) {
        let newest = self.tokens.insert(node.to_owned(), token).unwrap_or_default();
        if token <= newest {
            self.violate(format!("{node} was given token {token}, and {newest} before"));
        }
    }

    /// The newest token of a node.
    pub fn token(&self, node: &str) -> u64 {
        self.tokens.get(node).copied().unwrap_or_default()
    }

    /// The database committed for this claim.
    pub fn committed_by(&mut self, node: &str, token: u64) {
        let newest = self.tokens.get(node).copied().unwrap_or_default();
        if token != newest {
            self.violate(format!(
                "the database committed for token {token} of {node}, the newest is {newest}"
            ));
        }
    }

    /// After a commit the database holds this.
    pub fn stored(&mut self, id: i64, content: &Content) {
        let Some(book) = self.books.get_mut(&id) else {
            let words = format!("account {id} is in the database, and nobody opened it");
            return self.violate(words);
        };
        let later = book.past.iter().enumerate().skip(book.stored);
        let found = later.filter(|(_, past)| *past == content).map(|(index, _)| index).next();
        match found {
            Some(index) => book.stored = index,
            None => {
                let before = book.past.get(book.stored).map(show).unwrap_or_default();
                let what = if book.past.contains(content) {
                    "which is older than what it held before"
                } else {
                    "which never stood"
                };
                let words = format!(
                    "account {id}: the database holds {}, {what} ({before})",
                    show(content)
                );
                self.violate(words);
            }
        }
    }

    /// The database lost commits.
    pub fn database_went_back(&mut self) {
        self.books.values_mut().for_each(|book| book.stored = 0);
    }
}
