//! The command line.

use crate::exit;
use anyhow::{Context, Result, bail};
use cachetier_api::TimeSpan;
use cachetier_client::{Endpoint, Position};
use cachetier_model::IdempotencyKey;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Read, write and look after a cache group
#[derive(Parser, Debug)]
#[command(name = "cachectl", version, after_help = exit::TABLE, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    pub reach: ReachArguments,
    /// How to print
    #[arg(short, long, value_enum, global = true, default_value_t = Format::Table)]
    pub output: Format,
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Parses under the name the program was started by, so that help of the kubectl plugin reads
    /// `kubectl cachegroup`.
    pub fn parse_as_called(words: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.collect();
        let called = words.first().and_then(|w| Path::new(w).file_name()).unwrap_or_default();
        let command = match called.to_str() {
            Some("kubectl-cachegroup") => Self::command().bin_name("kubectl cachegroup"),
            _ => Self::command(),
        };
        Self::from_arg_matches(&command.try_get_matches_from(words)?)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

/// Which group, and how to get there: through a cluster's API server, or straight to nodes.
#[derive(Args, Clone, Debug)]
pub struct ReachArguments {
    /// Namespace of the group; default: the kubeconfig's
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Name of the group; may be left out where the namespace has one only
    #[arg(short, long, global = true)]
    pub group: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Ask this node only, e.g. hlr-0
    #[arg(long, global = true, value_name = "NODE")]
    pub node: Option<String>,
    /// Go to this node instead of through a cluster; may be given several times
    #[arg(
        long = "server",
        global = true,
        value_name = "HOST:PORT",
        value_parser = Endpoint::from_str
    )]
    pub servers: Vec<Endpoint>,
    /// With --server: directory with tls.crt, tls.key and ca.crt; without it, plain text
    #[arg(long, global = true, value_name = "DIR", env = "CACHECTL_TLS_DIR")]
    pub tls_dir: Option<PathBuf>,
}

