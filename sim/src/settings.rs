//! What a seed means: the shape of its history, drawn once at the beginning.
//!
//! Owns the ranges. Everything later is drawn from the generator returned beside the settings.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What is played beside the disturbances: see `scene`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    SlowMisses,
    HeldMoves,
    LoadedMoves,
    GivenAway,
    LostCommits,
}

/// The shape of one history.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    pub nodes: usize,
    pub keys: i64,
    pub clients: usize,
    pub steps_per_client: usize,
    pub disturbances: usize,
    pub lanes: u16,
    pub relaxed: bool,
    pub sync_interval: Duration,
    pub backend_async: bool,
    /// A trigger of the database refuses some rows for good.
    pub poison: bool,
    pub failover: bool,
    pub segments: u64,
    /// The longest pause between two steps of a client, in milliseconds; disturbances follow it.
    pub pace: u64,
    pub keep_flushed_seconds: u64,
    pub scene: Option<Scene>,
    /// Writes carry idempotency keys, and are repeated while their outcome is unknown, and later.
    pub repeats: bool,
    pub images_refresh: Duration,
    /// The journal lies in persistent memory: stored, flushed and fenced instead of written and synced.
    pub dax: bool,
}

/// Tells the generator of scenes from that of histories.
const SCENE_SEED: u64 = 0x5CE9E;

/// The same for repeated writes.
const REPEATS_SEED: u64 = 0x9E9EA7;

/// Segments are small, so that histories rotate and trim them.
pub const SEGMENT_BYTES: u64 = 16 << 10;

impl Settings {
    /// Draws the settings of a seed.
    pub fn of(seed: u64) -> (Self, ChaCha8Rng) {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let pace = match dice.random_range(0..4) {
            0 => 1_000,
            1 => 300,
            _ => 60,
        };
        let mut settings = Self {
            scene: None,
            repeats: false,
            pace,
            keep_flushed_seconds: dice.random_range(0..=2),
            seed,
            nodes: if dice.random_bool(0.45) { 1 } else { 2 },
            keys: dice.random_range(2..=6),
            clients: dice.random_range(1..=3),
            steps_per_client: dice.random_range(4..=16),
            disturbances: dice.random_range(1..=9),
            lanes: dice.random_range(1..=3),
            relaxed: dice.random_bool(0.2),
            sync_interval: Duration::from_millis(dice.random_range(5..=60)),
            backend_async: dice.random_bool(0.5),
            poison: dice.random_bool(0.15),
            failover: dice.random_bool(0.25),
            segments: dice.random_range(4..=8),
            images_refresh: Duration::from_millis(300 + seed % 7 * 400),
            dax: seed % 8 == 6,
        };
        settings.set_scene();
        settings.set_repeats();
        (settings, dice)
    }

    /// Draws a scene from a generator of its own, so that histories without one are as they were.
    fn set_scene(&mut self) {
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed ^ SCENE_SEED);
        if !dice.random_bool(0.35) {
            if self.backend_async && dice.random_bool(0.1) {
                self.scene = Some(Scene::LostCommits);
                self.keep_flushed_seconds = 0;
                self.pace = 60;
                (self.clients, self.steps_per_client) = (3, 24);
                if self.failover {
                    // a full journal gives up what a standby that lagged would be sent again
                    self.segments = 64;
                }
            }
            return;
        }
        let plain = !self.poison && !self.relaxed;
        self.scene = match dice.random_range(0..4) {
            0 => Some(Scene::SlowMisses),
            1 if !self.poison => Some(Scene::LoadedMoves),
            2 if plain => Some(Scene::GivenAway),
            _ => Some(Scene::HeldMoves),
        };
        // scenes are between two nodes, and last some seconds
        self.nodes = 2;
        self.pace = self.pace.min(300);
        self.clients = self.clients.max(2);
        self.steps_per_client = self.steps_per_client.max(10);
    }

    /// As for scenes; in a part of the histories without one. What such a history must not lose is
    /// kept: a relaxed journal may lose answers with what they answer, and a full one trims them.
    fn set_repeats(&mut self) {
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed ^ REPEATS_SEED);
        if self.scene.is_some() || self.relaxed || self.poison || !dice.random_bool(0.3) {
            return;
        }
        self.repeats = true;
        self.segments = 64;
        self.pace = self.pace.min(300);
        self.steps_per_client = self.steps_per_client.max(8);
    }

    /// In a part of the histories with failovers clients read all of theirs right after one, before
    /// anybody writes.
    pub fn looks_after_failover(&self) -> bool {
        self.failover && self.seed % 4 == 3
    }

    /// One line for the head of a history.
    pub fn line(&self) -> String {
        let durability = if self.relaxed { "relaxed" } else { "sync" };
        let commit = if self.backend_async { "async" } else { "sync" };
        format!(
            "seed {}: {} node(s), {} keys, {} client(s), {} lane(s), journal {durability}{}, \
             backend commits {commit}{}{}{}{}",
            self.seed,
            self.nodes,
            self.keys,
            self.clients,
            self.lanes,
            if self.dax { " in persistent memory" } else { "" },
            if self.poison { ", poisoned rows" } else { "" },
            if self.failover { ", failover" } else { "" },
            if self.repeats { ", repeated writes" } else { "" },
            self.scene.map(|scene| format!(", {scene:?}")).unwrap_or_default(),
        )
    }
}
