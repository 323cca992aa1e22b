//! Debian packages that the local cluster and the tests need: found missing by the programs they bring, then
//! installed in one go and said so. Touches the package manager only when something is missing.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process;

/// A package and a file whose presence shows that it, or an equal of it, is installed.
struct Package {
    name: &'static str,
    shows: &'static str,
}

const NODE: [Package; 6] = [
    Package { name: "runc", shows: "runc" },
    Package { name: "containernetworking-plugins", shows: "/usr/lib/cni/bridge" },
    Package { name: "iptables", shows: "iptables" },
    Package { name: "nftables", shows: "nft" },
    Package { name: "iproute2", shows: "ip" },
    Package { name: "conntrack", shows: "conntrack" },
];

const POSTGRES: [Package; 1] =
    [Package { name: "postgresql-15", shows: "/usr/lib/postgresql/15/bin/postgres" }];

/// A pooler between product and database, as many have it.
const POOLER: [Package; 1] = [Package { name: "pgbouncer", shows: "/usr/sbin/pgbouncer" }];

/// Packages for nodes: runtime, network plugins, packet filters.
pub fn ensure_node() -> Result<()> {
    ensure(&NODE)
}

/// The database server.
pub fn ensure_postgres() -> Result<()> {
    ensure(&POSTGRES)
}

/// What the tests against a database start beside it.
pub fn ensure_pooler() -> Result<()> {
    ensure(&POOLER)
}

fn ensure(packages: &[Package]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .filter(|package| match package.shows.starts_with('/') {
            true => !Path::new(package.shows).exists(),
            false => !process::on_path(package.shows),
        })
        .map(|package| package.name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !process::on_path("apt-get") {
        bail!("please install what Debian calls: {}", missing.join(" "));
    }
    println!("installing Debian packages: {}", missing.join(" "));
    if missing.contains(&"postgresql-15") {
        prevent_default_database()?;
    }
    let quiet = |args: &[&str]| {
        let mut command = process::command("apt-get", args);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        process::capture(&mut command)
    };
    quiet(&["update", "-qq"]).context("refreshing the package lists")?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&missing);
    quiet(&install).context("installing packages")?;
    Ok(())
}

/// Debian's server package creates and starts a database of its own; nobody here wants it.
fn prevent_default_database() -> Result<()> {
    let folder = Path::new("/etc/postgresql-common/createcluster.d");
    let file = folder.join("cachetier.conf");
    if !file.exists() {
        std::fs::create_dir_all(folder)?;
        std::fs::write(file, "create_main_cluster = false\n")?;
    }
    Ok(())
}
