//! Which child rows exist, packed into eight bytes per subscriber: all that decides whether a
//! transaction finds something.
//!
//! Read from the backend (or computed from a population) by the self-check; never written back.

use crate::population::tables::TABLES;
use crate::population::{START_TIMES, Subscriber};
use crate::traffic::Input;
use anyhow::Result;
use futures::TryStreamExt;
use std::pin::pin;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Bits 0..4 access types, 4..8 facility types, 8..12 active facilities, then twelve groups of four
/// bits: hours of the forwarding of (facility type, start), 0 when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape(u64);

impl Shape {
    pub fn of(subscriber: &Subscriber) -> Self {
        let mut shape = Self::default();
        for a in &subscriber.access {
            shape.add_access(a.ai_type);
        }
        for f in &subscriber.facilities {
            shape.add_facility(f.sf_type, f.is_active);
            for c in &f.forwardings {
                shape.add_forwarding(f.sf_type, c.start_time, c.end_time);
            }
        }
        shape
    }

    pub fn add_access(&mut self, ai_type: i16) {
        self.0 |= 1 << (ai_type - 1);
    }

    pub fn add_facility(&mut self, sf_type: i16, active: bool) {
        self.0 |= 1 << (sf_type + 3);
        self.0 |= u64::from(active) << (sf_type + 7);
    }

    pub fn add_forwarding(&mut self, sf_type: i16, start_time: i16, end_time: i16) {
        let hours = (end_time - start_time).clamp(1, 15) as u64;
        self.0 |= hours << forwarding_bit(sf_type, start_time);
    }

    pub fn access_count(self) -> u32 {
        (self.0 & 0xf).count_ones()
    }

    pub fn facility_count(self) -> u32 {
        (self.0 >> 4 & 0xf).count_ones()
    }

    pub fn active_count(self) -> u32 {
        (self.0 >> 8 & 0xf).count_ones()
    }

    pub fn forwarding_count(self) -> u32 {
        (0..12).filter(|n| self.0 >> (12 + 4 * n) & 0xf != 0).count() as u32
    }

    fn has_access(self, ai_type: i16) -> bool {
        self.0 >> (ai_type - 1) & 1 == 1
    }

    fn has_facility(self, sf_type: i16) -> bool {
        self.0 >> (sf_type + 3) & 1 == 1
    }

    fn is_active(self, sf_type: i16) -> bool {
        self.0 >> (sf_type + 7) & 1 == 1
    }

    fn hours(self, sf_type: i16, start_time: i16) -> i16 {
        (self.0 >> forwarding_bit(sf_type, start_time) & 0xf) as i16
    }

    /// Whether the transaction would find its rows, or insert where it may.
    pub fn hit(self, input: &Input) -> bool {
        match *input {
            Input::GetSubscriberData { .. } | Input::UpdateLocation { .. } => true,
            Input::GetNewDestination { sf_type, start_time, end_time, .. } => {
                self.is_active(sf_type)
                    && START_TIMES.into_iter().filter(|s| *s <= start_time).any(|s| {
                        let hours = self.hours(sf_type, s);
                        hours > 0 && s + hours > end_time
                    })
            }
            Input::GetAccessData { ai_type, .. } => self.has_access(ai_type),
            Input::UpdateSubscriberData { sf_type, .. } => self.has_facility(sf_type),
            Input::InsertCallForwarding { sf_type, start_time, .. } => {
                self.has_facility(sf_type) && self.hours(sf_type, start_time) == 0
            }
            Input::DeleteCallForwarding { sf_type, start_time, .. } => {
                self.hours(sf_type, start_time) > 0
            }
        }
    }
}

fn forwarding_bit(sf_type: i16, start_time: i16) -> u32 {
    12 + 4 * (3 * (sf_type - 1) as u32 + start_time as u32 / 8)
}

/// The shapes of subscribers 1..=`subscribers`, read from the backend. Index 0 is subscriber 1.
pub async fn read(client: &Client, schema: &str, subscribers: u64) -> Result<Vec<Shape>> {
    let mut shapes = vec![Shape::default(); usize::try_from(subscribers)?];
    let last = i64::try_from(subscribers)?;
    let [_, access_info, special_facility, call_forwarding] = TABLES;
    let sources = [
        (access_info, "ai_type, 0::smallint, 0::smallint"),
        (special_facility, "sf_type, is_active, 0::smallint"),
        (call_forwarding, "sf_type, start_time, end_time"),
    ];
    for (table, columns) in sources {
        let query = format!("SELECT s_id, {columns} FROM {schema}.{table} WHERE s_id <= $1");
        let parameters: [&(dyn ToSql + Sync); 1] = [&last];
        let rows = client.query_raw(&query, parameters).await?;
        let mut rows = pin!(rows);
        while let Some(row) = rows.try_next().await? {
            let s_id: i64 = row.get(0);
            let Some(shape) = usize::try_from(s_id - 1).ok().and_then(|n| shapes.get_mut(n)) else {
                continue;
            };
            let (a, b, c): (i16, i16, i16) = (row.get(1), row.get(2), row.get(3));
            match table {
                "access_info" => shape.add_access(a),
                "special_facility" => shape.add_facility(a, b == 1),
                _ => shape.add_forwarding(a, b, c),
            }
        }
    }
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarding_is_found_only_inside_its_hours_and_when_the_facility_is_active() {
        let mut shape = Shape::default();
        shape.add_facility(2, true);
        shape.add_forwarding(2, 8, 12);
        let ask = |sf_type, start_time, end_time| {
            shape.hit(&Input::GetNewDestination { s_id: 1, sf_type, start_time, end_time })
        };
        assert!(ask(2, 8, 11) && ask(2, 16, 11));
        assert!(!ask(2, 8, 12) && !ask(2, 0, 1) && !ask(3, 8, 11));
        let mut inactive = Shape::default();
        inactive.add_facility(2, false);
        inactive.add_forwarding(2, 8, 12);
        let input = Input::GetNewDestination { s_id: 1, sf_type: 2, start_time: 8, end_time: 9 };
        assert!(!inactive.hit(&input));
        assert_eq!((shape.forwarding_count(), shape.facility_count()), (1, 1));
    }
}
