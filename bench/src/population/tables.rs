//! The four tables of the HLR schema and the DDL that makes them.

/// Names, parents before children.
pub const TABLES: [&str; 4] = ["subscriber", "access_info", "special_facility", "call_forwarding"];

/// Columns of each table, in the order of the DDL and of the rows that `copy` writes.
pub fn columns(table: &str) -> Vec<String> {
    let plain = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    match table {
        "subscriber" => {
            let numbered = |stem: &'static str| (1..=10).map(move |n| format!("{stem}_{n}"));
            plain(&["s_id", "sub_nbr"])
                .into_iter()
                .chain(numbered("bit"))
                .chain(numbered("hex"))
                .chain(numbered("byte2"))
                .chain(plain(&["msc_location", "vlr_location"]))
                .collect()
        }
        "access_info" => plain(&["s_id", "ai_type", "data1", "data2", "data3", "data4"]),
        "special_facility" => {
            plain(&["s_id", "sf_type", "is_active", "error_cntrl", "data_a", "data_b"])
        }
        _ => plain(&["s_id", "sf_type", "start_time", "end_time", "numberx"]),
    }
}

/// `CREATE TABLE` statements without the constraints, which go on after the rows are in.
pub fn create(schema: &str) -> Vec<String> {
    let numbered = |stem: &str| {
        (1..=10).map(|n| format!("{stem}_{n} smallint NOT NULL")).collect::<Vec<_>>().join(", ")
    };
    vec![
        format!("CREATE SCHEMA IF NOT EXISTS {schema}"),
        format!(
            "CREATE TABLE {schema}.subscriber (s_id bigint NOT NULL, \
             sub_nbr varchar(15) NOT NULL, {}, {}, {}, \
             msc_location bigint NOT NULL, vlr_location bigint NOT NULL)",
            numbered("bit"),
            numbered("hex"),
            numbered("byte2")
        ),
        format!(
            "CREATE TABLE {schema}.access_info (s_id bigint NOT NULL, ai_type smallint NOT NULL, \
             data1 smallint NOT NULL, data2 smallint NOT NULL, data3 char(3) NOT NULL, \
             data4 char(5) NOT NULL)"
        ),
        format!(
            "CREATE TABLE {schema}.special_facility (s_id bigint NOT NULL, \
             sf_type smallint NOT NULL, is_active smallint NOT NULL, \
             error_cntrl smallint NOT NULL, data_a smallint NOT NULL, data_b char(5) NOT NULL)"
        ),
        format!(
            "CREATE TABLE {schema}.call_forwarding (s_id bigint NOT NULL, \
             sf_type smallint NOT NULL, start_time smallint NOT NULL, \
             end_time smallint NOT NULL, numberx varchar(15) NOT NULL)"
        ),
    ]
}

/// Keys and foreign keys, each with what it builds.
pub fn constrain(schema: &str) -> Vec<(&'static str, String)> {
    let key = |table: &str, columns: &str| {
        format!("ALTER TABLE {schema}.{table} ADD PRIMARY KEY ({columns})")
    };
    let foreign = |table: &str, columns: &str, parent: &str| {
        format!(
            "ALTER TABLE {schema}.{table} ADD FOREIGN KEY ({columns}) \
             REFERENCES {schema}.{parent} ({columns})"
        )
    };
    vec![
        ("key of subscriber", key("subscriber", "s_id")),
        (
            "sub_nbr of subscriber",
            format!(
                "ALTER TABLE {schema}.subscriber \
                 ADD CONSTRAINT subscriber_sub_nbr_key UNIQUE (sub_nbr)"
            ),
        ),
        ("key of access_info", key("access_info", "s_id, ai_type")),
        ("key of special_facility", key("special_facility", "s_id, sf_type")),
        ("key of call_forwarding", key("call_forwarding", "s_id, sf_type, start_time")),
        ("parent of access_info", foreign("access_info", "s_id", "subscriber")),
        ("parent of special_facility", foreign("special_facility", "s_id", "subscriber")),
        (
            "parent of call_forwarding",
            foreign("call_forwarding", "s_id, sf_type", "special_facility"),
        ),
    ]
}

/// Drops the tables, children first.
pub fn drop(schema: &str) -> Vec<String> {
    TABLES.iter().rev().map(|t| format!("DROP TABLE IF EXISTS {schema}.{t}")).collect()
}
