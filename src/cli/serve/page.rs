//! The settings of the live page, in builds with the feature `ui`.

use std::path::Path;
use std::sync::Arc;

use super::http::HttpArgs;
use super::limiter::LimiterArgs;
use super::store::StoreChoice;
use divvy_limiter::store::RocksOptions;
use divvy_server::RecentReloads;
use divvy_ui::{DEFAULT_STREAMS, UiSettings};

/// Write-ahead log that does not count toward `--max-disk` (bytes).
const WAL_ALLOWANCE: u64 = 192 << 20;

/// Returns the settings of the page. `config` is the rules file.
pub fn settings(
    config: Option<&Path>,
    http: &HttpArgs,
    limiter: &LimiterArgs,
    store: &StoreChoice,
    reloads: Arc<RecentReloads>,
) -> UiSettings {
    let rocks = match store {
        StoreChoice::Rocksdb { options, .. } => Some(options),
        StoreChoice::Memory { .. } | StoreChoice::Redis { .. } => None,
    };
    let max_disk = |of: &RocksOptions| of.bounds.max_disk.saturating_add(of.max_journal).saturating_add(WAL_ALLOWANCE);
    UiSettings {
        max_streams: http.ui_streams.unwrap_or(DEFAULT_STREAMS),
        rules_file: config.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()),
        durability: store.describe_durability(),
        max_disk: rocks.map(max_disk),
        max_journal: rocks.map(|options| options.max_journal),
        cache_memory: rocks.map(|options| options.cache_memory as u64),
        max_actor_limits: limiter.max_actor_limits as u64,
        reloads,
    }
}
