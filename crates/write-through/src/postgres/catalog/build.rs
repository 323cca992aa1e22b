//! From the catalogs' facts to a group's schema, or to a refusal that names the table, the column
//! and the fix. Pure.

use super::column_types::column_type;
use super::{ACT, ColumnFacts, ConstraintFacts, Facts, TableFacts};
use crate::error::{BackendError, Reason};
use crate::postgres::sql::qualified;
use cachetier_model::node_config::{TableConfig, parents_first};
use cachetier_model::schema::{ExternalKey, LookupSchema, ParentKey, ReferentialAction, UniqueKey};
use cachetier_model::{Column, ColumnId, GroupSchema, TableSchema};

pub(super) fn build(
    schema: &str,
    tables: &[TableConfig],
    facts: &Facts,
) -> Result<GroupSchema, BackendError> {
    let ordered = parents_first(tables)
        .map_err(|error| BackendError::new(ACT, Reason::Configuration, error.to_string()))?;
    let mut built =
        GroupSchema { backend_schema: schema.to_owned(), tables: Vec::new(), lookups: Vec::new() };
    for config in &ordered {
        let found = facts.tables.iter().find(|t| t.name == config.name).ok_or_else(|| {
            refuse(
                Reason::TableMissing,
                &config.name,
                format!(
                    "table {} does not exist, or the role may not see its schema",
                    qualified(schema, &config.name)
                ),
            )
        })?;
        let table = table(&built, config, &ordered, facts, found)?;
        built.tables.push(table);
    }
    built.lookups = lookups(&built, ordered.first().copied(), facts)?;
    Ok(built)
}

fn refuse(reason: Reason, table: &str, message: String) -> BackendError {
    BackendError { table: Some(table.into()), ..BackendError::new(ACT, reason, message) }
}

fn refused(table: &str, message: String) -> BackendError {
    refuse(Reason::SchemaRefused, table, format!("table {table}: {message}"))
}

fn table(
    built: &GroupSchema,
    config: &TableConfig,
    ordered: &[&TableConfig],
    all: &Facts,
    facts: &TableFacts,
) -> Result<TableSchema, BackendError> {
    let name = &facts.name;
    check_table(facts)?;
    let columns: Vec<Column> =
        facts.columns.iter().map(|c| column(name, c)).collect::<Result<_, _>>()?;
    let ids = |numbers: &[i16]| column_ids(facts, numbers);
    let primary = facts.constraints.iter().find(|c| c.kind == "p").ok_or_else(|| {
        refused(name, "it has no primary key; add one, the cache tells rows apart by it".to_owned())
    })?;
    let primary_key = ids(&primary.columns);
    let parent = config.parent.as_ref().and_then(|p| built.table_id(p));
    let (parent_key, root_key) = match parent {
        None => (None, primary_key.clone()),
        Some(parent) => {
            let (key, root) = parent_key(built, parent, all, facts)?;
            (Some(key), root)
        }
    };
    for column in primary_key.iter().chain(&root_key) {
        check_key_column(name, facts.columns.get(*column))?;
    }
    let parent_constraint = parent_key.as_ref().map(|k| k.constraint.as_str());
    let external_keys = external_keys(built, ordered, facts, parent_constraint)?;
    let mut unique_keys = unique_keys(facts);
    if !root_key.iter().all(|c| primary_key.contains(c)) {
        // unique beyond its own instance: only the backend can tell
        unique_keys
            .push(UniqueKey { constraint: primary.name.clone(), columns: primary_key.clone() });
    }
    Ok(TableSchema {
        name: name.clone(),
        parent,
        columns,
        primary_key,
        primary_key_constraint: primary.name.clone(),
        root_key,
        parent_key,
        unique_keys,
        external_keys,
    })
}

fn check_table(facts: &TableFacts) -> Result<(), BackendError> {
    let name = &facts.name;
    match facts.kind.as_str() {
        "r" | "p" => {}
        "v" | "m" => {
            return Err(refused(name, "it is a view; name the table behind it".to_owned()));
        }
        _ => return Err(refused(name, "it is a foreign table, which has no keys".to_owned())),
    }
    if !facts.missing_privileges.is_empty() {
        let missing = facts.missing_privileges.join(", ");
        let message = format!(
            "table {name}: the role lacks {missing}; grant them (`cachectl ddl` prints how)"
        );
        return Err(refuse(Reason::PrivilegeMissing, name, message));
    }
    if facts.row_security {
        return Err(refused(
            name,
            "row security hides rows from the role; give the role BYPASSRLS or turn it off"
                .to_owned(),
        ));
    }
    if facts.rewrite_rules {
        let message = "a rewrite rule changes its statements; replace it by a trigger";
        return Err(refused(name, message.to_owned()));
    }
    Ok(())
}

