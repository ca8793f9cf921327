//! Requests to divvy's API about blocks.

use std::borrow::Cow;

use anyhow::{Context, bail};
use divvy_core::clock::{Timestamp, ceil_seconds};
use divvy_core::rules::{Address, Network};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::yield_now;
use url::form_urlencoded;

use crate::client::Client;

/// The owner of the blocks that are bans of CrowdSec.
pub const OWNER: &str = "crowdsec";
/// Beginning of the reason of a block that is a ban of CrowdSec.
pub const MARK: &str = "crowdsec: ";
/// The name that stands for all rules.
pub const ALL_RULES: &str = "*";
/// Number of blocks in a page.
const PAGE: &str = "1000";
/// Maximum length of an answer (bytes). A page with the longest names and reasons has 10 MB.
const MAX_ANSWER: usize = 32 << 20;
/// Maximum length of a request's body (bytes). divvy's own maximum is 64 KiB, unless it was changed.
const MAX_BODY: usize = 56 << 10;
/// Maximum length of an edit: a long scenario, escaped.
const MAX_ENTRY: usize = 2 << 10;
/// Maximum number of edits in a request.
const MAX_EDITS: usize = 1_000;
/// Maximum length of a refusal's text that is logged (bytes).
const MAX_REFUSAL: usize = 300;
/// Maximum time that a block lasts (seconds).
const MAX_LASTS_SECONDS: u64 = 3_155_760_000;

/// A divvy server.
pub struct Divvy {
    /// Sends a user's token, or the server's password.
    pub client: Client,
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

impl Block {
    /// Returns the address or the network of a block of this field; `None` if it is about something else.
    pub fn network(&self, field: &str) -> Option<Network> {
        let of_all = || self.actor.strip_prefix(field)?.strip_prefix('=');
        let value = if self.rule == ALL_RULES { of_all()? } else { &self.actor };
        let of_address = |address: Address| Network::of(address, address.length());
        Network::parse(value).ok().or_else(|| Address::parse(value).map(of_address))
    }
}

#[derive(Deserialize)]
struct Page {
    blocks: Vec<Block>,
    removed: Vec<Block>,
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
    /// The rules and the actors of the blocks that are gone.
    pub removed: Vec<Block>,
}

/// The blocks that a query finds, followed from one update to the next.
pub struct Feed {
    query: String,
    sequence: Option<String>,
}

impl Feed {
    /// Follows the blocks that the query with these pairs finds.
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        Self { query: query(pairs), sequence: None }
    }
}

/// Numbers of edits by their outcome.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct EditCounts {
    /// Blocks that were set.
    pub set: u64,
    /// Blocks that were removed.
    pub removed: u64,
    /// Blocks of others that were kept.
    pub kept: u64,
    /// Blocks that found no room.
    pub full: u64,
}

/// A block to set or to remove: the list of the request that it is in, and its entry there.
pub struct Edit(&'static str, Value);

impl Edit {
    /// Blocks the actor until then, with this reason.
    pub fn set(actor: String, now: Timestamp, ends: Timestamp, reason: String) -> Self {
        let seconds = ceil_seconds(ends.since(now)).clamp(1, MAX_LASTS_SECONDS);
        Self("set", json!({ "rule": ALL_RULES, "actor": actor, "expiresIn": seconds, "reason": reason }))
    }

    /// Removes the actor's block.
    pub fn remove(actor: String) -> Self {
        Self("remove", json!({ "rule": ALL_RULES, "actor": actor }))
    }
}

impl Divvy {
    /// Returns what has changed since the last call that succeeded.
    ///
    /// # Errors
    /// divvy does not answer, or refuses the request.
    pub async fn follow(&self, feed: &mut Feed) -> anyhow::Result<Update> {
        let mut update = Update::default();
        while let Some(since) = &feed.sequence {
            let page = self.page(&feed.query, Some(("since", since))).await?;
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
        update = Update { is_whole: true, ..Update::default() };
        let (mut cursor, mut sequence) = (None::<String>, None);
        loop {
            let page = self.page(&feed.query, cursor.as_deref().map(|cursor| ("cursor", cursor))).await?;
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

    async fn page(&self, of_feed: &str, place: Option<(&str, &str)>) -> anyhow::Result<Page> {
        let place: Vec<_> = place.into_iter().chain([("count", PAGE)]).collect();
        self.ask(Method::GET, &format!("/v1/blocks?{of_feed}&{}", query(&place)), None).await
    }

    /// Makes these changes. Adds the numbers of each request to `edited`.
    ///
    /// # Errors
    /// divvy does not answer, or refuses a request. Some of the changes may be made.
    pub async fn edit(&self, edits: impl Iterator<Item = Edit>, edited: &mut EditCounts) -> anyhow::Result<()> {
        let mut edits = edits.peekable();
        while edits.peek().is_some() {
            let body = Some(next_request(&mut edits));
            let EditCounts { set, removed, kept, full } = self.ask(Method::POST, "/v1/blocks/bulk", body).await?;
            edited.set += set;
            edited.removed += removed;
            edited.kept += kept;
            edited.full += full;
            yield_now().await;
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<T> {
        match self.client.send(method, path, body.map(|body| body.to_string()), MAX_ANSWER).await? {
            (StatusCode::OK, body) => serde_json::from_slice(&body).context("the answer is not divvy's"),
            (status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _) => bail!(
                "it refuses the key (status {status}): the user needs the categories read and block, and the scope ~*"
            ),
            (status, body) => bail!("it answers with status {status}: {}", refusal(&body)),
        }
    }
}

/// Returns the body of a request with as many of the next edits as fit into it.
fn next_request(edits: &mut impl Iterator<Item = Edit>) -> Value {
    let (mut set, mut remove, mut bytes) = (Vec::new(), Vec::new(), 0);
    while bytes + MAX_ENTRY <= MAX_BODY
        && set.len() + remove.len() < MAX_EDITS
        && let Some(Edit(list, entry)) = edits.next()
    {
        bytes += entry.to_string().len() + 1;
        if list == "set" { set.push(entry) } else { remove.push(entry) }
    }
    json!({ "owner": OWNER, "set": set, "remove": remove })
}

/// Returns the text of an error, or the start of another body.
fn refusal(body: &[u8]) -> String {
    let problem = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let detail = problem.get("detail").and_then(Value::as_str);
    let text = detail.map_or_else(|| String::from_utf8_lossy(body), Cow::Borrowed);
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
            let block: Block = serde_json::from_value(json!({ "rule": rule, "actor": actor })).unwrap();
            let found = block.network("ip").map(|network| network.to_string());
            assert_eq!(found.as_deref(), expected, "{rule} {actor}");
        }
    }

    #[test]
    fn edits_fit_into_requests() {
        let now = Timestamp::EPOCH;
        let mut edits = std::iter::repeat_with(|| Edit::set("ip=192.0.2.1".to_owned(), now, now, "x".repeat(300)));
        let body = next_request(&mut edits).to_string();
        assert!((MAX_BODY / 2..MAX_BODY + 100).contains(&body.len()), "{}", body.len());
        let mut edits = std::iter::repeat_with(|| Edit::remove(String::new())).take(MAX_EDITS + 1);
        let removed =
            [next_request(&mut edits), next_request(&mut edits)].map(|body| body["remove"].as_array().unwrap().len());
        assert_eq!(removed, [MAX_EDITS, 1]);
    }
}
