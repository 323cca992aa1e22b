//! What the guest is made of: QEMU, a kernel with its modules, and busybox, from Debian's packages.
//!
//! Fetched once into the tool cache and unpacked there; nothing is installed on this machine.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{process, workspace};

/// Kernel with ext4, its journal and the serial console built in.
const KERNEL: &str = "linux-image-cloud-amd64";
/// In the order they are loaded.
const MODULES: [&str; 4] =
    ["nvdimm/libnvdimm", "acpi/nfit/nfit", "nvdimm/nd_btt", "nvdimm/nd_pmem"];
const APPLETS: [&str; 8] = ["sh", "mount", "umount", "insmod", "cat", "sleep", "ip", "poweroff"];
const LIBRARIES: &str = "x86_64-linux-gnu";

pub struct Parts {
    root: PathBuf,
    kernel: PathBuf,
    version: String,
}

/// Fetches what is missing.
pub fn ensure() -> Result<Parts> {
    let folder = workspace::cache_dir().join("dax");
    let done = folder.join("complete");
    if !done.exists() {
        println!("fetching QEMU, a kernel and busybox (about 50 MB) into {}", folder.display());
        fetch(&folder)?;
        std::fs::write(&done, "").with_context(|| format!("writing {}", done.display()))?;
    }
    ensure!(
        process::on_path("mkfs.ext4"),
        "mkfs.ext4 is needed for the guest's volume: apt-get install e2fsprogs"
    );
    let modules = folder.join("kernel/lib/modules");
    let mut versions = std::fs::read_dir(&modules)
        .with_context(|| format!("reading {}; remove {}", modules.display(), folder.display()))?;
    let version = versions.next().context("the kernel's package has no modules")??;
    let version = version.file_name().to_string_lossy().into_owned();
    Ok(Parts { root: folder.join("root"), kernel: folder.join("kernel"), version })
}

fn fetch(folder: &Path) -> Result<()> {
    let debs = folder.join("debs");
    if debs.exists() {
        std::fs::remove_dir_all(&debs)?;
    }
    std::fs::create_dir_all(&debs)?;
    // an old list names packages that are gone; without a net the old one may still do
    process::attempt(&mut process::command("apt-get", &["update", "-qq"]));
    let depends = process::capture(&mut process::command("apt-cache", &["depends", KERNEL]))?;
    let kernel = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let kernel = kernel.context("no kernel package is known to apt")?;
    let simulated = process::capture(&mut process::command(
        "apt-get",
        &["install", "-s", "--no-install-recommends", "--reinstall", "qemu-system-x86"],
    ))?;
    let mut names: Vec<&str> = simulated
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
        .collect();
    let kernel = format!("linux-image-{kernel}");
    names.extend(["busybox-static", kernel.as_str()]);
    let mut download = process::command("apt-get", &["download", "-q"]);
    process::run(download.args(&names).current_dir(&debs).stdout(std::process::Stdio::null()))?;
    for deb in std::fs::read_dir(&debs)? {
        let deb = deb?.path();
        let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = if name.starts_with("linux-image") { "kernel" } else { "root" };
        process::run(process::command("dpkg-deb", &["-x"]).arg(&deb).arg(folder.join(to)))?;
    }
    std::fs::remove_dir_all(&debs)?;
    Ok(())
}

impl Parts {
    pub fn kernel(&self) -> PathBuf {
        self.kernel.join("boot").join(format!("vmlinuz-{}", self.version))
    }

    /// QEMU with the libraries it came with.
    pub fn emulator(&self) -> std::process::Command {
        let root = &self.root;
        let libraries = ["usr/lib", "lib"].map(|lib| root.join(lib).join(LIBRARIES));
        let libraries = std::env::join_paths(libraries).unwrap_or_default();
        let mut command = process::tied(root.join("usr/bin/qemu-system-x86_64"), "KILL");
        command.env("LD_LIBRARY_PATH", libraries);
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(firmware));
        }
        command
    }

    /// The guest's first file system: busybox, the modules, the program and what starts it.
    pub fn initrd(&self, folder: &Path, program: &Path) -> Result<PathBuf> {
        let tree = folder.join("initrd");
        for dir in ["bin", "dev", "proc", "sys", "mnt", "lib/modules"] {
            std::fs::create_dir_all(tree.join(dir))?;
        }
        let busybox = self.root.join("bin/busybox");
        copy(&busybox, &tree.join("bin/busybox"))?;
        for applet in APPLETS {
            symlink("busybox", tree.join("bin").join(applet))?;
        }
        let drivers = self.kernel.join("lib/modules").join(&self.version).join("kernel/drivers");
        for module in MODULES {
            let name = format!("{}.ko", module.rsplit('/').next().unwrap_or(module));
            copy(&drivers.join(format!("{module}.ko")), &tree.join("lib/modules").join(name))?;
        }
        copy(program, &tree.join("bin/journal"))?;
        let init = tree.join("init");
        std::fs::write(&init, include_str!("init.sh"))?;
        process::run(process::command("chmod", &["+x"]).arg(&init))?;
        let initrd = folder.join("initrd.cpio");
        let pack = "cd \"$1\" && find . | \"$2\" cpio -o -H newc > \"$3\" 2>/dev/null";
        let mut pack = process::command("sh", &["-c", pack, "sh"]);
        process::run(pack.arg(&tree).arg(&busybox).arg(&initrd))?;
        Ok(initrd)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}
