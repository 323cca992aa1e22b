//! Builds the cluster's programs from Go modules that are checked in beside this crate, once per
//! machine: the result is kept in a folder named by the hash of what it was built from.
//! Downloads module sources only, through the Go tool; never a finished program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::process;
use crate::workspace;

const VERSION_PACKAGE: &str = "k8s.io/component-base/version";
const KUBERNETES: &str = "v1.36.3";
/// Names under which the one Kubernetes binary is started.
const KUBE_NAMES: [&str; 1] = ["kubectl"];

/// One Go module and the programs that come out of it.
struct Module {
    name: &'static str,
    tags: &'static str,
    packages: &'static [&'static str],
    about: &'static str,
}

const MODULES: [Module; 4] = [
    Module {
        name: "kube",
        tags: "",
        packages: &["."],
        about: "Kubernetes, etcd and kubectl in one binary (about 6 min on 2 cores)",
    },
    Module {
        name: "containerd",
        tags: "no_btrfs no_devmapper no_zfs",
        packages: &[
            "github.com/containerd/containerd/v2/cmd/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/ctr",
        ],
        about: "the container runtime (about 1 min)",
    },
    Module {
        name: "coredns",
        tags: "",
        packages: &["github.com/coredns/coredns"],
        about: "the cluster's name server (about 2 min)",
    },
    Module {
        name: "helm",
        tags: "",
        packages: &["helm.sh/helm/v3/cmd/helm"],
        about: "the chart installer (about 1 min)",
    },
];

/// Folders of the built programs.
#[derive(Clone, Debug)]
pub struct Tools {
    kube: PathBuf,
    containerd: PathBuf,
    coredns: PathBuf,
    helm: PathBuf,
}

impl Tools {
    pub fn kube(&self) -> PathBuf {
        self.kube.join("kube")
    }
    pub fn kubectl(&self) -> PathBuf {
        self.kube.join("kubectl")
    }
    pub fn containerd_dir(&self) -> &Path {
        &self.containerd
    }
    pub fn containerd(&self, name: &str) -> PathBuf {
        self.containerd.join(name)
    }
    pub fn coredns(&self) -> PathBuf {
        self.coredns.join("coredns")
    }
    pub fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }
}

/// Builds the programs that are missing from the cache and tells where they are.
pub fn ensure() -> Result<Tools> {
    MODULES.iter().try_for_each(build)?;
    located()
}

/// As [`ensure`], for a control plane without nodes and who talks to it.
pub fn ensure_control_plane() -> Result<Tools> {
    let needed = |module: &&Module| ["kube", "helm"].contains(&module.name);
    MODULES.iter().filter(needed).try_for_each(build)?;
    located()
}

/// Where the programs are or would be, without building any.
pub fn located() -> Result<Tools> {
    let folder = |name: &str| -> Result<PathBuf> {
        let module = MODULES.iter().find(|module| module.name == name).context("unknown module")?;
        cached(module)
    };
    Ok(Tools {
        kube: folder("kube")?,
        containerd: folder("containerd")?,
        coredns: folder("coredns")?,
        helm: folder("helm")?,
    })
}

fn source(module: &Module) -> PathBuf {
    workspace::root().join("xtask/cluster").join(module.name)
}

/// The cache folder of a module: a hash over everything that decides what is built.
fn cached(module: &Module) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        let path = source(module).join(file);
        if path.exists() {
            hash.update(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
    }
    hash.update(flags(module).join(" "));
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(workspace::cache_dir().join("tools").join(format!("{}-{digest}", module.name)))
}

fn flags(module: &Module) -> Vec<String> {
    let mut link = String::from("-s -w");
    if module.name == "kube" {
        link += &format!(
            " -X {VERSION_PACKAGE}.gitVersion={KUBERNETES} -X {VERSION_PACKAGE}.gitMajor=1 \
             -X {VERSION_PACKAGE}.gitMinor=36"
        );
    }
    let mut flags = vec!["-trimpath".into(), format!("-ldflags={link}")];
    if !module.tags.is_empty() {
        flags.push(format!("-tags={}", module.tags));
    }
    flags
}

fn build(module: &Module) -> Result<()> {
    let target = cached(module)?;
    if target.exists() {
        return Ok(());
    }
    println!("building {}: {}", module.name, module.about);
    let start = Instant::now();
    // built aside and renamed, so that an interrupted build leaves no half-filled cache folder
    let aside = target.with_extension(format!("building-{}", std::process::id()));
    fs::create_dir_all(&aside)?;
    let mut output = aside.clone().into_os_string();
    output.push("/");
    let mut command = Command::new("go");
    command
        .current_dir(source(module))
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        // an older Go says so instead of fetching a newer one as a binary
        .env("GOTOOLCHAIN", "local")
        .arg("build")
        .args(flags(module))
        .arg("-o")
        .arg(&output)
        .args(module.packages);
    let spinner = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").context("a progress style")?,
    );
    spinner.set_message(format!("go build {}", module.name));
    spinner.enable_steady_tick(Duration::from_millis(200));
    let built = process::run(&mut command);
    spinner.finish_and_clear();
    built.context("is Go 1.26 or newer installed and on the path?")?;
    if module.name == "kube" {
        for name in KUBE_NAMES {
            symlink("kube", aside.join(name))?;
        }
    }
    if let Err(error) = fs::rename(&aside, &target) {
        // somebody else was quicker with the same content
        fs::remove_dir_all(&aside)?;
        if !target.exists() {
            return Err(error.into());
        }
    }
    println!("built {} in {} s", module.name, start.elapsed().as_secs());
    Ok(())
}
