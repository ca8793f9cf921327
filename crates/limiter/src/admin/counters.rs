//! The counters of one rule: listed and forgotten, a page at a time.
//!
//! A rule is found by its name, and its counters by their actors. The number of counters does not matter: a page is
//! bounded, and the caller keeps the cursor.

pub use super::{Page, RuleName};
use super::{canonical_actor, lasting_name};
use crate::Limiter;
use crate::active_rules::{ActiveRules, RuleCounter};
use crate::refusal::{AdminError, Refusal};
use crate::report::Verdict;
use crate::store::{self, Action, Batch, ListedBucket, Listing, Outcomes, SHOW, Store, StoreError, outcome_at};
use divvy_core::algorithm::Limit;
use divvy_core::rules::Scope;

/// Number of counters in a page, unless the client asks for another.
pub const DEFAULT_PAGE: usize = 100;
/// Maximum number of counters in a page.
pub const MAX_PAGE: usize = 1_000;

/// A filter for counters, and the position of a page among them.
#[derive(Debug, Clone, Copy)]
pub struct CountersOf<'a> {
    /// The rule whose counters are listed.
    pub rule: RuleName<'a>,
    /// The actor. `None` stands for all actors.
    pub actor: Option<&'a str>,
    /// The cursor that the previous page returned; `None` for the first page.
    pub cursor: Option<&'a str>,
    /// The approximate number of counters in a page, at most [`MAX_PAGE`].
    pub count: usize,
}

/// One counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// The counter's actor. Empty for the one counter of a rule without actors.
    pub actor: String,
    /// Credits left.
    pub credit: u64,
    /// Credits left, negative if more were used than there were.
    pub balance: i64,
    /// Nanoseconds until there are more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
}

impl Limiter {
    /// Returns a page of a rule's counters in no particular order, without those that are full again. With a store in Redis, a
    /// counter may be listed twice.
    ///
    /// # Errors
    /// There is no such rule, it has no counter, it is out of scope, or the store fails.
    pub async fn counters(&self, of: CountersOf<'_>, scope: &Scope) -> Result<Page<Vec<Counter>>, AdminError> {
        let (counter, mut page) = self.page(of, scope, false).await?;
        self.judge_by_own_limits(&counter, &mut page).await?;
        let counters = page.buckets.into_iter().filter_map(|listed| {
            // A rule's actors are text. A name in Redis that is not text does not belong to divvy.
            let actor = String::from_utf8(listed.actor).ok()?;
            let verdict = Verdict::from(listed.outcome);
            Some(Counter { actor, credit: verdict.credit, balance: verdict.balance(), reset_ns: verdict.reset_ns })
        });
        Ok(Page { content: counters.collect(), next: page.next })
    }

    /// Counts the counters of the rule with this index that are not full again, up to `max` or a little more.
    ///
    /// # Errors
    /// The store fails.
    pub async fn counters_in_use(&self, active: &ActiveRules, index: usize, max: usize) -> Result<usize, StoreError> {
        let Some(counter) = active.counter(index) else { return Ok(0) };
        let (mut count, mut cursor) = (0, None);
        loop {
            let (prefix, limit, now) = (counter.prefix.as_bytes().into(), counter.limit_at(self.now()), self.now());
            let page = self.store.list(Listing { prefix, limit, cursor, count: MAX_PAGE, now }).await?;
            count += page.buckets.len();
            cursor = page.next;
            if cursor.is_none() || count >= max {
                return Ok(count);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Forgets a page of a rule's counters, as durably as hits are taken. Returns their number.
    ///
    /// # Errors
    /// Same as [`Limiter::counters`], or the rule is named by its position. Some counters of the page may be forgotten
    /// anyway.
    pub async fn forget_counters(&self, of: CountersOf<'_>, scope: &Scope) -> Result<Page<u64>, AdminError> {
        let (counter, page) = self.page(of, scope, true).await?;
        let limit = counter.limit_at(self.now());
        let asks = page.buckets.iter().map(|listed| (listed.actor.as_slice(), limit));
        let mut forgotten = 0;
        for outcome in self.apply_to(&counter, Action::Forget, asks).await {
            forgotten += u64::from(outcome?.allowed);
        }
        Ok(Page { content: forgotten, next: page.next })
    }

    /// Decides again for actors that have limits of their own, under these limits.
    async fn judge_by_own_limits(&self, counter: &RuleCounter, page: &mut store::Page) -> Result<(), StoreError> {
        let now = self.now();
        let rule_limit = counter.limit_at(now);
        let mut judged = Vec::new();
        for listed in &mut page.buckets {
            match counter.limit_of(&listed.actor, now) {
                Some(limit) if limit == rule_limit => {}
                Some(limit) => judged.push((listed, limit)),
                None => listed.outcome.left = 0,
            }
        }
        let asks = judged.iter().map(|(listed, limit)| (listed.actor.as_slice(), *limit));
        let outcomes = self.apply_to(counter, SHOW, asks).await;
        for (index, (listed, _)) in judged.into_iter().enumerate() {
            listed.outcome = outcome_at(&outcomes, index)?;
        }
        Ok(())
    }

    /// Returns the rule's counter, and a page, or only the bucket of one actor: the one that is asked for, or the only one in
    /// scope. `is_change` says whether the page is going to be forgotten.
    async fn page(
        &self,
        of: CountersOf<'_>,
        scope: &Scope,
        is_change: bool,
    ) -> Result<(RuleCounter, store::Page), AdminError> {
        let active = self.active_rules().ok_or(Refusal::NoRules)?;
        of.rule.check(Some(&active), of.actor, scope)?;
        let (rule, counter) = of.rule.find(&active)?;
        if let (RuleName::Name(name), true) = (of.rule, is_change) {
            // By its position, the change would apply to another rule if the file was reordered.
            lasting_name(name, rule)?;
        }
        // The actor in the form that hits give it.
        let actor = of.actor.map(|actor| canonical_actor(&of.rule.shown(), rule, actor)).transpose()?;
        let (actor, counter) = (actor.or_else(|| scope.own_actor(rule)), counter.clone());
        drop(active);
        let now = self.now();
        if let Some(actor) = actor {
            let ask = (actor.as_bytes(), counter.limit_at(now));
            let outcome = outcome_at(&self.apply_to(&counter, SHOW, std::iter::once(ask)).await, 0)?;
            let listed = (outcome.reset_ns > 0).then(|| ListedBucket { actor: actor.into(), outcome });
            return Ok((counter, store::Page { buckets: listed.into_iter().collect(), next: None }));
        }
        let listing = Listing {
            prefix: counter.prefix.as_bytes().into(),
            limit: counter.limit_at(now),
            cursor: of.cursor.map(str::to_owned),
            count: of.count.clamp(1, MAX_PAGE),
            now,
        };
        Ok((counter, self.store.list(listing).await?))
    }

    /// Applies the action to the counters of these actors, under the limit of each.
    async fn apply_to<'a>(
        &self,
        counter: &RuleCounter,
        action: Action,
        asks: impl Iterator<Item = (&'a [u8], Limit)>,
    ) -> Outcomes {
        let mut batch = Batch::default();
        batch.begin(self.now());
        for (actor, limit) in asks {
            batch.push(limit, action, batch.now(), |key| counter.prefix.write_key(actor, key));
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
        batch.outcomes
    }
}

#[cfg(test)]
mod tests;
