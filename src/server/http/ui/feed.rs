//! `GET /ui/api/feed`: a stream of events for one page.
//!
//! An event is written when the connection takes it, from the newest sample. So a browser that reads slowly skips samples,
//! and no event waits in memory behind another.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::history::{RuleHistory, Sample};
use super::view::{View, ViewQuery, VisibleRules, choose_with_histories};
use super::viewer::Viewer;
use super::{Ui, rules_event};
use crate::access::Category;
use crate::limiter::Scope;
use crate::server::http::api::query;
use crate::server::http::problem::Problem;

/// Seconds after which a page without a stream may try again.
const RETRY: HeaderValue = HeaderValue::from_static("5");
/// Time after which a browser opens a stream again that has ended (milliseconds).
const RECONNECT: &str = "retry: 2000\n";

/// Opens a stream.
///
/// # Errors
/// The query is not valid.
pub async fn open(
    State(ui): State<Arc<Ui>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
) -> Result<Response, Problem> {
    let view = query::parse::<ViewQuery>(&uri)?.check()?;
    let Ok(permit) = Arc::clone(&ui.streams).try_acquire_owned() else {
        let detail = format!("{} streams are open, which is the maximum (--ui-streams)", ui.max_streams);
        let mut response = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
        response.headers_mut().insert(RETRY_AFTER, RETRY);
        return Ok(response);
    };
    let samples = ui.sampler.samples();
    let stream = EventStream { ui, viewer, view, samples, visible: None, has_begun: false, _permit: permit };
    let events = unfold(Some(stream), |stream| async {
        let mut stream = stream?;
        let event = stream.next().await?;
        let rest = (!event.is_last).then_some(stream);
        Some((Ok::<_, std::convert::Infallible>(event.bytes), rest))
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        // Otherwise nginx would collect events before it passes them on.
        (axum::http::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// The stream of one page.
struct EventStream {
    ui: Arc<Ui>,
    viewer: Viewer,
    view: View,
    samples: watch::Receiver<Arc<Sample>>,
    /// The rules that the page shows, with the set of rules and the scope that they were chosen under.
    visible: Option<Chosen>,
    has_begun: bool,
    _permit: OwnedSemaphorePermit,
}

struct Chosen {
    ruleset: Option<u64>,
    scope: Scope,
    rules: Arc<VisibleRules>,
}

struct Event {
    bytes: Bytes,
    is_last: bool,
}

impl EventStream {
    /// Waits for the next event; `None` if the server stops. Dropping the future loses no event.
    #[expect(clippy::disallowed_methods, reason = "when the session was last used")]
    async fn next(&mut self) -> Option<Event> {
        let stopping = self.ui.stopping.clone();
        tokio::select! {
            biased;
            () = stopping.cancelled() => return None,
            changed = self.samples.changed() => changed.ok()?,
        }
        let Some(identity) = self.viewer.renew(Category::Read, Instant::now()) else {
            return Some(self.event("end", "{}", true));
        };
        let scope = identity.scope().clone();
        self.rules(scope).await
    }

    /// Returns the event `rules`, with all facts about the rules if others are shown than before.
    async fn rules(&mut self, scope: Scope) -> Option<Event> {
        let sample = Arc::clone(&self.samples.borrow_and_update());
        let ruleset = sample.ruleset();
        let is_chosen = |chosen: &Chosen| chosen.ruleset == ruleset && chosen.scope.is_same(&scope);
        let known = self.visible.as_ref().filter(|chosen| is_chosen(chosen)).map(|chosen| Arc::clone(&chosen.rules));
        let (rules, histories) = match known {
            Some(rules) => (rules, None),
            None => {
                let (rules, histories) = self.choose(&sample, &scope).await?;
                let rules = Arc::new(rules);
                self.visible = Some(Chosen { ruleset, scope, rules: Arc::clone(&rules) });
                (rules, Some(histories))
            }
        };
        let data = rules_event::write(&sample, &self.view, &rules, histories.as_deref()).ok()?;
        Some(self.event("rules", &data, false))
    }

    /// Chooses the rules that the page shows, in turn with other expensive requests.
    async fn choose(&self, sample: &Arc<Sample>, scope: &Scope) -> Option<(VisibleRules, Vec<RuleHistory>)> {
        let (view, sampler) = (self.view.clone(), Arc::clone(&self.ui.sampler));
        let (sample, scope) = (Arc::clone(sample), scope.clone());
        let slot = self.ui.slots.take().await;
        let choose = tokio::task::spawn_blocking(move || choose_with_histories(&view, &sampler, &sample, &scope));
        slot.run(choose).await.ok()?.ok()
    }

    fn event(&mut self, name: &str, data: &str, is_last: bool) -> Event {
        let head = if std::mem::replace(&mut self.has_begun, true) { "" } else { RECONNECT };
        Event { bytes: format!("{head}event: {name}\ndata: {data}\n\n").into(), is_last }
    }
}