fn column(table: &str, facts: &ColumnFacts) -> Result<Column, BackendError> {
    let name = &facts.name;
    if !facts.generated.is_empty() {
        return Err(refused(
            table,
            format!("column {name} is generated: the cache could not know its value; drop it"),
        ));
    }
    if facts.identity == "a" {
        return Err(refused(
            table,
            format!(
                "column {name} is GENERATED ALWAYS AS IDENTITY: the cache could not write it; \
                 ALTER TABLE {table} ALTER {name} SET GENERATED BY DEFAULT"
            ),
        ));
    }
    let column_type = column_type(facts).ok_or_else(|| {
        refused(
            table,
            format!(
                "column {name} has the unsupported type {}; leave the table out or change the \
                 column's type",
                facts.type_text
            ),
        )
    })?;
    Ok(Column {
        name: name.clone(),
        column_type,
        not_null: facts.not_null,
        has_default: facts.has_default,
        orders_by_bytes: facts.orders_by_bytes,
    })
}

fn check_key_column(table: &str, column: Option<&ColumnFacts>) -> Result<(), BackendError> {
    let Some(column) = column else { return Ok(()) };
    let name = &column.name;
    if !column.collation_deterministic {
        return Err(refused(
            table,
            format!(
                "key column {name} has a nondeterministic collation: keys of different bytes \
                 would be equal; give it a deterministic one"
            ),
        ));
    }
    let unfit = column_type(column).is_some_and(|of| !of.can_be_key());
    if unfit || matches!(column.type_name.as_str(), "json" | "jsonb") {
        return Err(refused(table, format!("key column {name} is {}", column.type_text)));
    }
    if !column.not_null {
        return Err(refused(
            table,
            format!("key column {name} may be NULL; ALTER TABLE {table} ALTER {name} SET NOT NULL"),
        ));
    }
    Ok(())
}

/// The foreign key to the parent, and the columns that hold the root key.
fn parent_key(
    built: &GroupSchema,
    parent: usize,
    all: &Facts,
    facts: &TableFacts,
) -> Result<(ParentKey, Vec<ColumnId>), BackendError> {
    let name = &facts.name;
    let above = built.table(parent).ok_or_else(|| refused(name, "no parent".to_owned()))?;
    let above_facts = all.tables.iter().find(|t| t.name == above.name);
    let candidates: Vec<&ConstraintFacts> = facts
        .constraints
        .iter()
        .filter(|c| c.kind == "f" && c.references == above.name)
        .filter(|c| c.references_schema == built.backend_schema)
        .collect();
    if candidates.is_empty() {
        return Err(refused(name, format!("it has no foreign key to its parent {}", above.name)));
    }
    let mut missing = String::new();
    for key in candidates {
        if !key.validated {
            return Err(refused(
                name,
                format!("foreign key {0} is NOT VALID; VALIDATE CONSTRAINT {0}", key.name),
            ));
        }
        let columns = column_ids(facts, &key.columns);
        let parent_columns =
            above_facts.map(|f| column_ids(f, &key.references_columns)).unwrap_or_default();
        let carried: Vec<Option<ColumnId>> = above
            .root_key
            .iter()
            .map(|root| {
                let at = parent_columns.iter().position(|c| c == root)?;
                columns.get(at).copied()
            })
            .collect();
        if let Some(lost) = carried.iter().position(Option::is_none) {
            let column = above.root_key.get(lost).and_then(|c| above.column(*c));
            missing = column.map(|c| c.name.clone()).unwrap_or_default();
            continue;
        }
        let on_delete = match key.on_delete.as_str() {
            "r" => ReferentialAction::Restrict,
            "c" => ReferentialAction::Cascade,
            "n" => ReferentialAction::SetNull,
            "d" => ReferentialAction::SetDefault,
            _ => ReferentialAction::NoAction,
        };
        let parent_key =
            ParentKey { constraint: key.name.clone(), columns, parent_columns, on_delete };
        return Ok((parent_key, carried.into_iter().flatten().collect()));
    }
    Err(refused(
        name,
        format!(
            "its foreign key to {} does not carry the root key column {missing}; add the column \
             to the table and to the key",
            above.name
        ),
    ))
}