impl ReachArguments {
    /// Options of both ways at once.
    pub fn check(&self) -> Result<()> {
        let of_cluster = self.namespace.is_some() || self.group.is_some() || self.context.is_some();
        if of_cluster && !self.servers.is_empty() {
            bail!("--server goes straight to a node; leave out --namespace, --group and --context");
        }
        if let (Some(directory), false) = (&self.tls_dir, self.servers.is_empty()) {
            let missing = |file: &&&str| !directory.join(file).is_file();
            if let Some(file) = ["tls.crt", "tls.key", "ca.crt"].iter().find(missing) {
                bail!(
                    "--tls-dir {} has no {file}; it must hold tls.crt, tls.key and ca.crt",
                    directory.display()
                );
            }
        }
        Ok(())
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Read the rows of one cache instance
    Get(GetArguments),
    /// Change one cache instance: all of it happens, or nothing
    #[command(after_long_help = TRANSACTION_FILE)]
    Tx(Box<TxArguments>),
    /// State of the group and of its nodes
    Status,
    /// Prove that cache and backend hold the same rows
    Compare(CompareArguments),
    /// Read instances again whose rows others changed in the backend
    Refresh(RefreshArguments),
    /// Progress of the load, per table
    Load(LoadArguments),
    /// Refuse writes and flush everything; or take writes again
    Drain(DrainArguments),
    /// Hold the flushing to the backend back, until `resume` or a restart; writes stay in the journals
    Pause,
    /// Let the flushing go on
    Resume,
    /// Give up what a node had not flushed when its journal was lost for good
    AcceptLoss(AcceptLossArguments),
    /// Transactions that the backend refused for good
    #[command(subcommand)]
    Rejects(RejectsCommand),
    /// Print what a DBA runs in the backend: the bookkeeping tables and the least privileges
    Ddl(DdlArguments),
    /// Which node owns which slots
    Topology,
    /// Print a shell's completion script
    Completion {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Of `tx --file`.
const TRANSACTION_FILE: &str = "\
A transaction file (YAML, or the same as JSON):

  key: {root: [4711]}               # or by a lookup key: {by: {sub_nbr: \"000000000004711\"}};
                                    # left out when the command line names the instance
  guards:                           # all must hold, else nothing happens; may be left out
  - {table: special_facility, where: {sf_type: 2}}
  - {table: call_forwarding, where: {sf_type: 2, start_time: 8}, absent: true}
  operations:                       # in this order, all or none
  - update: {table: subscriber, set: {bit_1: 1}, expect: 1}
  - insert: {table: call_forwarding, values: {sf_type: 2, start_time: 8, end_time: 12, numberx: \"1\"}}
  - upsert: {table: access_info, values: {ai_type: 1, data1: 7, data2: 0, data3: abc, data4: null}}
  - delete: {table: call_forwarding, where: {sf_type: 1}, expect: 1}
  answer: durable                   # or flushed: answered only after the backend accepted it";

/// Names one instance.
#[derive(Args, Clone, Debug)]
pub struct KeyArguments {
    /// Values of the root key, in its order
    #[arg(value_name = "KEY", allow_negative_numbers = true)]
    pub key: Vec<String>,
    /// Find the instance by a lookup key instead, e.g. --by sub_nbr=000000000004711; once per
    /// column of the key
    #[arg(long, value_name = "COLUMN=VALUE", conflicts_with = "key")]
    pub by: Vec<String>,
}

#[derive(Args, Debug)]
pub struct GetArguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// Only this table; may be given several times
    #[arg(short, long = "table", value_name = "TABLE")]
    pub tables: Vec<String>,
    /// Only these columns, separated by commas (with one --table)
    #[arg(long, value_delimiter = ',', value_name = "COLUMNS")]
    pub columns: Vec<String>,
    /// Only rows where this holds, e.g. --where 'sf_type=2' (with one --table)
    #[arg(long = "where", value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// Refuse an answer that comes from the backend because the owner is away
    #[arg(long)]
    pub no_bypass: bool,
    /// The position that a write of this instance was answered with (`tx` prints it): refuse an
    /// answer that does not hold it, which only one past an absent owner may lack
    #[arg(long, value_name = "JOURNAL:SEQUENCE", value_parser = Position::from_str)]
    pub min_position: Option<Position>,
}

#[derive(Args, Debug)]
pub struct TxArguments {
    #[command(flatten)]
    pub key: KeyArguments,
    /// Insert a row; its values by --set
    #[arg(long, value_name = "TABLE", group = "act")]
    pub insert: Option<String>,
    /// Insert a row, or replace the one of the same key
    #[arg(long, value_name = "TABLE", group = "act")]
    pub upsert: Option<String>,
    /// Change the rows that match --where
    #[arg(long, value_name = "TABLE", group = "act")]
    pub update: Option<String>,
    /// Delete the rows that match --where
    #[arg(long, value_name = "TABLE", group = "act")]
    pub delete: Option<String>,
    /// The whole transaction from a YAML or JSON file; `-` is standard input. With several operations
    /// and guards; `cachectl help tx` shows one
    #[arg(short, long, value_name = "FILE", group = "act", conflicts_with_all = ["set", "set_null", "conditions", "expect"])]
    pub file: Option<PathBuf>,
    /// A column's value
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub set: Vec<String>,
    /// A column that becomes NULL
    #[arg(long, value_name = "COLUMN")]
    pub set_null: Vec<String>,
    /// Which rows, e.g. --where 'sf_type=2'
    #[arg(long = "where", value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// How many rows it must affect, else nothing happens
    #[arg(long, value_name = "ROWS")]
    pub expect: Option<u32>,
    /// Answer only after the backend accepted it
    #[arg(long)]
    pub flushed: bool,
    /// Name of this transaction, up to 64 bytes: given again with the same transaction, it is
    /// answered as the first time and not applied again
    #[arg(long, value_name = "TEXT", conflicts_with = "by")]
    pub idempotency_key: Option<String>,
}

impl GetArguments {
    /// What is wrong whatever the group's tables are.
    pub fn check(&self) -> Result<()> {
        let narrowed = !self.columns.is_empty() || !self.conditions.is_empty();
        if narrowed && self.tables.len() != 1 {
            bail!("--columns and --where need exactly one --table");
        }
        let mut tables: Vec<&String> = self.tables.iter().collect();
        tables.sort_unstable();
        if let Some([twice, _]) = tables.array_windows().find(|[a, b]| a == b) {
            bail!("--table {twice} is given twice");
        }
        Ok(())
    }
}

impl TxArguments {
    /// What is wrong whatever the group's tables are.
    pub fn check(&self) -> Result<()> {
        let inserts = self.insert.is_some() || self.upsert.is_some();
        let acts = inserts || self.update.is_some() || self.delete.is_some();
        if !acts && self.file.is_none() {
            bail!("say what to do: --insert, --upsert, --update or --delete TABLE, or --file");
        }
        let sets = !self.set.is_empty() || !self.set_null.is_empty();
        if self.update.is_some() && !sets {
            bail!("--update changes nothing without --set column=value");
        }
        if self.delete.is_some() && sets {
            bail!("--delete takes --where, not --set");
        }
        if inserts && (!self.conditions.is_empty() || self.expect.is_some()) {
            bail!("--where and --expect belong to --update and --delete");
        }
        let column = |set: &String| set.split_once('=').map_or(set.as_str(), |(c, _)| c).to_owned();
        let mut columns: Vec<String> = self.set.iter().map(column).collect();
        columns.extend(self.set_null.iter().cloned());
        columns.sort_unstable();
        if let Some([twice, _]) = columns.array_windows().find(|[a, b]| a == b) {
            bail!("column {twice} is set twice; give each column once, by --set or --set-null");
        }
        if let Some(key) = &self.idempotency_key {
            IdempotencyKey::new(key.clone()).context("in --idempotency-key")?;
        }
        Ok(())
    }
}

#[derive(Args, Debug)]
pub struct CompareArguments {
    /// Compare about one in N instances; default: every one
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub sample: u32,
    /// Mend what differs: read it again from the backend, or write the cache's rows through
    #[arg(long, value_enum, value_name = "WAY")]
    pub repair: Option<RepairWay>,
    /// Rows that each node reads from the backend per second, at most; default: no limit
    #[arg(long, default_value_t = 0, value_name = "ROWS")]
    pub rows_per_second: u64,
}

/// Which side is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepairWay {
    FromBackend,
    FromCache,
}

#[derive(Args, Debug)]
pub struct RefreshArguments {
    /// Root keys, at most 1,000; the values of a key of several columns stand together, separated
    /// by commas
    #[arg(required = true, value_name = "KEY", allow_negative_numbers = true)]
    pub keys: Vec<String>,
}

#[derive(Args, Debug)]
pub struct LoadArguments {
    /// Wait until every served slot is loaded
    #[arg(long)]
    pub wait: bool,
    /// Longest time to wait, in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Args, Debug)]
pub struct DrainArguments {
    /// Take writes again
    #[arg(long)]
    pub resume: bool,
    /// Longest time to wait for an empty queue, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Args, Debug)]
pub struct AcceptLossArguments {
    /// The node that is refused because the backend knows it by another journal
    pub node: String,
    /// The lost journal, as the node's problem names it
    #[arg(long)]
    pub journal: String,
}

#[derive(Args, Debug)]
pub struct DdlArguments {
    /// Role that the nodes connect as
    #[arg(long, default_value = "cachetier")]
    pub role: String,
    /// Schema of the cached tables
    #[arg(long, default_value = "public")]
    pub schema: String,
    /// A cached table; may be given several times
    #[arg(short, long = "table", value_name = "TABLE")]
    pub tables: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub enum RejectsCommand {
    /// The open ones, oldest first
    List {
        /// At most so many
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        filter: RejectFilter,
    },
    /// Everything known of one, with what it and the transactions behind it were to do
    Show { id: u64 },
    /// Try them again, each with what waits behind it, in order
    Replay(ChosenRejects),
    /// Drop them, each with what waits behind it; the instances are loaded again from the backend
    Discard(ChosenRejects),
}

/// Which rejects: those that every filter lets through.
#[derive(Args, Debug, Default)]
pub struct RejectFilter {
    /// Those of this table
    #[arg(short, long, value_name = "TABLE")]
    pub table: Option<String>,
    /// Those refused with this SQLSTATE, e.g. 23514
    #[arg(long, value_name = "CODE", value_parser = sqlstate)]
    pub sqlstate: Option<String>,
    /// Those older than this, e.g. 10m or 1h30m
    #[arg(long, value_name = "AGE", value_parser = TimeSpan::parse)]
    pub older_than: Option<TimeSpan>,
}

/// Which rejects: by their ids, or all that every filter lets through.
#[derive(Args, Debug, Default)]
pub struct ChosenRejects {
    #[arg(value_name = "ID", conflicts_with_all = ["table", "sqlstate", "older_than"])]
    pub ids: Vec<u64>,
    #[command(flatten)]
    pub filter: RejectFilter,
    /// Every one
    #[arg(long, conflicts_with_all = ["ids", "table", "sqlstate", "older_than"])]
    pub all: bool,
    /// Do it: without it, `discard` asks for a single id, and a choice of several or by filter is only
    /// shown
    #[arg(long)]
    pub yes: bool,
}

impl ChosenRejects {
    /// What is wrong whatever rejects there are.
    pub fn check(&self) -> Result<()> {
        let RejectFilter { table, sqlstate, older_than } = &self.filter;
        let filtered = table.is_some() || sqlstate.is_some() || older_than.is_some();
        if self.ids.is_empty() && !filtered && !self.all {
            bail!("say which: ids, --table, --sqlstate, --older-than, or --all");
        }
        Ok(())
    }
}

/// Five digits or upper-case letters.
fn sqlstate(text: &str) -> Result<String> {
    let fits =
        text.len() == 5 && text.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
    if fits {
        Ok(text.to_owned())
    } else {
        bail!("a SQLSTATE has five digits or upper-case letters, such as 23514")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_the_group_may_stand_before_or_after_the_command() {
        for line in
            ["cachectl -n t -g hlr get 7 -o json", "/bin/cachectl get 7 -o json -g hlr -n t"]
        {
            let words = line.split(' ').map(OsString::from);
            let arguments = Arguments::parse_as_called(words).unwrap();
            assert_eq!(arguments.output, Format::Json);
            assert_eq!(arguments.reach.group.as_deref(), Some("hlr"));
        }
    }
}
