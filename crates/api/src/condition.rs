//! Condition types of a `CacheGroup` and every reason the operator gives for them, in one place.

/// Condition types, in the order in which they are reported.
pub mod kind {
    /// Every wanted node is ready, every slot served, and this generation of the spec is in force.
    pub const READY: &str = "Ready";
    /// At least one node serves.
    pub const AVAILABLE: &str = "Available";
    /// The operator or the nodes are on their way to what the spec asks for.
    pub const PROGRESSING: &str = "Progressing";
    /// Something that should serve does not.
    pub const DEGRADED: &str = "Degraded";
    /// The spec and what it refers to can be used.
    pub const CONFIG_VALID: &str = "ConfigValid";
    /// The nodes reach the backend.
    pub const BACKEND_REACHABLE: &str = "BackendReachable";
    /// The write-behind queue is short.
    pub const BACKLOG_HEALTHY: &str = "BacklogHealthy";
    /// Every served slot is loaded.
    pub const PRELOADED: &str = "Preloaded";
    /// Nodes could be removed now without anything waiting to be written to the backend.
    pub const DRAIN_SAFE: &str = "DrainSafe";
    /// The operator leaves the group alone because the spec says so.
    pub const PAUSED: &str = "Paused";

    pub const ALL: [&str; 10] = [
        READY,
        AVAILABLE,
        PROGRESSING,
        DEGRADED,
        CONFIG_VALID,
        BACKEND_REACHABLE,
        BACKLOG_HEALTHY,
        PRELOADED,
        DRAIN_SAFE,
        PAUSED,
    ];
}

/// Reasons. Reasons that a node reports (e.g. `AuthenticationFailed`) are passed on as they come.
pub mod reason {
    // all is well
    pub const AS_EXPECTED: &str = "AsExpected";
    pub const ALL_SERVING: &str = "AllNodesServe";
    pub const SERVING: &str = "Serving";
    pub const ACCEPTED: &str = "Accepted";
    pub const REACHABLE: &str = "Reachable";
    pub const UP_TO_DATE: &str = "UpToDate";
    pub const DRAINED: &str = "Drained";
    pub const LOADED: &str = "Loaded";
    pub const NOT_PAUSED: &str = "NotPaused";
    pub const NOT_REQUESTED: &str = "NotRequested";
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";

    // on the way
    pub const STARTING: &str = "Starting";
    pub const SCALING_OUT: &str = "ScalingOut";
    pub const SCALING_IN: &str = "ScalingIn";
    pub const MOVING_SLOTS: &str = "MovingSlots";
    pub const ROLLING: &str = "RollingUpdate";
    pub const LOADING: &str = "Loading";
    pub const DRAINING: &str = "Draining";
    pub const DELETING: &str = "Deleting";
    pub const PAUSED_BY_SPEC: &str = "PausedBySpec";
    pub const UNKNOWN: &str = "NotKnownYet";

    // a person must act
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    pub const SECRET_INCOMPLETE: &str = "SecretIncomplete";
    pub const STORAGE_CLASS_NOT_FOUND: &str = "StorageClassNotFound";
    pub const NO_DEFAULT_STORAGE_CLASS: &str = "NoDefaultStorageClass";
    pub const VOLUME_OF_EARLIER_GROUP: &str = "VolumeOfEarlierGroup";
    pub const JOURNAL_HOST_AWAY: &str = "JournalHostAway";
    pub const NO_VOLUME: &str = "NoVolumeAvailable";
    pub const NO_MATCHING_NODE: &str = "NoMatchingNode";
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
    pub const CRASH_LOOP: &str = "CrashLoop";
    pub const TABLES_INVALID: &str = "TablesInvalid";
    pub const INVALID_OBJECT: &str = "InvalidObject";
    pub const NAME_TAKEN: &str = "NameTaken";
    pub const APPLY_REFUSED: &str = "ApplyRefused";
    pub const NODE_UNREACHABLE: &str = "NodeUnreachable";
    pub const TOPOLOGY_LOST: &str = "TopologyRecordLost";
    pub const BACKLOG_GROWING: &str = "BacklogOld";
    pub const BACKLOG_PENDING: &str = "WritesPending";
    pub const LOAD_FAILED: &str = "LoadFailed";
    pub const DEADLINE_PASSED: &str = "DeadlinePassed";
    pub const FELL_BACK: &str = "MediumFellBack";
}
