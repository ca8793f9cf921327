//! The state that all routes of the page share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::assets::Assets;
use super::health::PageHealth;
use super::sampler::Sampler;
use super::settings::UiSettings;
use super::streams::Streams;
use crate::limiter::Limiter;
use crate::server::net::auth::Guard;
use crate::server::net::work_slots::WorkSlots;

/// The state that all routes of the page share.
pub struct Ui {
    pub limiter: Arc<Limiter>,
    pub settings: UiSettings,
    /// Logs users in. Without a guard, the page is read-only, and for this machine alone.
    pub guard: Option<Arc<Guard>>,
    pub sampler: Arc<Sampler>,
    pub health: Arc<PageHealth>,
    pub slots: WorkSlots,
    pub assets: Assets,
    /// Maximum length of a login (bytes).
    pub max_body: usize,
    pub streams: Arc<Streams>,
    /// Cancelled when the server accepts no more connections, so that streams end.
    pub stopping: CancellationToken,
}

impl Ui {
    /// Creates the page. `slots` bound the searches at a time.
    #[expect(clippy::too_many_arguments, reason = "all of them are what the page is made of, each given once")]
    pub fn new(
        settings: UiSettings,
        limiter: Arc<Limiter>,
        guard: Option<Arc<Guard>>,
        sampler: Arc<Sampler>,
        health: Arc<PageHealth>,
        slots: WorkSlots,
        max_body: usize,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let streams = Streams::new(settings.max_streams);
        let assets = Assets::new();
        Arc::new(Self { limiter, settings, guard, sampler, health, slots, assets, max_body, streams, stopping })
    }
}
