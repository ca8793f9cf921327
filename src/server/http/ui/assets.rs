//! The files of the page. They are part of the program, and a fixed table maps names to them. So no request reaches the
//! file system.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::Ui;
use crate::access::Digest;
use crate::server::http::problem::not_found;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Returns the name, the type and the content of a file in `assets`.
macro_rules! file {
    ($name:literal, $kind:expr) => {
        ($name, $kind, include_bytes!(concat!("assets/", $name)))
    };
}

/// The name of the page itself, which is served below `/ui/`.
const INDEX: &str = "index.html";

/// All files: name, type and content.
const FILES: &[(&str, &str, &[u8])] = &[
    file!("actor_link.js", SCRIPT),
    file!("actor_table.js", SCRIPT),
    file!("actor_view.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("cards.js", SCRIPT),
    file!("changes.js", SCRIPT),
    file!("copy_text.js", SCRIPT),
    file!("counter_states.js", SCRIPT),
    file!("dialog.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("event_stream.js", SCRIPT),
    file!("explain_list.js", SCRIPT),
    file!("explain_view.js", SCRIPT),
    file!("feed.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("frame.js", SCRIPT),
    file!("health_view.js", SCRIPT),
    file!("icon.svg", IMAGE),
    file!("index.html", HTML),
    file!("login_view.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("meter.js", SCRIPT),
    file!("operation.js", SCRIPT),
    file!("page.css", STYLE),
    file!("policy.js", SCRIPT),
    file!("reloads_view.js", SCRIPT),
    file!("route.js", SCRIPT),
    file!("rule_counters.js", SCRIPT),
    file!("rule_detail.js", SCRIPT),
    file!("rule_row.js", SCRIPT),
    file!("rules_file.js", SCRIPT),
    file!("rules_table.js", SCRIPT),
    file!("rules_view.js", SCRIPT),
    file!("session.js", SCRIPT),
    file!("spark.js", SCRIPT),
    file!("theme.css", STYLE),
    file!("top_list.js", SCRIPT),
    file!("top_view.js", SCRIPT),
    file!("views.css", STYLE),
];

/// The files with their entity tags.
pub struct Assets(Vec<Asset>);

struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    /// A hash of the content, in quotes.
    tag: HeaderValue,
}

impl Assets {
    /// Hashes the files.
    pub fn new() -> Self {
        let tag =
            |content| HeaderValue::try_from(format!("\"{}\"", Digest::of(content).to_word().trim_start_matches('#')));
        let assets = FILES.iter().filter_map(|(name, kind, content)| {
            let tag = tag(content).ok()?;
            Some(Asset { name, kind, content, tag })
        });
        Self(assets.collect())
    }

    fn find(&self, name: &str) -> Option<&Asset> {
        self.0.iter().find(|asset| asset.name == name)
    }
}

impl Asset {
    fn respond(&self, headers: &HeaderMap) -> Response {
        // Browsers ask each time, so that an upgraded server is never shown with older files.
        let head = [(ETAG, self.tag.clone()), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
        let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|tag| *tag == self.tag);
        if is_known {
            return (StatusCode::NOT_MODIFIED, head).into_response();
        }
        (head, [(CONTENT_TYPE, self.kind)], Bytes::from_static(self.content)).into_response()
    }
}

/// `GET /ui`: names in the page are relative to `/ui/`.
pub async fn redirect() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "/ui/")]).into_response()
}

/// `GET /ui/`
pub async fn index(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri) -> Response {
    respond(&ui, INDEX, headers, uri).await
}

/// `GET /ui/NAME`
pub async fn asset(State(ui): State<Arc<Ui>>, Path(name): Path<String>, headers: HeaderMap, uri: Uri) -> Response {
    // The page has one address.
    let name = if name == INDEX { "" } else { name.as_str() };
    respond(&ui, name, headers, uri).await
}

async fn respond(ui: &Ui, name: &str, headers: HeaderMap, uri: Uri) -> Response {
    match ui.assets.find(name) {
        Some(asset) => asset.respond(&headers),
        None => not_found(headers, uri).await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn table_has_every_file() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server/http/ui/assets");
        let files = std::fs::read_dir(directory).unwrap();
        let files: BTreeSet<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        let served: BTreeSet<_> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(files, served);
        assert_eq!(Assets::new().0.len(), FILES.len());
    }
}
