//! Two reports beside each other: the direct side's latency over the cache's.

use crate::report::{Report, ms};
use anyhow::{Result, bail};
use comfy_table::{Table, presets};

/// A table of ratios. A void run yields an error instead: its ratio would mean nothing.
pub fn table(backend: &Report, cache: &Report) -> Result<String> {
    for report in [backend, cache] {
        if let Some(reason) = &report.void {
            bail!("the {} run is void: {reason}", report.target);
        }
    }
    if (backend.subscribers, backend.uniform) != (cache.subscribers, cache.uniform) {
        bail!("the two runs used different populations or key distributions");
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "transaction",
        "backend ms",
        "cache ms",
        "ratio",
        "backend p99",
        "cache p99",
    ]);
    let mut ratios = Vec::new();
    for ((name, b), (_, c)) in backend.in_order().zip(cache.in_order()) {
        let ratio = b.mean_ms / c.mean_ms;
        ratios.push(ratio);
        table.add_row([
            name.to_owned(),
            ms(b.mean_ms),
            ms(c.mean_ms),
            format!("{ratio:.1}×"),
            ms(b.p99_ms),
            ms(c.p99_ms),
        ]);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    let weighted = backend.mix_weighted_mean_ms / cache.mix_weighted_mean_ms;
    Ok(format!(
        "{table}\nbackend {} clients {:.0}/s, cache {} clients {:.0}/s\n\
         mean of the seven mean ratios {mean:.1}×, mix-weighted {weighted:.1}×",
        backend.threads, backend.per_second, cache.threads, cache.per_second
    ))
}
