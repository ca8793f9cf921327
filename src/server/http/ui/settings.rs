//! Settings of the page.

use std::sync::Arc;

use crate::server::reload_log::ReloadLog;

/// Default maximum number of open streams of all pages.
pub const DEFAULT_STREAMS: usize = 64;

/// Settings of the page.
#[derive(Debug, Clone)]
pub struct UiSettings {
    /// Maximum number of open streams of all pages.
    pub max_streams: usize,
    /// Name of the rules file, without its directories.
    pub rules_file: Option<String>,
    /// The durability of a hit, in words.
    pub durability: &'static str,
    /// Bounds of the store.
    pub bounds: StoreBounds,
    /// The last reloads of the rules.
    pub reloads: Arc<ReloadLog>,
}

/// Bounds of the store that its metrics do not show.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreBounds {
    /// Maximum size of the data directory (bytes).
    pub disk: Option<u64>,
    /// Maximum size of the journal (bytes).
    pub journal: Option<u64>,
    /// Maximum memory of the hot table (bytes).
    pub hot_table: Option<u64>,
    /// Maximum number of limits of single actors.
    pub actor_limits: u64,
}
