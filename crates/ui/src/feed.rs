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

use super::history::{RuleHistory, Sample};
use super::rules_event::{self, Histories};
use super::state::{StreamPlace, Ui};
use super::view::{Candidates, Shown, View, ViewQuery};
use super::viewer::Viewer;
use divvy_access::Category;
use divvy_limiter::Scope;
use divvy_server::Reload;
use divvy_server::http::page::{Answered, Endless, Problem, Reply, of_type, query};

/// Seconds after which a page without a stream may try again.
const RETRY: HeaderValue = HeaderValue::from_static("5");
/// Time after which a browser opens a stream again that has ended (milliseconds).
const RECONNECT: &str = "retry: 2000\n";

/// Opens a stream.
///
/// # Errors
/// The query is not valid, or too many streams are open.
pub fn open(ui: &Arc<Ui>, viewer: Viewer, uri: &Uri) -> Answered {
    let view = query::parse::<ViewQuery>(uri)?.check()?;
    let place = ui.streams.open(viewer.account()).map_err(|refusal| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string()).with_header(RETRY_AFTER, RETRY)
    })?;
    let events = unfold(Some(EventStream::new(Arc::clone(ui), viewer, view, place)), |stream| async {
        let mut stream = stream?;
        let event = stream.next().await?;
        let rest = (!event.is_last).then_some(stream);
        Some((event.bytes, rest))
    });
    let mut response = of_type("text/event-stream", Reply::from_stream(events));
    // Otherwise nginx would collect events before it passes them on.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// The stream of one page.
struct EventStream {
    ui: Arc<Ui>,
    viewer: Viewer,
    view: View,
    samples: watch::Receiver<Arc<Sample>>,
    health: watch::Receiver<Option<Arc<str>>>,
    reloads: watch::Receiver<Vec<Reload>>,
    /// Number of the sample in the last event.
    last: u64,
    chosen: Option<Chosen>,
    has_begun: bool,
    _place: StreamPlace,
}

/// The rules that the page may show, under one set of rules and one scope, and the rules of the last event.
struct Chosen {
    ruleset: Option<u64>,
    scope: Scope,
    candidates: Arc<Candidates>,
    indexes: Vec<usize>,
}

/// The cause of the next event.
enum Cause {
    Sample,
    Health,
    Reloads,
}

struct Event {
    bytes: Bytes,
    is_last: bool,
}

impl EventStream {
    fn new(ui: Arc<Ui>, viewer: Viewer, view: View, place: StreamPlace) -> Self {
        let (samples, health) = (ui.sampler.samples(), ui.health.follow());
        let mut reloads = ui.settings.reloads.follow();
        reloads.mark_changed();
        Self { ui, viewer, view, samples, health, reloads, last: 0, chosen: None, has_begun: false, _place: place }
    }

    /// Waits for the next event; `None` if the server stops.
    #[expect(clippy::disallowed_methods, reason = "when the session was last used")]
    async fn next(&mut self) -> Option<Event> {
        loop {
            let stopping = self.ui.stopping.clone();
            let cause = tokio::select! {
                biased;
                () = stopping.cancelled() => return None,
                changed = self.reloads.changed(), if self.last > 0 => changed.map(|()| Cause::Reloads).ok()?,
                changed = self.health.changed(), if self.last > 0 => changed.map(|()| Cause::Health).ok()?,
                changed = self.samples.changed() => changed.map(|()| Cause::Sample).ok()?,
            };
            // The rights are checked for each event.
            let Some(identity) = self.viewer.renew(Category::Read, Instant::now()) else {
                return Some(self.event("end", "{}", true));
            };
            let (scope, sees_health) = (identity.scope().clone(), identity.may(Category::Metrics).is_ok());
            let sees_reloads = scope.covers_everything();
            let (name, data) = match cause {
                Cause::Sample => ("rules", self.rules(scope).await),
                Cause::Health => ("health", self.health.borrow_and_update().as_deref().map(str::to_owned)),
                Cause::Reloads => ("reloads", serde_json::to_string(&*self.reloads.borrow_and_update()).ok()),
            };
            let is_shown = match cause {
                Cause::Sample => true,
                Cause::Health => sees_health,
                Cause::Reloads => sees_reloads,
            };
            if let Some(data) = data.filter(|_| is_shown) {
                return Some(self.event(name, &data, false));
            }
        }
    }

    /// Returns the data of the event `rules`; `None` if there is no new sample. It has all facts about the rules if others are
    /// shown than before.
    async fn rules(&mut self, scope: Scope) -> Option<String> {
        let sample = Arc::clone(&self.samples.borrow_and_update());
        if sample.number <= self.last {
            return None;
        }
        let is_chosen = |chosen: &Chosen| chosen.ruleset == sample.ruleset() && chosen.scope.is_same(&scope);
        let known = self.chosen.as_ref().filter(|chosen| is_chosen(chosen));
        let is_known = known.is_some();
        let candidates = match known {
            Some(chosen) => Arc::clone(&chosen.candidates),
            None => self.find_candidates(&sample, &scope).await?,
        };
        let shown = self.view.choose(&candidates, &sample);
        let is_same_list = self.chosen.as_ref().is_some_and(|chosen| is_known && chosen.indexes == shown.indexes);
        let (sample, shown, histories) = match is_same_list {
            true => (sample, shown, None),
            false => {
                let (sample, shown, histories) = self.with_histories(&candidates, sample.ruleset())?;
                (sample, shown, Some(histories))
            }
        };
        let histories =
            histories.as_deref().map(|rules| Histories { rules, file: self.ui.settings.rules_file.as_deref() });
        let data = rules_event::write(&sample, &self.view, &candidates, &shown, histories.as_ref()).ok();
        self.last = sample.number;
        self.chosen = Some(Chosen { ruleset: sample.ruleset(), scope, candidates, indexes: shown.indexes });
        data
    }

    /// Looks at all rules, in turn with other expensive requests.
    async fn find_candidates(&self, sample: &Arc<Sample>, scope: &Scope) -> Option<Arc<Candidates>> {
        let (view, sample, scope) = (self.view.clone(), Arc::clone(sample), scope.clone());
        let slot = self.ui.slots.take().await;
        let find = tokio::task::spawn_blocking(move || view.find_candidates(&sample, &scope));
        slot.run(find).await.ok()?.ok().map(Arc::new)
    }

    /// Returns the last sample, the rules that the page shows of it, and their histories. `None` if other rules have come into
    /// force; their sample follows.
    fn with_histories(
        &self,
        candidates: &Candidates,
        ruleset: Option<u64>,
    ) -> Option<(Arc<Sample>, Shown, Vec<RuleHistory>)> {
        let mut shown = None;
        let (sample, histories) = self.ui.sampler.with_histories(|sample| {
            let chosen = self.view.choose(candidates, sample);
            let indexes = chosen.indexes.iter().copied().chain(candidates.selected.flatten()).collect::<Vec<_>>();
            shown = Some(chosen);
            indexes
        });
        (sample.ruleset() == ruleset).then_some((sample, shown?, histories))
    }

    fn event(&mut self, name: &str, data: &str, is_last: bool) -> Event {
        let head = if std::mem::replace(&mut self.has_begun, true) { "" } else { RECONNECT };
        Event { bytes: format!("{head}event: {name}\ndata: {data}\n\n").into(), is_last }
    }
}
