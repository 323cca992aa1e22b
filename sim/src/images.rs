//! What happens to the images of a node's slots while it is down: damage, loss, files that come
//! back from an earlier time.
//!
//! Owns the choice, with a generator of its own, so that the rest of a history does not depend on
//! it. None of it may change what a node answers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cachetier_journal::file_system::{FaultyFileSystem, FileSystem};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::history::History;

/// Tells this generator from the others.
const IMAGES_SEED: u64 = 0x1_AA6E5;

type Contents = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug)]
pub struct Images {
    dice: Mutex<ChaCha8Rng>,
    /// Files of each node as they once were.
    earlier: Mutex<BTreeMap<String, Contents>>,
}

impl Images {
    pub fn new(seed: u64) -> Self {
        let dice = Mutex::new(ChaCha8Rng::seed_from_u64(seed ^ IMAGES_SEED));
        Self { dice, earlier: Mutex::default() }
    }

    /// The node is down and about to start.
    pub fn meddle(&self, node: &str, disk: &FaultyFileSystem, history: &History) {
        let files: Contents = disk
            .files()
            .into_iter()
            .filter(|(p, _)| p.extension() == Some("image".as_ref()))
            .collect();
        let mut dice = self.dice.lock();
        let mut earlier = self.earlier.lock();
        let old = earlier.entry(node.to_owned()).or_default();
        match dice.random_range(0..10) {
            0 => {
                for (path, content) in &files {
                    let mut content = content.clone();
                    let at = dice.random_range(0..content.len().max(1));
                    if let Some(byte) = content.get_mut(at) {
                        *byte ^= 1 << dice.random_range(0..8);
                        history.say(format!("a bit of {} of {node} is flipped", path.display()));
                        disk.plant(path, content);
                    }
                }
            }
            1 => {
                for path in files.keys() {
                    history.say(format!("{} of {node} is lost", path.display()));
                    let _lost = disk.remove(path);
                }
            }
            2..=3 if !old.is_empty() => {
                history.say(format!("{} images of {node} are those of an earlier time", old.len()));
                old.iter().for_each(|(path, content)| disk.plant(path, content.clone()));
            }
            4..=5 => *old = files,
            _ => {}
        }
    }
}
