//! The live page of a server, in builds with the feature `ui`.

use std::path::Path;
use std::sync::Arc;

use super::ServeArgs;
use super::store::StoreChoice;
use divvy_limiter::Limiter;
use divvy_limiter::store::RocksOptions;
use divvy_server::auth::Guard;
use divvy_server::{Health, Limits, RecentReloads};
use divvy_ui::{DEFAULT_STREAMS, Ui, UiSettings};

/// Write-ahead log that does not count toward `--max-disk` (bytes).
const WAL_ALLOWANCE: u64 = 192 << 20;

/// Creates the live page. `guard` is the one of the HTTP API.
pub fn create(
    args: &ServeArgs,
    store: &StoreChoice,
    reloads: Arc<RecentReloads>,
    limiter: Arc<Limiter>,
    guard: Option<Arc<Guard>>,
    health: Arc<Health>,
    limits: Limits,
) -> Arc<Ui> {
    let file_name = args.config.as_deref().and_then(Path::file_name);
    let rocks = match store {
        StoreChoice::Rocksdb { options, .. } => Some(options),
        StoreChoice::Memory { .. } | StoreChoice::Redis { .. } => None,
    };
    let max_disk = |of: &RocksOptions| of.bounds.max_disk.saturating_add(of.max_journal).saturating_add(WAL_ALLOWANCE);
    let settings = UiSettings {
        max_streams: args.http.ui_streams.unwrap_or(DEFAULT_STREAMS),
        rules_file: file_name.map(|name| name.to_string_lossy().into_owned()),
        durability: store.describe_durability(),
        max_disk: rocks.map(max_disk),
        max_journal: rocks.map(|options| options.max_journal),
        cache_memory: rocks.map(|options| options.cache_memory as u64),
        max_actor_limits: args.limiter.max_actor_limits as u64,
        reloads,
    };
    Ui::new(settings, limiter, guard, health, limits)
}
