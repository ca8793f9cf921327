//! Requests to divvy's API about blocks.

use bytes::Bytes;
use divvy_core::clock::{Timestamp, ceil_seconds};
use divvy_core::rules::{Address, Network};
use hyper::Method;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::yield_now;
use url::form_urlencoded;

use crate::client::{Client, ClientError, whole_body};

/// The owner of the blocks that are bans of CrowdSec.
pub const OWNER: &str = "crowdsec";
/// The name that stands for all rules.
pub const ALL_RULES: &str = "*";
/// Number of blocks in a page.
const PAGE: &str = "1000";
/// Maximum length of an answer (bytes). A page with the longest names and reasons has 10 MB.
const MAX_ANSWER: usize = 32 << 20;
/// Maximum length of a request's body (bytes). divvy's own maximum is 64 KiB, unless it was changed.
const MAX_BODY: usize = 56 << 10;
/// Maximum length of a refusal's text that is logged (bytes).
const MAX_REFUSAL: usize = 300;
/// Maximum time that a block lasts (seconds).
const MAX_LASTS_SECONDS: u64 = 3_155_760_000;

/// A divvy server.
pub struct Divvy {
    client: Client,
    key: Option<HeaderValue>,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum DivvyError {
    /// There is no answer.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The key lacks rights, or is wrong.
    #[error("it refuses the key (status {0}): the user needs the categories read and block, and the scope ~*")]
    Key(StatusCode),
    /// The request was refused, or failed.
    #[error("it answers with status {0}: {1}")]
    Status(StatusCode, String),
    /// The answer is too long.
    #[error("the answer is too long")]
    TooLong,
    /// The answer is not what divvy sends.
    #[error("the answer is not divvy's: {0}")]
    Answer(#[from] serde_json::Error),
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// The rule, or [`ALL_RULES`].
    pub rule: String,
    /// The actor: `field=value` for all rules.
    pub actor: String,
    /// Seconds until it ends; `None` if it lasts until it is removed.
    pub expires_in: Option<u64>,
    /// Why.
    pub reason: Option<String>,
    /// The program that set it.
    pub owner: Option<String>,
}

/// The rule and the actor of a block that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Removed {
    /// The rule, or [`ALL_RULES`].
    pub rule: String,
    /// The actor.
    pub actor: String,
}

#[derive(Deserialize)]
struct Page {
    blocks: Vec<Block>,
    removed: Vec<Removed>,
    sequence: String,
    reset: bool,
    next: Option<String>,
}

/// The changes since the last update.
#[derive(Debug, Default)]
pub struct Update {
    /// Whether `set` has all blocks, and not only changed ones.
    pub is_whole: bool,
    /// The blocks that were set or changed.
    pub set: Vec<Block>,
    /// The blocks that are gone.
    pub removed: Vec<Removed>,
}

/// The blocks that a query finds, followed from one update to the next.
pub struct Feed {
    query: String,
    sequence: Option<String>,
}

impl Feed {
    /// Follows the blocks that this program has set.
    pub fn of_own() -> Self {
        Self { query: query(&[("rule", ALL_RULES), ("owner", OWNER)]), sequence: None }
    }

    /// Follows the blocks of addresses of this field.
    pub fn of_addresses(field: &str) -> Self {
        Self { query: query(&[("field", field)]), sequence: None }
    }
}

/// Numbers of edits by their outcome.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Edited {
    /// Blocks that were set.
    pub set: u64,
    /// Blocks that were removed.
    pub removed: u64,
    /// Blocks of others that were kept.
    pub kept: u64,
    /// Blocks that found no room.
    pub full: u64,
}

/// A block to set or to remove.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Blocks the actor until then, with this reason.
    Set { actor: String, ends: Timestamp, reason: String },
    /// Removes the actor's block.
    Remove { actor: String },
}

impl Divvy {
    /// Returns the server at this URL. Requests have the key, which is a user's token or the server's password.
    pub fn new(client: Client, key: Option<HeaderValue>) -> Self {
        Self { client, key }
    }

    /// Returns the address, for the log.
    pub fn address(&self) -> &str {
        self.client.address()
    }

    /// Returns what has changed since the last call that succeeded.
    ///
    /// # Errors
    /// [`DivvyError`]
    pub async fn follow(&self, feed: &mut Feed) -> Result<Update, DivvyError> {
        let mut update = Update::default();
        while let Some(since) = &feed.sequence {
            let page = self.page(&format!("{}&{}", feed.query, query(&[("since", since)]))).await?;
            if page.reset {
                feed.sequence = None;
                break;
            }
            update.set.extend(page.blocks);
            update.removed.extend(page.removed);
            if page.sequence == *since {
                return Ok(update);
            }
            feed.sequence = Some(page.sequence);
        }
        let mut update = Update { is_whole: true, ..Update::default() };
        let (mut cursor, mut sequence) = (None, None);
        loop {
            let more = cursor.map(|cursor: String| format!("&{}", query(&[("cursor", &cursor)]))).unwrap_or_default();
            let page = self.page(&format!("{}{more}", feed.query)).await?;
            update.set.extend(page.blocks);
            // Later pages miss none of the changes since the first one.
            sequence.get_or_insert(page.sequence);
            cursor = page.next;
            if cursor.is_none() {
                feed.sequence = sequence;
                return Ok(update);
            }
        }
    }

