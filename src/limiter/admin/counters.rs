//! The counters of one rule: listed and forgotten, a page at a time.
//!
//! Here a rule is found by its name, and its counters by their actors. How many there are never matters: a page is
//! bounded, and the caller holds the cursor.

use std::sync::Arc;

use crate::algorithm::Limit;
use crate::clock::Timestamp;
use crate::limiter::Limiter;
use crate::limiter::error::{ErrorClass, LimiterError, Remedy};
use crate::limiter::policy::{DEFAULT_RULE, Policy};
use crate::limiter::refusal::Refusal;
use crate::limiter::verdict::Verdict;
use crate::rules::{Operation, Rule, header};
use crate::store::listing::SHOW;
use crate::store::{Action, Batch, Listed, Listing, Page, Store, StoreError};

/// Counters in a page, unless the client says otherwise.
pub const DEFAULT_PAGE: usize = 100;
/// Counters in a page, at most.
pub const MAX_PAGE: usize = 1_000;

/// How a rule is named.
#[derive(Debug, Clone, Copy)]
pub enum RuleName<'a> {
    /// The rule's label, or `default` for the default rule.
    Label(&'a str),
    /// The rule's operation, as the rules file has it, in any order.
    Operation(&'a Operation),
}

/// The counters to list or forget.
#[derive(Debug, Clone, Copy)]
pub struct CountersOf<'a> {
    pub rule: RuleName<'a>,
    /// One actor's; `None`: every actor's.
    pub actor: Option<&'a str>,
    /// Where the page before ended; `None`: from the start.
    pub cursor: Option<&'a str>,
    /// About how many to a page, at most [`MAX_PAGE`].
    pub count: usize,
}

/// Why there is no page.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CountersError {
    #[error("no rule has the label '{0}'")]
    NoSuchLabel(String),
    #[error("no rule has the operation '{0}'; write it as the rules file does, patterns included")]
    NoSuchOperation(String),
    #[error("more than one rule has the operation '{0}'; give them labels, and ask by label")]
    AmbiguousOperation(String),
    #[error("rule '{0}' counts nothing: it allows all or denies all")]
    Uncounted(String),
    /// It is not one of a page before.
    #[error("{0}")]
    InvalidCursor(StoreError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl LimiterError for CountersError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoSuchLabel(_) | Self::NoSuchOperation(_) => ErrorClass::NotFound,
            Self::AmbiguousOperation(_) | Self::Uncounted(_) => ErrorClass::BadRequest,
            Self::InvalidCursor(error) => error.class(),
            Self::Refused(refusal) => refusal.class(),
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoSuchLabel(_) => Some(Remedy::ListRules),
            Self::Refused(refusal) => refusal.remedy(),
            _ => None,
        }
    }
}

impl From<StoreError> for CountersError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::InvalidCursor(_) => Self::InvalidCursor(error),
            StoreError::Failed(_)
            | StoreError::Unreachable(_)
            | StoreError::Overloaded(_)
            | StoreError::Impossible(_) => Self::Refused(error.into()),
        }
    }
}

/// One counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Whose it is; empty for the one counter of a rule without actors.
    pub actor: String,
    /// Credits left.
    pub credit: u64,
    /// The same, and below 0 where more was used than there is.
    pub balance: i64,
    /// Nanoseconds until there are more, as the rule's algorithm defines it.
    pub reset_ns: u64,
}

/// A page of counters, in no particular order. It may be empty and not the last one.
#[derive(Debug, Clone, Default)]
pub struct CounterPage {
    pub counters: Vec<Counter>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// The result of forgetting a page of counters.
#[derive(Debug, Clone, Default)]
pub struct ForgottenPage {
    pub forgotten: u64,
    /// Same as [`CounterPage::next`].
    pub next: Option<String>,
}

impl Limiter {
    /// Returns a page of a rule's counters, without those that are full again. With a store in Redis, a counter may be listed
    /// twice.
    ///
    /// # Errors
    /// When there is no such rule or it counts nothing, and when the store fails.
    pub async fn counters(&self, of: CountersOf<'_>) -> Result<CounterPage, CountersError> {
        let (mut page, rule) = self.page(of).await?;
        self.judge_by_own_limits(&rule, &mut page).await?;
        let counters = page.buckets.into_iter().filter_map(|bucket| {
            // A rule's actors are text; Redis may hold a name that is not, and not ours.
            let actor = String::from_utf8(bucket.actor).ok()?;
            let verdict = Verdict::from(bucket.outcome);
            Some(Counter { actor, credit: verdict.credit, balance: verdict.balance(), reset_ns: verdict.reset_ns })
        });
        Ok(CounterPage { counters: counters.collect(), next: page.next })
    }

    /// Forgets a page of a rule's counters, as durably as hits are taken.
    ///
    /// # Errors
    /// Same as [`Limiter::counters`]. Some of the page may be forgotten then.
    pub async fn forget_counters(&self, of: CountersOf<'_>) -> Result<ForgottenPage, CountersError> {
        let (page, rule) = self.page(of).await?;
        let actors = page.buckets.iter().map(|bucket| bucket.actor.as_slice());
        let batch = self.apply_to(&rule, Action::Forget, actors).await;
        let mut forgotten = 0;
        for index in 0..batch.len() {
            forgotten += u64::from(batch.outcome(index)?.allowed);
        }
        Ok(ForgottenPage { forgotten, next: page.next })
    }

