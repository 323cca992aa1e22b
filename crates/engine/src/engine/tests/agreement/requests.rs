//! Random requests to an instance, most of them sensible.

use super::*;

impl World {
    fn row(&self, table: usize, key: &Row, random: &mut ChaCha8Rng) -> Row {
        let shape = &self.schema.tables[table];
        let mut row = samples::random_row(shape, random);
        if random.random_bool(0.97) {
            row[..shape.root_key.len()].clone_from_slice(&key[..shape.root_key.len()]);
        }
        row
    }

    pub(super) fn conditions(&self, table: usize, random: &mut ChaCha8Rng) -> Vec<Condition> {
        use Comparison::*;
        let shape = &self.schema.tables[table];
        (0..random.random_range(0..2))
            .map(|_| {
                let column = random.random_range(0..shape.columns.len());
                let comparison = match random.random_range(0..12) {
                    0..4 => Equal,
                    4 => NotEqual,
                    5 => Less,
                    6 => LessOrEqual,
                    7 => Greater,
                    8 => GreaterOrEqual,
                    9 => In,
                    10 => IsNull,
                    _ => IsNotNull,
                };
                let count = match comparison {
                    IsNull | IsNotNull => 0,
                    In => 2,
                    _ => 1,
                };
                let value = |_| samples::random_value(&shape.columns[column], random);
                Condition { column, comparison, values: (0..count).map(value).collect() }
            })
            .collect()
    }

    pub(super) fn transaction(&self, key: &Row, random: &mut ChaCha8Rng) -> Transaction {
        let table = |random: &mut ChaCha8Rng| random.random_range(0..self.schema.tables.len());
        let mut transaction = Transaction::default();
        if random.random_bool(0.1) {
            let table = table(random);
            let conditions = self.conditions(table, random);
            transaction.guards.push(Guard::Exists { table, conditions });
        }
        for _ in 0..random.random_range(1..4) {
            let table = table(random);
            let conditions = self.conditions(table, random);
            let expect = random.random_bool(0.1).then_some(1);
            transaction.operations.push(match random.random_range(0..10) {
                0..4 => Operation::Insert { table, row: self.row(table, key, random) },
                4 => Operation::Upsert { table, row: self.row(table, key, random) },
                5..8 => {
                    let shape = &self.schema.tables[table];
                    let column = random.random_range(0..shape.columns.len());
                    let value = samples::random_value(&shape.columns[column], random);
                    Operation::Update { table, conditions, set: vec![(column, value)], expect }
                }
                _ => Operation::Delete { table, conditions, expect },
            });
        }
        transaction
    }

    /// Rows and columns chosen from the packed form are those chosen from the whole rows.
    pub(super) fn check_plan(&mut self, key: &RootKey, random: &mut ChaCha8Rng) {
        let mut plan = cachetier_model::ReadPlan::default();
        for _ in 0..random.random_range(1..3) {
            let table = random.random_range(0..self.schema.tables.len());
            let all = 0..self.schema.tables[table].columns.len();
            let columns = all.clone().filter(|_| random.random_bool(0.3));
            let columns = columns.chain(all.clone().take(1)).collect();
            let conditions = self.conditions(table, random);
            plan.tables.push(cachetier_model::TableRead { table, columns, conditions });
        }
        let Ok(ReadAnswer::Found { tables, .. }) = self.engine.read(key, &plan) else { return };
        let seen = self.seen_at(key);
        let wanted = plan.tables.iter().map(|read| {
            let schema = &self.schema.tables[read.table];
            let rows = seen.tables[read.table].iter();
            let rows = rows.filter(|row| naive::holds(schema, row, &read.conditions));
            rows.map(|row| read.columns.iter().map(|c| row[*c].clone()).collect()).collect()
        });
        let wanted = Instance { tables: wanted.collect() };
        assert!(samples::same(&Instance { tables }, &wanted), "{plan:?} {wanted:?}");
        self.meet("plan");
    }
}
