//! `/ui`, `/ui/` and `/ui/NAME`: the files of the page.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::assets::INDEX;
use super::state::Ui;
use crate::server::http::problem::not_found;

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