    /// Decides again for actors with limits of their own, by these limits.
    async fn judge_by_own_limits(&self, rule: &Counted, page: &mut Page) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        batch.begin(self.now());
        let mut asked = Vec::new();
        for listed in &mut page.buckets {
            match rule.own_limit(&listed.actor, batch.now()) {
                OwnLimit::None => {}
                OwnLimit::Nothing => listed.outcome.left = 0,
                OwnLimit::Limit(limit) => {
                    batch.push(limit, SHOW, batch.now(), |key| rule.write_key(&listed.actor, key));
                    asked.push(listed);
                }
            }
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
        for (index, listed) in asked.into_iter().enumerate() {
            listed.outcome = batch.outcome(index)?;
        }
        Ok(())
    }

    async fn page(&self, of: CountersOf<'_>) -> Result<(Page, Counted), CountersError> {
        let policy = self.policy().ok_or(Refusal::NoRules)?;
        let rule = counted(policy, of.rule, self.now())?;
        let page = match of.actor {
            Some(actor) => self.one(&rule, actor).await?,
            None => {
                let listing = Listing {
                    prefix: rule.prefix().into(),
                    limit: rule.limit,
                    cursor: of.cursor.map(str::to_owned),
                    count: of.count.clamp(1, MAX_PAGE),
                    now: self.now(),
                };
                self.store.list(listing).await?
            }
        };
        Ok((page, rule))
    }

    /// The page that holds the counter of `actor` if there is one.
    async fn one(&self, rule: &Counted, actor: &str) -> Result<Page, StoreError> {
        let batch = self.apply_to(rule, SHOW, [actor.as_bytes()].into_iter()).await;
        let outcome = batch.outcome(0)?;
        let shown = Listed { actor: actor.into(), outcome };
        Ok(Page { buckets: if outcome.reset_ns > 0 { vec![shown] } else { Vec::new() }, next: None })
    }

    async fn apply_to<'a>(&self, rule: &Counted, action: Action, actors: impl Iterator<Item = &'a [u8]>) -> Batch {
        let mut batch = Batch::default();
        batch.begin(self.now());
        for actor in actors {
            batch.push(rule.limit, action, batch.now(), |key| rule.write_key(actor, key));
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
        batch
    }
}

/// A rule that counts.
struct Counted {
    policy: Arc<Policy>,
    place: usize,
    limit: Limit,
}

/// The limit of an actor in place of its rule's.
enum OwnLimit {
    None,
    Limit(Limit),
    Nothing,
}

impl Counted {
    fn prefix(&self) -> &[u8] {
        self.policy.bucket(self.place).map(|bucket| bucket.prefix.as_bytes()).unwrap_or_default()
    }

    /// Appends the key of the actor's counter.
    fn write_key(&self, actor: &[u8], key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(actor);
    }

    fn own_limit(&self, actor: &[u8], now: Timestamp) -> OwnLimit {
        let limit = self.policy.bucket(self.place).map(|bucket| bucket.limit_of(actor, now));
        match limit {
            Some(Some(limit)) if limit != self.limit => OwnLimit::Limit(limit),
            Some(None) => OwnLimit::Nothing,
            Some(Some(_)) | None => OwnLimit::None,
        }
    }
}

fn counted(policy: Arc<Policy>, name: RuleName, now: Timestamp) -> Result<Counted, CountersError> {
    let place = place(&policy, name)?;
    match policy.bucket(place).map(|bucket| bucket.limit_at(now)) {
        Some(limit) => Ok(Counted { policy, place, limit }),
        None => Err(CountersError::Uncounted(shown(name))),
    }
}

/// The index of the rule with this name.
pub(super) fn place(policy: &Policy, name: RuleName) -> Result<usize, CountersError> {
    let rules = policy.rules.rules();
    match name {
        RuleName::Label(label) => rules
            .iter()
            .position(|rule| rule.label.as_deref() == Some(label))
            .or_else(|| rules.iter().position(|rule| label == DEFAULT_RULE && rule.is_default()))
            .ok_or_else(|| CountersError::NoSuchLabel(shown(name))),
        RuleName::Operation(operation) => {
            // Every key of a rule is there once, so as many pairs, all of them found, are the same pairs.
            let is_same = |rule: &Rule| {
                rule.operation.len() == operation.iter().len()
                    && rule.pairs().all(|(key, value)| operation.get(key) == Some(value))
            };
            let mut found = rules.iter().enumerate().filter(|(_, rule)| is_same(rule)).map(|(place, _)| place);
            match (found.next(), found.next()) {
                (Some(place), None) => Ok(place),
                (Some(_), Some(_)) => Err(CountersError::AmbiguousOperation(shown(name))),
                (None, _) => Err(CountersError::NoSuchOperation(shown(name))),
            }
        }
    }
}

/// The start of a name, for messages: a client may have sent a very long one.
pub(super) fn shown(name: RuleName) -> String {
    const SHOWN: usize = 200;
    match name {
        RuleName::Label(label) => label.chars().take(SHOWN).collect(),
        RuleName::Operation(operation) => header(operation.iter()).chars().take(SHOWN).collect(),
    }
}

#[cfg(test)]
mod tests;