    async fn page(&self, query: &str) -> Result<Page, DivvyError> {
        self.ask(Method::GET, &format!("/v1/blocks?{query}&count={PAGE}"), None).await
    }

    /// Makes these changes, removals first. Calls `note` with the numbers of each part of them.
    ///
    /// # Errors
    /// [`DivvyError`]. Some of the changes may be made.
    pub async fn edit(
        &self,
        edits: impl Iterator<Item = Edit>,
        now: Timestamp,
        mut note: impl FnMut(Edited),
    ) -> Result<(), DivvyError> {
        let mut part = Part::default();
        for edit in edits {
            let (entry, is_new) = match edit {
                Edit::Remove { actor } => (json!({ "rule": ALL_RULES, "actor": actor }), false),
                Edit::Set { actor, ends, reason } => {
                    let seconds = ceil_seconds(ends.since(now)).clamp(1, MAX_LASTS_SECONDS);
                    (json!({ "rule": ALL_RULES, "actor": actor, "expiresIn": seconds, "reason": reason }), true)
                }
            };
            if !part.add(entry, is_new) {
                note(self.send(std::mem::take(&mut part)).await?);
                yield_now().await;
            }
        }
        if !part.is_empty() {
            note(self.send(part).await?);
        }
        Ok(())
    }

    async fn send(&self, Part { set, remove, .. }: Part) -> Result<Edited, DivvyError> {
        let body = json!({ "owner": OWNER, "set": set, "remove": remove });
        self.ask(Method::POST, "/v1/blocks/bulk", Some(body)).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<Value>) -> Result<T, DivvyError> {
        let bytes = body.as_ref().map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut request = self.client.request(method, path, bytes)?;
        if body.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &self.key {
            request.headers_mut().insert(AUTHORIZATION, key.clone());
        }
        self.client
            .send(request, async |response| {
                let status = response.status();
                let body = whole_body(response.into_body(), MAX_ANSWER).await?.ok_or(DivvyError::TooLong)?;
                match status {
                    StatusCode::OK => Ok(serde_json::from_slice(&body)?),
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(DivvyError::Key(status)),
                    status => Err(DivvyError::Status(status, refusal(&body))),
                }
            })
            .await
    }
}

/// Edits of one request.
#[derive(Default)]
struct Part {
    set: Vec<Value>,
    remove: Vec<Value>,
    bytes: usize,
}

impl Part {
    /// Adds an edit. Returns whether there is room for another one of any length.
    fn add(&mut self, entry: Value, is_new: bool) -> bool {
        /// Maximum length of an edit: a long scenario, escaped.
        const MAX_ENTRY: usize = 2 << 10;
        /// Maximum number of edits in a request.
        const MAX_EDITS: usize = 1_000;
        self.bytes += entry.to_string().len() + 1;
        if is_new {
            self.set.push(entry)
        } else {
            self.remove.push(entry)
        }
        self.bytes + MAX_ENTRY <= MAX_BODY && self.set.len() + self.remove.len() < MAX_EDITS
    }

    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}

/// Returns the address or the network of a block of this field; `None` if it is about something else.
pub fn network_of(rule: &str, actor: &str, field: &str) -> Option<Network> {
    let value = if rule == ALL_RULES { actor.strip_prefix(field)?.strip_prefix('=')? } else { actor };
    let of_address = |address: Address| Network::of(address, address.length());
    Network::parse(value).ok().or_else(|| Address::parse(value).map(of_address))
}

/// Returns the text of an error, or the start of another body.
fn refusal(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    let text = match serde_json::from_slice(body) {
        Ok(Problem { detail }) => detail,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    text.get(..text.floor_char_boundary(MAX_REFUSAL)).unwrap_or_default().to_owned()
}

fn query(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_addresses_name_their_network() {
        for (rule, actor, expected) in [
            ("*", "ip=192.0.2.1", Some("192.0.2.1")),
            ("*", "ip=2001:db8::/32", Some("2001:db8::/32")),
            ("*", "ip=localhost", None),
            ("*", "ip2=192.0.2.1", None),
            ("login", "192.0.2.1", Some("192.0.2.1")),
            ("login", "198.51.100.0/24", Some("198.51.100.0/24")),
            ("login", "ip=192.0.2.1", None),
        ] {
            let found = network_of(rule, actor, "ip").map(|network| network.to_string());
            assert_eq!(found.as_deref(), expected, "{rule} {actor}");
        }
    }

    #[test]
    fn parts_fit_into_a_request() {
        let mut part = Part::default();
        let entry = json!({ "rule": "*", "actor": "ip=192.0.2.1", "expiresIn": 14_400, "reason": "x".repeat(300) });
        while part.add(entry.clone(), true) {}
        let body = json!({ "owner": OWNER, "set": part.set, "remove": part.remove }).to_string();
        assert!((MAX_BODY / 2..MAX_BODY + 100).contains(&body.len()), "{}", body.len());
    }
}
