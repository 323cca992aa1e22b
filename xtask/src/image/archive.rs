//! Writes a container image as one archive in the layout that containerd, docker and kind import.
//! The same content gives the same bytes: names are sorted, times and owners are fixed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Archive, Builder, EntryType, Header};

/// What every image says of itself, and the Containerfile too.
pub const ENVIRONMENT: &str = "PATH=/usr/local/bin";
pub const WORKING_FOLDER: &str = "/";

/// One entry of a layer.
#[derive(Clone, Debug)]
enum Entry {
    Folder { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

/// Files of one layer by their path without a leading slash; missing parent folders are added.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    entries: BTreeMap<String, Entry>,
}

impl Layer {
    pub fn folder(&mut self, path: &str, mode: u32) {
        self.parents(path);
        self.entries.insert(path.to_owned(), Entry::Folder { mode });
    }

    pub fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.parents(path);
        self.entries.insert(path.to_owned(), Entry::File { mode, content });
    }

    pub fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entries.insert(path.to_owned(), Entry::Link { target: target.to_owned() });
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let parent = path.get(..at).unwrap_or_default();
            self.entries.entry(parent.to_owned()).or_insert(Entry::Folder { mode: 0o755 });
        }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match entry {
                Entry::Folder { mode } => {
                    let mut header = header(EntryType::Directory, *mode, 0);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Entry::File { mode, content } => {
                    let size = u64::try_from(content.len())?;
                    let mut header = header(EntryType::Regular, *mode, size);
                    tar.append_data(&mut header, path, content.as_slice())?;
                }
                Entry::Link { target } => {
                    let mut header = header(EntryType::Symlink, 0o777, 0);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(tar.into_inner()?)
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// An image for this machine's architecture.
#[derive(Clone, Debug)]
pub struct Image {
    pub tag: String,
    /// `uid:gid` that its processes run as.
    pub user: String,
    pub entrypoint: Vec<String>,
    pub layers: Vec<Layer>,
}

impl Image {
    /// Writes the archive; gives the digest of the image's configuration.
    pub fn write(&self, path: &Path) -> Result<String> {
        let layers: Vec<Vec<u8>> = self.layers.iter().map(Layer::bytes).collect::<Result<_>>()?;
        let digests: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Entrypoint": self.entrypoint,
                "User": self.user,
                "Env": [ENVIRONMENT],
                "WorkingDir": WORKING_FOLDER,
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": digests.iter().map(|d| format!("sha256:{d}")).collect::<Vec<_>>(),
            },
            "history": digests.iter().map(|_| json!({
                "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask image",
            })).collect::<Vec<_>>(),
        })
        .to_string();
        let config_name = format!("{}.json", digest(config.as_bytes()));
        let layer_names: Vec<String> = digests.iter().map(|d| format!("{d}/layer.tar")).collect();
        let manifest = json!([
            {"Config": config_name, "RepoTags": [self.tag], "Layers": layer_names},
        ])
        .to_string();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // written aside and renamed, so that nobody imports half an archive
        let aside = path.with_extension("tar.new");
        let file = File::create(&aside).with_context(|| format!("creating {}", aside.display()))?;
        let mut tar = Builder::new(std::io::BufWriter::new(file));
        append(&mut tar, &config_name, config.as_bytes())?;
        for (name, layer) in layer_names.iter().zip(&layers) {
            append(&mut tar, name, layer)?;
        }
        append(&mut tar, "manifest.json", manifest.as_bytes())?;
        tar.into_inner()?.flush()?;
        std::fs::rename(&aside, path)?;
        Ok(digest(config.as_bytes()))
    }
}

/// Names of the images in an archive; fails with what to do when pods could use none of them.
pub fn names(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let found = names_in(file).with_context(|| {
        format!(
            "{} is no image archive, as `cargo xtask image` or `docker save` writes it",
            path.display()
        )
    })?;
    ensure!(
        !found.is_empty(),
        "the images in {} have no names: save them by name and tag, so that pods can name them",
        path.display()
    );
    Ok(found)
}

fn names_in(file: File) -> Result<Vec<String>> {
    for entry in Archive::new(std::io::BufReader::new(file)).entries()? {
        let entry = entry?;
        if entry.path()?.as_ref() == Path::new("manifest.json") {
            let manifest: Value = serde_json::from_reader(entry)?;
            let tags = |image: &Value| image.get("RepoTags").and_then(Value::as_array).cloned();
            let all = manifest.as_array().into_iter().flatten().flat_map(tags).flatten();
            return Ok(all.filter_map(|tag| tag.as_str().map(str::to_owned)).collect());
        }
    }
    bail!("it has no manifest.json")
}

fn append<W: Write>(tar: &mut Builder<W>, name: &str, content: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, 0o644, u64::try_from(content.len())?);
    Ok(tar.append_data(&mut header, name, content)?)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The architecture by the name that images use for it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Image, Layer, names};

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        let image = || {
            let mut layer = Layer::default();
            layer.file("usr/local/bin/b", 0o755, b"two".to_vec());
            layer.file("etc/a", 0o644, b"one".to_vec());
            layer.link("usr/local/bin/c", "b");
            Image {
                tag: "example/test:1".into(),
                user: "1:1".into(),
                entrypoint: vec![],
                layers: vec![layer],
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
        assert_eq!(image().write(&first).unwrap(), image().write(&second).unwrap());
        assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
    }

    #[test]
    fn an_archive_tells_its_names_and_what_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        let image = |tag: &str| Image {
            tag: tag.into(),
            user: "1:1".into(),
            entrypoint: vec![],
            layers: vec![Layer::default()],
        };
        image("example/test:1").write(&path).unwrap();
        assert_eq!(names(&path).unwrap(), ["example/test:1"]);
        let other = folder.path().join("other");
        assert!(format!("{:#}", names(&other).unwrap_err()).contains("opening"));
        for content in [&b""[..], b"no archive at all"] {
            std::fs::write(&other, content).unwrap();
            let error = names(&other).unwrap_err().to_string();
            assert!(error.contains("is no image archive"), "{error}");
        }
    }
}