fn external_keys(
    built: &GroupSchema,
    ordered: &[&TableConfig],
    facts: &TableFacts,
    parent_constraint: Option<&str>,
) -> Result<Vec<ExternalKey>, BackendError> {
    let mut keys = Vec::new();
    let others = |c: &&ConstraintFacts| c.kind == "f" && Some(c.name.as_str()) != parent_constraint;
    for key in facts.constraints.iter().filter(others) {
        let inside = key.references_schema == built.backend_schema;
        let later = inside
            && key.references != facts.name
            && built.table_id(&key.references).is_none()
            && ordered.iter().any(|t| t.name == key.references);
        if later {
            return Err(refused(
                &facts.name,
                format!(
                    "foreign key {} references {}, which stands after it; list {} first",
                    key.name, key.references, key.references
                ),
            ));
        }
        let references = if inside {
            key.references.clone()
        } else {
            format!("{}.{}", key.references_schema, key.references)
        };
        keys.push(ExternalKey {
            constraint: key.name.clone(),
            columns: column_ids(facts, &key.columns),
            references,
        });
    }
    Ok(keys)
}

fn unique_keys(facts: &TableFacts) -> Vec<UniqueKey> {
    let constraints = facts.constraints.iter().filter(|c| c.kind == "u" || c.kind == "x");
    let constraints = constraints.map(|c| (&c.name, &c.columns));
    let indexes = facts.unique_indexes.iter().map(|i| (&i.name, &i.columns));
    constraints
        .chain(indexes)
        .map(|(name, numbers)| UniqueKey {
            constraint: name.clone(),
            columns: column_ids(facts, numbers),
        })
        .collect()
}

fn lookups(
    built: &GroupSchema,
    root: Option<&TableConfig>,
    facts: &Facts,
) -> Result<Vec<LookupSchema>, BackendError> {
    let (Some(config), Some(table)) = (root, built.root()) else { return Ok(Vec::new()) };
    let Some(found) = facts.tables.iter().find(|t| t.name == table.name) else {
        return Ok(Vec::new());
    };
    let mut lookups = Vec::new();
    for names in &config.lookup_keys {
        let mut columns = Vec::new();
        for name in names {
            let column = table.column_id(name).ok_or_else(|| {
                refuse(
                    Reason::ColumnMissing,
                    &table.name,
                    format!("table {}: lookup key column {name} does not exist", table.name),
                )
            })?;
            let facts = found.columns.get(column);
            if facts.is_some_and(|c| !c.collation_deterministic) {
                check_key_column(&table.name, facts)?;
            }
            columns.push(column);
        }
        let constraint = unique_over(found, &columns).ok_or_else(|| {
            refused(
                &table.name,
                format!(
                    "lookup key ({}) has no unique constraint over exactly these columns; add one",
                    names.join(", ")
                ),
            )
        })?;
        lookups.push(LookupSchema { columns, constraint });
    }
    Ok(lookups)
}

/// Name of a constraint or plain unique index over exactly these columns.
fn unique_over(facts: &TableFacts, columns: &[ColumnId]) -> Option<String> {
    let same = |numbers: &[i16]| {
        let ids = column_ids(facts, numbers);
        ids.len() == columns.len() && ids.iter().all(|c| columns.contains(c))
    };
    let constraint = facts
        .constraints
        .iter()
        .find(|c| matches!(c.kind.as_str(), "u" | "p") && same(&c.columns))
        .map(|c| c.name.clone());
    let index = || facts.unique_indexes.iter().find(|i| i.plain && same(&i.columns));
    constraint.or_else(|| index().map(|i| i.name.clone()))
}

fn column_ids(facts: &TableFacts, numbers: &[i16]) -> Vec<ColumnId> {
    let id = |n: &i16| facts.columns.iter().position(|c| c.number == *n);
    numbers.iter().filter_map(id).collect()
}
