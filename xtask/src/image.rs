//! The product's container image, made without a container engine: the three programs, the closure
//! of the libraries they need, a user without rights, and nothing else, no shell either.
//! Built from what cargo built on this machine; the Containerfile yields the same layout, which a
//! test here compares with what is written there.

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
/// The profile in which tests are built, and all programs with them.
pub const TESTS_PROFILE: &str = "dev";
/// Where the archive goes, from the root of the tree.
const ARCHIVE: &str = "out/cachetier-image.tar";
/// Number of the user and group that all programs run as.
const USER: u32 = 65532;
/// The name by which kubectl finds cachectl.
const PLUGIN: &str = "usr/local/bin/kubectl-cachegroup";
const PROGRAMS: [&str; 3] = ["operator", "cache-node", "cachectl"];

#[derive(Args)]
pub struct ImageArgs {
    /// Import the image into the nodes of the local (or, after `cluster up --existing`, kind) cluster
    #[arg(long)]
    load: bool,
    /// Cargo profile of the programs: `release` is what users should run, `image` builds in half the time,
    /// `dev` is quicker still and much larger
    #[arg(long, default_value = "release")]
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
    let digest = pack(&args.profile, &output)?;
    let size = fs::metadata(&output)?.len() / (1 << 20);
    println!("{TAG} in {} ({size} MiB), id {digest}", output.display());
    if args.load {
        cluster::load_image(&output)?;
        println!("loaded into the cluster's nodes");
    }
    Ok(())
}

/// Takes what was built before: checks that the programs are there, and loads the image, into a
/// cluster that is not ours when it has none and takes archives.
pub fn load_built(profile: &str, existing: bool) -> Result<()> {
    let again = format!("without --no-build, or `cargo xtask image --profile {profile}` first");
    for name in ["cachectl", "bench"] {
        let program = programs_dir(profile).join(name);
        ensure!(program.exists(), "{} is not built: {again}", program.display());
    }
    let archive = workspace::root().join(ARCHIVE);
    if existing {
        return cluster::offer_image(TAG, &archive);
    }
    ensure!(archive.exists(), "there is no image {}: {again}", archive.display());
    cluster::load_image(&archive)?;
    println!("loaded {} into the cluster's nodes", archive.display());
    Ok(())
}

/// Builds the image's programs and the load driver in a profile: always all of them in one go, since
/// another selection of packages would mean other features and a second build of what they share.
/// In the tests' profile that is the whole workspace, which the tests build too.
pub fn build(profile: &str) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["build", "--profile", profile]);
    if profile == TESTS_PROFILE {
        command.args(["--workspace", "--bins"]);
        return process::run(&mut command);
    }
    for package in PROGRAMS.iter().chain(&["bench"]) {
        command.args(["--package", package]);
    }
    process::run(&mut command)
}

/// Folder in which cargo puts the programs of a profile.
pub fn programs_dir(profile: &str) -> PathBuf {
    workspace::target_dir().join(if profile == TESTS_PROFILE { "debug" } else { profile })
}

fn pack(profile: &str, output: &Path) -> Result<String> {
    let programs = programs_dir(profile);
    let mut layer = Layer::default();
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        let program = programs.join(name);
        let content = if profile == TESTS_PROFILE {
            without_debug_lines(&program)?
        } else {
            fs::read(&program).with_context(|| format!("reading {}", program.display()))?
        };
        libraries.extend(closure::libraries(&program)?);
        layer.file(&format!("usr/local/bin/{name}"), 0o755, content);
    }
    for library in libraries {
        let content =
            fs::read(&library).with_context(|| format!("reading library {}", library.display()))?;
        let place = library.to_string_lossy();
        layer.file(place.trim_start_matches('/'), 0o755, content);
    }
    layer.link(PLUGIN, "cachectl");
    layer.folder("tmp", 0o1777);
    let [user, group] = account();
    layer.file("etc/passwd", 0o644, format!("{user}\n").into_bytes());
    layer.file("etc/group", 0o644, format!("{group}\n").into_bytes());
    let image = Image {
        tag: TAG.into(),
        user: format!("{USER}:{USER}"),
        entrypoint: Vec::new(),
        layers: vec![layer],
    };
    image.write(output)
}

/// The tests' programs know their source lines, which are most of their bytes.
fn without_debug_lines(program: &Path) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let stripped = folder.path().join("program");
    let mut strip = process::command("strip", &["--strip-debug", "-o"]);
    process::capture(strip.arg(&stripped).arg(program))?;
    Ok(fs::read(&stripped)?)
}

/// The lines of `/etc/passwd` and `/etc/group`.
fn account() -> [String; 2] {
    [format!("cachetier:x:{USER}:{USER}::/:/usr/sbin/nologin"), format!("cachetier:x:{USER}:")]
}

#[cfg(test)]
mod tests {
    use super::{PLUGIN, PROGRAMS, TAG, USER, account, archive};
    use crate::workspace;

    #[test]
    fn the_containerfile_describes_the_same_image() {
        let read = |name: &str| std::fs::read_to_string(workspace::root().join(name)).unwrap();
        let text = read("Containerfile");
        let [user, group] = account();
        let packages = PROGRAMS.map(|name| format!("--package {name}")).join(" ");
        for line in [
            format!("-t {TAG} "),
            format!("cargo build --locked --release {packages}\n"),
            format!("for program in {}; do", PROGRAMS.join(" ")),
            "cp \"target/release/$program\" \"$root/usr/local/bin/\"".to_owned(),
            format!("ln -s cachectl \"$root/{PLUGIN}\""),
            "chmod 1777 \"$root/tmp\"".to_owned(),
            format!("echo '{user}' > \"$root/etc/passwd\""),
            format!("echo '{group}' > \"$root/etc/group\""),
            format!("ENV {}\n", archive::ENVIRONMENT),
            format!("USER {USER}:{USER}\n"),
            format!("WORKDIR {}\n", archive::WORKING_FOLDER),
        ] {
            assert!(text.contains(&line), "the Containerfile has no {line:?}");
        }
        // the chart names the program: neither image starts one by itself, or says more of itself
        for word in ["ENTRYPOINT", "CMD", "LABEL", "EXPOSE", "VOLUME"] {
            assert!(!text.contains(&format!("\n{word} ")), "only the Containerfile has {word}");
        }
        let toolchain = read("rust-toolchain.toml");
        let base = text.split("docker.io/library/rust:").nth(1).unwrap();
        let (version, _) = base.split_once('-').unwrap();
        assert!(toolchain.contains(&format!("channel = \"{version}.")), "rust {version}");
    }
}
