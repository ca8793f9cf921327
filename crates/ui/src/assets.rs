//! The files of the page. They are part of the program, and a fixed table maps names to them. So no request reaches the
//! file system.

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::{HeaderMap, Response, StatusCode};

use divvy_access::Digest;
use divvy_server::http::page::{Reply, empty, of_type};

/// The name of the page itself, which is served as `/ui/`.
pub const INDEX: &str = "index.html";

/// Returns the name and the content of a file in `assets`.
macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../assets/", $name)))
    };
}

/// All files: name and content.
const FILES: &[(&str, &[u8])] = &[
    file!("actor.js"),
    file!("api.js"),
    file!("changes.js"),
    file!("charts.js"),
    file!("dialogs.js"),
    file!("explain.js"),
    file!("feed.js"),
    file!("format.js"),
    file!("frame.js"),
    file!("icon.svg"),
    file!("index.html"),
    file!("main.js"),
    file!("operation.js"),
    file!("overrides.js"),
    file!("page.css"),
    file!("preact_htm.js"),
    file!("rule.js"),
    file!("rules.js"),
    file!("rules_file.js"),
    file!("status.js"),
    file!("theme.css"),
    file!("top.js"),
    file!("views.css"),
    file!("widgets.js"),
];

/// The files with their entity tags.
pub struct Assets(Vec<Asset>);

/// A file of the page.
pub struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    /// A hash of the content, in quotes.
    tag: HeaderValue,
}

impl Assets {
    /// Hashes the files.
    pub fn new() -> Self {
        Self(FILES.iter().filter_map(|(name, content)| Asset::new(name, content)).collect())
    }

    /// Returns the file with this name.
    pub fn find(&self, name: &str) -> Option<&Asset> {
        self.0.iter().find(|asset| asset.name == name)
    }
}

impl Asset {
    fn new(name: &'static str, content: &'static [u8]) -> Option<Self> {
        let kind = match name.rsplit_once('.')?.1 {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => return None,
        };
        let hash = Digest::of(content).to_word();
        let tag = HeaderValue::try_from(format!("\"{}\"", hash.trim_start_matches('#'))).ok()?;
        Some(Self { name, kind, content, tag })
    }

    /// Returns the response to a request with these headers.
    pub fn respond(&self, headers: &HeaderMap) -> Response<Reply> {
        let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|tag| *tag == self.tag);
        let mut response = match is_known {
            true => empty(StatusCode::NOT_MODIFIED),
            false => of_type(self.kind, Reply::Whole(Bytes::from_static(self.content))),
        };
        response.headers_mut().insert(ETAG, self.tag.clone());
        // Browsers ask each time, so that an upgraded server is never shown with older files.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn table_has_every_file_with_its_type() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        let files = std::fs::read_dir(directory).unwrap();
        let files: BTreeSet<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        let served: BTreeSet<_> = Assets::new().0.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(files, served);
    }
}
