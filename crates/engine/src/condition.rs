//! Conditions on rows, checked against the schema once and evaluated per row.

use crate::EngineError;
use crate::layout::{Scratch, View};
use cachetier_model::{
    ColumnId, ColumnType, Comparability, Comparison, Condition, Row, TableSchema, Value,
    ValueError, ValueRef,
};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// Conditions of one request on one table; all must hold.
pub(crate) struct Conditions<'a> {
    terms: SmallVec<[Term<'a>; 2]>,
}

struct Term<'a> {
    column: ColumnId,
    column_type: &'a ColumnType,
    comparison: Comparison,
    values: SmallVec<[Value; 1]>,
}

impl<'a> Conditions<'a> {
    pub(crate) fn none() -> Self {
        Self { terms: SmallVec::new() }
    }

    pub(crate) fn prepare(
        table: &'a TableSchema,
        conditions: &[Condition],
    ) -> Result<Self, EngineError> {
        let mut terms = SmallVec::new();
        for condition in conditions {
            terms.push(Term::prepare(table, condition)?);
        }
        Ok(Self { terms })
    }

    pub(crate) fn hold(&self, row: &Row) -> bool {
        let holds = |term: &Term<'_>| {
            row.get(term.column).is_some_and(|value| term.holds(value.as_value_ref()))
        };
        self.terms.iter().all(holds)
    }

    /// The same for a packed row.
    #[inline]
    pub(crate) fn hold_packed(
        &self,
        view: &View<'_>,
        root: Option<&View<'_>>,
        row: usize,
        scratch: &mut Scratch,
    ) -> bool {
        self.terms.iter().all(|term| term.holds(view.value(root, row, term.column, scratch)))
    }
}

impl<'a> Term<'a> {
    fn prepare(table: &'a TableSchema, condition: &Condition) -> Result<Self, EngineError> {
        let column = table.columns.get(condition.column).ok_or_else(|| {
            EngineError::Unknown(format!("column {} of table {}", condition.column, table.name))
        })?;
        let named = || (table.name.clone(), column.name.clone());
        let comparison = condition.comparison;
        let (fits, expected) = match comparison {
            Comparison::IsNull | Comparison::IsNotNull => (condition.values.is_empty(), "no"),
            Comparison::In => (true, "any number of"),
            _ => (condition.values.len() == 1, "exactly one"),
        };
        if !fits {
            let (table, column) = named();
            return Err(EngineError::Operands { table, column, expected });
        }
        let ordering = matches!(
            comparison,
            Comparison::Less
                | Comparison::LessOrEqual
                | Comparison::Greater
                | Comparison::GreaterOrEqual
        );
        let equality =
            matches!(comparison, Comparison::Equal | Comparison::NotEqual | Comparison::In);
        match column.column_type.comparability() {
            Comparability::TextOrder if ordering && !column.orders_by_bytes => {
                let (table, column) = named();
                return Err(EngineError::NotOrdered { table, column });
            }
            Comparability::Nothing if ordering || equality => {
                return Err(not_comparable(named(), &column.column_type));
            }
            Comparability::Equality if ordering => {
                return Err(not_comparable(named(), &column.column_type));
            }
            _ => {}
        }
        let operand = |value: &Value| match column.column_type.check(value) {
            Ok(value) => Ok(value),
            // what no row can hold compares as it stands
            Err(ValueError::Range { .. } | ValueError::TooLong { .. }) => Ok(value.clone()),
            Err(source) => {
                let (table, column) = named();
                Err(EngineError::Value { table, column, source })
            }
        };
        let mut values = SmallVec::new();
        for value in &condition.values {
            values.push(operand(value)?);
        }
        Ok(Self { column: condition.column, column_type: &column.column_type, comparison, values })
    }

    #[inline]
    fn holds(&self, value: ValueRef<'_>) -> bool {
        let with = |operand: &Value| self.column_type.compare_refs(value, operand.as_value_ref());
        let compare = || self.values.first().and_then(with);
        match self.comparison {
            Comparison::Equal => compare() == Some(Ordering::Equal),
            Comparison::NotEqual => compare().is_some_and(Ordering::is_ne),
            Comparison::Less => compare().is_some_and(Ordering::is_lt),
            Comparison::LessOrEqual => compare().is_some_and(Ordering::is_le),
            Comparison::Greater => compare().is_some_and(Ordering::is_gt),
            Comparison::GreaterOrEqual => compare().is_some_and(Ordering::is_ge),
            Comparison::In => {
                self.values.iter().any(|operand| with(operand) == Some(Ordering::Equal))
            }
            Comparison::IsNull => value.is_null(),
            Comparison::IsNotNull => !value.is_null(),
        }
    }
}

fn not_comparable((table, column): (String, String), column_type: &ColumnType) -> EngineError {
    EngineError::NotComparable { table, column, sql_type: column_type.sql_name() }
}
