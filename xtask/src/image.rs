//! The product's container image, made without a container engine: the three programs, the closure
//! of the libraries they need, a user without rights, and nothing else, no shell either.
//! Built from what cargo built on this machine; the Containerfile yields the same layout.

pub mod archive;
mod closure;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use archive::{Image, Layer};
use clap::Args;

use crate::{cluster, process, workspace};

/// Name and tag by which the chart finds the image.
pub const TAG: &str = "cachetier.dev/cachetier:dev";
/// Where the archive goes, from the root of the tree.
const ARCHIVE: &str = "out/cachetier-image.tar";
/// Number of the user and group that all programs run as.
const USER: u32 = 65532;
const PROGRAMS: [&str; 3] = ["operator", "cache-node", "cachectl"];

#[derive(Args)]
pub struct ImageArgs {
    /// Import the image into the nodes of the local (or, after `cluster up --existing`, kind) cluster
    #[arg(long)]
    load: bool,
    /// Cargo profile of the programs; `dev` is quicker to build and much larger
    #[arg(long, default_value = "image")]
    profile: String,
    /// Where to write the archive
    #[arg(long)]
    output: Option<PathBuf>,
}

impl ImageArgs {
    /// Build in this profile and load into the cluster.
    pub fn load(profile: &str) -> ImageArgs {
        ImageArgs { load: true, profile: profile.to_owned(), output: None }
    }
}

pub fn run(args: &ImageArgs) -> Result<()> {
    build(&args.profile)?;
    let output = match &args.output {
        Some(path) => path.clone(),
        None => workspace::root().join(ARCHIVE),
    };
    let digest = pack(&programs_dir(&args.profile), &output)?;
    let size = fs::metadata(&output)?.len() / (1 << 20);
    println!("{TAG} in {} ({size} MiB), id {digest}", output.display());
    if args.load {
        cluster::load_image(&output)?;
        println!("loaded into the cluster's nodes");
    }
    Ok(())
}

/// Takes what was built before: checks that the programs are there, and loads the image. A cluster
/// that is not ours pulls it from where its owner put it.
pub fn load_built(profile: &str, existing: bool) -> Result<()> {
    let again = format!("without --no-build, or `cargo xtask image --profile {profile}` first");
    for name in ["cachectl", "bench"] {
        let program = programs_dir(profile).join(name);
        ensure!(program.exists(), "{} is not built: {again}", program.display());
    }
    if existing {
        return Ok(());
    }
    let archive = workspace::root().join(ARCHIVE);
    ensure!(archive.exists(), "there is no image {}: {again}", archive.display());
    cluster::load_image(&archive)?;
    println!("loaded {} into the cluster's nodes", archive.display());
    Ok(())
}

/// Builds the image's programs and the load driver in a profile: always all of them in one go, since
/// another selection of packages would mean other features and a second build of what they share.
pub fn build(profile: &str) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["build", "--profile", profile]);
    for package in PROGRAMS.iter().chain(&["bench"]) {
        command.args(["--package", package]);
    }
    process::run(&mut command)
}

/// Folder in which cargo puts the programs of a profile.
pub fn programs_dir(profile: &str) -> PathBuf {
    workspace::target_dir().join(if profile == "dev" { "debug" } else { profile })
}

fn pack(programs: &Path, output: &Path) -> Result<String> {
    let mut layer = Layer::default();
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        let program = programs.join(name);
        let content =
            fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        libraries.extend(closure::libraries(&program)?);
        layer.file(&format!("usr/local/bin/{name}"), 0o755, content);
    }
    for library in libraries {
        let content =
            fs::read(&library).with_context(|| format!("reading library {}", library.display()))?;
        let place = library.to_string_lossy();
        layer.file(place.trim_start_matches('/'), 0o755, content);
    }
    layer.link("usr/local/bin/kubectl-cachegroup", "cachectl");
    layer.folder("tmp", 0o1777);
    let line = format!("cachetier:x:{USER}:{USER}::/:/usr/sbin/nologin\n");
    layer.file("etc/passwd", 0o644, line.into_bytes());
    layer.file("etc/group", 0o644, format!("cachetier:x:{USER}:\n").into_bytes());
    let image = Image {
        tag: TAG.into(),
        user: format!("{USER}:{USER}"),
        entrypoint: Vec::new(),
        layers: vec![layer],
    };
    image.write(output)
}
