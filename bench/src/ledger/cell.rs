//! The values one column may have, from when its writes began and ended.
//!
//! Of two acknowledged writes, the one that began after the other had ended is the later one;
//! writes at the same time may have happened in either order.

/// A column's value, or a whole row, as one number.
pub type Value = u64;

/// Overwritten values are kept for as long as a read that began before may take.
const KEEP_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Write {
    began_ns: u64,
    /// `u64::MAX` while it is not acknowledged.
    ended_ns: u64,
    /// When a later write was acknowledged; `u64::MAX` while none was.
    overwritten_ns: u64,
    /// `None`: as generated.
    value: Option<Value>,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    writes: Vec<Write>,
}

impl Default for Cell {
    fn default() -> Self {
        let generated = Write { began_ns: 0, ended_ns: 0, overwritten_ns: u64::MAX, value: None };
        Self { writes: vec![generated] }
    }
}

impl Cell {
    pub fn begin(&mut self, now_ns: u64, value: Value) {
        self.writes.push(Write {
            began_ns: now_ns,
            ended_ns: u64::MAX,
            overwritten_ns: u64::MAX,
            value: Some(value),
        });
    }

    pub fn acknowledge(&mut self, began_ns: u64, value: Value, now_ns: u64) {
        for write in &mut self.writes {
            if write.began_ns == began_ns && write.value == Some(value) {
                write.ended_ns = now_ns;
            } else if write.ended_ns < began_ns {
                write.overwritten_ns = write.overwritten_ns.min(now_ns);
            }
        }
        let oldest = now_ns.saturating_sub(KEEP_NS);
        self.writes.retain(|w| w.overwritten_ns > oldest);
    }

    pub fn withdraw(&mut self, began_ns: u64, value: Value) {
        self.writes.retain(|w| w.began_ns != began_ns || w.value != Some(value));
    }

    /// Whether a read that began then and ends now may show the value.
    pub fn may_show(&self, value: Value, generated: Value, read_began_ns: u64) -> bool {
        self.writes
            .iter()
            .any(|w| w.value.unwrap_or(generated) == value && w.overwritten_ns >= read_began_ns)
    }

    /// Values it may have once nothing is on its way.
    pub fn at_rest(&self) -> Vec<Option<Value>> {
        self.writes.iter().filter(|w| w.overwritten_ns == u64::MAX).map(|w| w.value).collect()
    }
}
