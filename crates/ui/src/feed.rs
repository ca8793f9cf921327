//! `GET /ui/api/feed`: a stream of events for one page.
//!
//! An event is written when the connection takes it, from the newest sample. So a browser that reads slowly skips samples,
//! and no event waits in memory behind another.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Ui;
use super::access::Viewer;
use super::history::Sample;
use super::rules::{Candidates, View};
use divvy_access::Category;
use divvy_limiter::Scope;
use divvy_server::RulesReload;
use divvy_server::http::page::{Answered, NoPlace, Place, Problem, Reply, of_type};

/// Seconds after which a page without a stream may try again.
const RETRY: HeaderValue = HeaderValue::from_static("5");

/// Opens a stream.
///
/// # Errors
/// The query is not valid, or too many streams are open.
pub fn open(ui: &Arc<Ui>, viewer: Viewer, uri: &Uri) -> Answered {
    let view = View::parse(uri)?;
    let place = ui.streams.take(viewer.account(ui).map(Into::into)).map_err(|reached| {
        let max = ui.settings.max_streams;
        let reason = match reached {
            NoPlace::InTotal => format!("{max} streams are open, which is the maximum (--ui-streams)"),
            NoPlace::OfKey => {
                let share = "which is the share of one user (half of --ui-streams)";
                format!("this user has {} open streams, {share}", share_of_user(max))
            }
        };
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason).with_header(RETRY_AFTER, RETRY)
    })?;
    let events = unfold(EventStream::new(Arc::clone(ui), viewer, view, place), |mut stream| async {
        let event = stream.next().await?;
        Some((event, stream))
    });
    let mut response = of_type("text/event-stream", Reply::from_stream(events));
    // Otherwise nginx would collect events before it passes them on.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Returns the maximum number of streams of one user: half of them, so that it does not take the streams of all others. Viewers
/// without a user share one account, and there is no share.
pub fn share_of_user(max_streams: usize) -> usize {
    max_streams.div_ceil(2)
}

/// The stream of one page.
struct EventStream {
    ui: Arc<Ui>,
    viewer: Viewer,
    view: View,
    samples: watch::Receiver<Arc<Sample>>,
    health: watch::Receiver<Option<Arc<str>>>,
    reloads: watch::Receiver<Vec<RulesReload>>,
    /// Number of the sample in the last event.
    last: u64,
    /// The rules that the page may show, as of the last event.
    candidates: Option<Candidates>,
    has_ended: bool,
    _place: Place<Box<str>>,
}

impl EventStream {
    fn new(ui: Arc<Ui>, viewer: Viewer, view: View, place: Place<Box<str>>) -> Self {
        let (mut samples, mut health) = (ui.sampler.latest.subscribe(), ui.health_event.subscribe());
        let mut reloads = ui.settings.reloads.subscribe();
        samples.mark_changed();
        health.mark_changed();
        reloads.mark_changed();
        Self { ui, viewer, view, samples, health, reloads, last: 0, candidates: None, has_ended: false, _place: place }
    }

    /// Waits for the next event; `None` after the last one, or if the server stops.
    #[expect(clippy::disallowed_methods, reason = "when the session was last used")]
    async fn next(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            let has_rules = self.last > 0;
            let (name, changed) = tokio::select! {
                biased;
                () = self.ui.stopping.cancelled() => return None,
                changed = self.reloads.changed(), if has_rules => ("reloads", changed),
                changed = self.health.changed(), if has_rules => ("health", changed),
                changed = self.samples.changed() => ("rules", changed),
            };
            changed.ok()?;
            // The rights are checked for each event.
            let Some(identity) = self.viewer.renew(&self.ui, Category::Read, Instant::now()) else {
                self.has_ended = true;
                return Some(event("end", "{}"));
            };
            let scope = identity.scope().clone();
            let data = match name {
                "rules" => self.rules(scope).await,
                "health" if identity.may(Category::Metrics).is_ok() => {
                    self.health.borrow_and_update().as_deref().map(str::to_owned)
                }
                "reloads" if scope.covers_everything() => {
                    serde_json::to_string(&*self.reloads.borrow_and_update()).ok()
                }
                _ => None,
            };
            if let Some(data) = data {
                return Some(event(name, &data));
            }
        }
        None
    }

    /// Returns the data of the event `rules`; `None` if there is no new sample.
    async fn rules(&mut self, scope: Scope) -> Option<String> {
        let sample = Arc::clone(&self.samples.borrow_and_update());
        if sample.number <= self.last {
            return None;
        }
        let known = self.candidates.take().filter(|known| known.are_of(&sample, &scope));
        let candidates = match known {
            Some(known) => known,
            None => self.find_candidates(&sample, scope).await?,
        };
        let (history, sample) = self.ui.sampler.history();
        // If other rules have come into force, their sample follows.
        if sample.ruleset() != candidates.ruleset {
            return None;
        }
        let shown = self.view.choose(&candidates, &sample);
        // Copied, because writing takes long, and other streams wait for the history.
        let indexes = shown.indexes.iter().copied().chain(candidates.selected.flatten());
        let minutes = indexes.map(|index| (index, history.of_rule(index))).collect();
        drop(history);
        let file = self.ui.settings.rules_file.as_deref();
        let event = self.view.write(&candidates, &sample, &shown, (&minutes, file));
        self.last = sample.number;
        self.candidates = Some(candidates);
        Some(event)
    }

    /// Looks at all rules, in a slot of the page: in turn with other streams, and with looks at the server's health.
    async fn find_candidates(&self, sample: &Arc<Sample>, scope: Scope) -> Option<Candidates> {
        let (view, sample) = (self.view.clone(), Arc::clone(sample));
        let slot = self.ui.slots.take().await;
        let find = tokio::task::spawn_blocking(move || view.find_candidates(&sample, scope));
        slot.run(find).await.ok()?.ok()
    }
}

fn event(name: &str, data: &str) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}
