//! Every alert and every reason that can stand in a condition has its page in `docs/operations`,
//! no page is left of one that is gone, and alerts and dashboard name metrics that exist.
//!
//! Reads the sources' text: reasons are constants, the backend's table of words, and what nodes
//! raise as problems.

use std::collections::BTreeSet;

use super::sources::Source;

const REASON_PAGES: &str = "docs/operations/reasons/";
const ALERT_PAGES: &str = "docs/operations/alerts/";
const ALERTS: &str = "charts/cachetier/files/monitoring/alerts.yaml";
const DASHBOARD: &str = "charts/cachetier/files/monitoring/dashboard.json";
const METRICS: [&str; 2] = ["cache-node/src/metrics.rs", "operator/src/metrics.rs"];
/// The kubelet's own words, passed on as they come.
const KUBELET: [&str; 3] =
    ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];
/// What comes before the literal reason of a node's problem.
const RAISES: [&str; 3] = ["Problem::new(", ".retire(", ".fence("];

pub fn check(files: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    compare(files, &reasons(files), REASON_PAGES, &mut findings);
    compare(files, &alerts(text(files, ALERTS)), ALERT_PAGES, &mut findings);
    let known: String = METRICS.iter().map(|path| text(files, path)).collect();
    for path in [ALERTS, DASHBOARD] {
        for metric in metrics(text(files, path)) {
            if !is_known(metric, &known) {
                findings.push(format!("{path}: names {metric}, which no program has"));
            }
        }
    }
    findings
}

fn compare(files: &[Source], wanted: &BTreeSet<&str>, folder: &str, findings: &mut Vec<String>) {
    let pages: BTreeSet<String> = files
        .iter()
        .filter_map(|file| {
            let path = file.path.to_string_lossy();
            Some(path.strip_prefix(folder)?.strip_suffix(".md")?.to_owned())
        })
        .collect();
    for name in wanted.iter().filter(|name| !pages.contains(**name)) {
        findings.push(format!("{folder}{name}.md: there is no page for {name}"));
    }
    for page in pages.iter().filter(|page| !wanted.contains(page.as_str())) {
        findings.push(format!("{folder}{page}.md: nothing is called {page} any more"));
    }
}

fn text<'a>(files: &'a [Source], path: &str) -> &'a str {
    let file = files.iter().find(|file| file.path.as_os_str() == path);
    file.map_or("", |file| file.text.as_str())
}

fn reasons(files: &[Source]) -> BTreeSet<&str> {
    let mut found: BTreeSet<&str> = KUBELET.into();
    let (_, constants) =
        text(files, "crates/api/src/condition.rs").split_once("pub mod reason").unwrap_or_default();
    found.extend(after(constants, ": &str = "));
    let (_, words) = text(files, "crates/write-through/src/error.rs")
        .split_once("fn as_str")
        .unwrap_or_default();
    let (words, _) = words.split_once("\n    }\n").unwrap_or((words, ""));
    found.extend(after(words, "=> "));
    for file in files.iter().filter(|file| file.path.starts_with("crates/group/src")) {
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        for raise in RAISES {
            found.extend(after(code, raise));
        }
    }
    found
}

/// The literals that stand directly after a text, also on the next line.
fn after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(before).filter_map(move |(at, _)| {
        let rest = text.get(at + before.len()..)?.trim_start().strip_prefix('"')?;
        let (word, _) = rest.split_once('"')?;
        let camel = word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric());
        camel.then_some(word)
    })
}

fn alerts(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

fn metrics(text: &str) -> BTreeSet<&str> {
    let part = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    text.split(part)
        .filter(|word| {
            word.starts_with("cachetier_node_") || word.starts_with("cachetier_operator_")
        })
        .collect()
}

/// Names in the sources have neither the prefix nor what the encoder appends.
fn is_known(metric: &str, sources: &str) -> bool {
    let name =
        metric.trim_start_matches("cachetier_node_").trim_start_matches("cachetier_operator_");
    let mut shorter = name;
    loop {
        if sources.contains(&format!("\"{shorter}\"")) {
            return true;
        }
        let cut = ["_total", "_bucket", "_count", "_sum", "_seconds"]
            .into_iter()
            .find_map(|suffix| shorter.strip_suffix(suffix));
        match cut {
            Some(rest) => shorter = rest,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn file(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_missing_page_a_stale_page_and_an_unknown_metric_are_found() {
        let mut files = vec![
            file("crates/api/src/condition.rs", "pub mod reason {\n const A: &str = \"Here\";\n}"),
            file("crates/group/src/x.rs", "Problem::new(\n    \"Full\", text)"),
            file("docs/operations/reasons/Here.md", "#"),
            file("docs/operations/reasons/Gone.md", "#"),
            file(
                super::ALERTS,
                "- alert: Slow\n  expr: rate(cachetier_node_calls_total[1m]) > 0\n",
            ),
            file("docs/operations/alerts/Slow.md", "#"),
            file("cache-node/src/metrics.rs", "register(\"calls\", ...)"),
        ];
        files.extend(
            super::KUBELET.map(|name| file(&format!("docs/operations/reasons/{name}.md"), "#")),
        );
        let found = check(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|line| line.contains("no page for Full")), "{found:?}");
        assert!(found.iter().any(|line| line.contains("nothing is called Gone")), "{found:?}");
        files.push(file(super::DASHBOARD, "cachetier_node_nonsense"));
        assert!(check(&files).iter().any(|line| line.contains("cachetier_node_nonsense")));
    }
}
