//! What a person reads at the end.

use super::report::Report;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

pub fn print_summary(report: &Report) {
    println!("\n{}", steps_table(report));
    if !report.latency_ms.cache.is_empty() {
        println!("\nMean latency, the same clients and transactions against both:");
        println!("{}", latency_table(report));
        println!(
            "Ratios of one short run on this machine, with everything on the same two cores; the \
             bench (`cargo xtask bench`) measures properly."
        );
    }
    if report.compare.rows > 0 {
        println!(
            "\n{} acknowledged writes, all in the backend. {} rows compared between cache and \
             backend: {} differences.",
            report.acknowledged_writes, report.compare.rows, report.compare.differences
        );
    }
    let verdict = if report.ok { "The demo succeeded" } else { "The demo FAILED" };
    println!("\n{verdict} in {:.0} s.", report.total_seconds);
}

fn steps_table(report: &Report) -> Table {
    let mut table = new_table(&["step", "what happened", "seconds", ""]);
    for step in &report.steps {
        let mark = if step.ok { "ok" } else { "FAILED" };
        table.add_row([&step.name, &step.note, &format!("{:.1}", step.seconds), mark]);
    }
    right_align(&mut table, 2);
    table
}

fn latency_table(report: &Report) -> Table {
    let mut table = new_table(&["transaction", "backend, ms", "cache, ms", "backend / cache"]);
    for (name, backend) in &report.latency_ms.backend {
        let Some(cache) = report.latency_ms.cache.get(name) else { continue };
        let ratio = if *cache > 0.0 { backend / cache } else { 0.0 };
        table.add_row([
            name.clone(),
            format!("{backend:.3}"),
            format!("{cache:.3}"),
            format!("{ratio:.1}×"),
        ]);
    }
    (1..4).for_each(|column| right_align(&mut table, column));
    table
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.to_vec());
    table
}

fn right_align(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// After a step that failed.
pub fn print_what_is_left() {
    println!(
        "
What was started is still there; `cargo xtask cluster status` shows it, `cargo xtask cluster down` takes it down."
    );
}

pub fn print_what_next() {
    println!(
        "
Everything is still running. Try:
  eval \"$(cargo xtask cluster env)\"            # KUBECONFIG and the tools
  kubectl -n telecom get cg,pods,jobs
  kubectl -n telecom describe cg hlr
  kubectl -n telecom scale cg/hlr --replicas=1      # and back to 2: slots move while it serves
  target/image/cachectl -n telecom -g hlr get 4711
  target/image/cachectl -n telecom -g hlr status
Take it down with:
  cargo xtask cluster down"
    );
}
