//! `ddl`: what an administrator of the backend runs, where the nodes' role may not.

use crate::arguments::DdlArguments;
use cachetier_write_through::postgres::{ddl, grants};

pub fn print(arguments: &DdlArguments) {
    let DdlArguments { role, schema, tables } = arguments;
    say!("-- Bookkeeping of cache groups, once per database.");
    say!("{}", ddl().trim_end());
    say!("\n-- The least privileges of the nodes' role.");
    let names: Vec<&str> = tables.iter().map(String::as_str).collect();
    let grants = grants(role, schema, &names);
    if names.is_empty() {
        // The last statement names the cached tables, which are not known here.
        grants.lines().take(2).for_each(|line| say!("{line}"));
        say!("-- and SELECT, INSERT, UPDATE, DELETE on each cached table (name them by --table)");
    } else {
        say!("{}", grants.trim_end());
    }
}
