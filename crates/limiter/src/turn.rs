//! One turn, one plan: what reaches a thread in one turn of its event loop is applied to the store together.
//!
//! The first request of a turn opens the thread's plan, and spawns the task that ends the turn. The scheduler runs that task after
//! all tasks that were ready, so each of them can add its requests first. Then the plan is applied, and its callers are woken. The
//! task belongs to no caller: if a client leaves, its requests still count, and the others get their answers.
//!
//! A distant store takes each caller's requests alone, so that no caller waits for another one's node.

use std::future::poll_fn;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tokio::task::coop::unconstrained;

use super::Limiter;
use crate::active_rules::ActiveRules;
use crate::caller_task::WokenTasks;
use crate::plan::{Plan, PlanBuilder};
use crate::report::Report;
use divvy_core::clock::Timestamp;
use divvy_core::rules::Scope;

/// A plan with at least this weight takes no more callers (bytes).
const MAX_WEIGHT: usize = 1024 * 1024;
/// Number of callers beyond which a commit does not become cheaper for each of them. Each caller holds its buffers until it has its
/// answers.
const ENOUGH_CALLERS: usize = 256;
/// Number of plans whose buffers a thread keeps.
const MAX_SPARE: usize = 8;
/// A plan with more memory than this is not kept (bytes).
const MAX_KEPT: usize = 256 * 1024;

/// The open plan of a thread, and what is left of earlier ones.
#[derive(Default)]
pub(crate) struct Lane {
    builder: PlanBuilder,
    /// The turn of the open plan; `None` until a caller adds a request.
    turn: Option<Arc<Turn>>,
    /// Number of callers of the open plan.
    callers: usize,
    /// Revision of the blocks that the open plan knows.
    blocks: u64,
    /// Buffers of earlier plans.
    spare: Vec<Plan>,
}

/// A turn, from its first request until all callers have their answers.
struct Turn {
    /// The plan, once it is applied.
    applied: OnceLock<Plan>,
    /// Tasks to wake then.
    waiting: Mutex<Vec<Waker>>,
    lane: Arc<Mutex<Lane>>,
}

/// Requests in a turn. They count even if this is dropped.
#[must_use]
pub struct Asked {
    /// `None` if there are no requests.
    turn: Option<Arc<Turn>>,
    requests: Range<usize>,
}

/// The answers to a caller's requests.
pub struct Answers(Asked);

impl Limiter {
    /// Adds a caller's requests to the open plan of this thread, under the rules in force and within the scope. The
    /// requests follow each other in one plan.
    ///
    /// # Errors
    /// The error of `add`. Nothing is added then.
    pub fn ask<E>(
        self: &Arc<Self>,
        scope: &Scope,
        add: impl FnOnce(&mut PlanBuilder) -> Result<(), E>,
    ) -> Result<Asked, E> {
        self.ask_under(None, scope, add)
    }

    /// Adds a caller's requests as [`Limiter::ask`] does, under these rules if there are some.
    ///
    /// # Errors
    /// See [`Limiter::ask`].
    pub fn ask_under<E>(
        self: &Arc<Self>,
        pinned: Option<&Arc<ActiveRules>>,
        scope: &Scope,
        add: impl FnOnce(&mut PlanBuilder) -> Result<(), E>,
    ) -> Result<Asked, E> {
        let shared = self.lanes.get_or_default();
        let mut guard = shared.lock();
        let lane = &mut *guard;
        if lane.turn.is_some() && !self.may_join(lane, pinned) {
            self.end(lane);
        }
        if lane.turn.is_some() {
            lane.builder.set_scope(scope);
        } else {
            if let Some(spare) = lane.spare.pop() {
                lane.builder.reuse(spare);
            }
            lane.callers = 0;
            // This is read before the blocks, so that it is never newer than they are.
            lane.blocks = self.exceptions.memory.owners_revision();
            let rules = pinned.cloned().or_else(|| self.active_rules());
            self.begin_under(&mut lane.builder, rules, scope);
        }
        let first = lane.builder.begin_caller();
        if let Err(error) = add(&mut lane.builder) {
            lane.builder.cancel_caller();
            lane.leave_empty();
            return Err(error);
        }
        let requests = first..lane.builder.plan().len();
        if requests.is_empty() {
            lane.leave_empty();
            return Ok(Asked { turn: None, requests });
        }
        lane.callers += 1;
        let turn = match &lane.turn {
            Some(turn) => Arc::clone(turn),
            None => {
                let turn =
                    Arc::new(Turn { applied: OnceLock::new(), waiting: Mutex::default(), lane: Arc::clone(shared) });
                lane.turn = Some(Arc::clone(&turn));
                if self.store.is_shared() {
                    self.end(lane);
                } else {
                    let (limiter, turn) = (Arc::clone(self), Arc::clone(&turn));
                    tokio::spawn(async move {
                        if let Some(plan) = turn.close() {
                            limiter.answer(turn, plan).await;
                        }
                    });
                }
                turn
            }
        };
        Ok(Asked { turn: Some(turn), requests })
    }

    /// Returns whether the open plan of this thread has room for more callers. A connection reads no requests before, because it
    /// would hold them until the plan and the tasks before it have had their turn.
    pub fn has_room(&self) -> bool {
        self.lanes.get().is_none_or(|lane| !lane.lock().is_full())
    }

    /// Returns whether a caller may join the open plan. It may not if the rules or the blocks in force are other ones.
    fn may_join(&self, lane: &Lane, pinned: Option<&Arc<ActiveRules>>) -> bool {
        let known = lane.builder.plan().active.as_ref().map(Arc::as_ptr);
        let is_under = |rules: Option<&Arc<ActiveRules>>| known == rules.map(Arc::as_ptr);
        !lane.is_full()
            && lane.blocks == self.exceptions.memory.owners_revision()
            && if pinned.is_some() { is_under(pinned) } else { is_under(self.active.load().as_ref()) }
    }

    /// Ends the turn of the open plan before the thread's other tasks have run.
    fn end(self: &Arc<Self>, lane: &mut Lane) {
        if let Some(turn) = lane.turn.take() {
            let (limiter, plan) = (Arc::clone(self), lane.builder.build());
            tokio::spawn(async move { limiter.answer(turn, plan).await });
        }
    }

    /// Applies the plan, and wakes or runs its callers.
    async fn answer(&self, turn: Arc<Turn>, plan: Plan) {
        let mut unanswered = Unanswered { turn, plan };
        self.apply(&mut unanswered.plan).await;
        // Unconstrained: each caller has a budget of its own, as it would have in its task.
        unconstrained(async {
            let _woken = WokenTasks::collect();
            drop(unanswered);
        })
        .await;
    }
}

impl Lane {
    /// Returns whether the open plan takes no more callers.
    fn is_full(&self) -> bool {
        self.turn.is_some() && (self.callers >= ENOUGH_CALLERS || self.builder.plan().weight() >= MAX_WEIGHT)
    }

    /// Gives up a plan without requests.
    fn leave_empty(&mut self) {
        if self.turn.is_none() {
            let plan = self.builder.build();
            self.keep(plan);
        }
    }

    /// Keeps the buffers of a plan that is no longer needed, if they are small.
    fn keep(&mut self, mut plan: Plan) {
        if self.spare.len() < MAX_SPARE && plan.memory() <= MAX_KEPT {
            // An idle thread keeps no rules.
            plan.begin(None, Timestamp::EPOCH);
            self.spare.push(plan);
        }
    }
}

impl Turn {
    /// Takes the plan, unless the turn has ended before.
    fn close(self: &Arc<Self>) -> Option<Plan> {
        let mut lane = self.lane.lock();
        lane.turn.take_if(|open| Arc::ptr_eq(open, self)).map(|_| lane.builder.build())
    }

    /// Is ready once the plan is applied. Otherwise, wakes the task then. `place` is the task's place among those that wait.
    fn poll_applied(&self, place: &mut Option<usize>, task: &Waker) -> Poll<()> {
        if self.applied.get().is_some() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        // It may have been applied just now.
        if self.applied.get().is_some() {
            return Poll::Ready(());
        }
        match place.and_then(|place| waiting.get_mut(place)) {
            Some(known) => known.clone_from(task),
            None => {
                *place = Some(waiting.len());
                waiting.push(task.clone());
            }
        }
        Poll::Pending
    }
}

/// The buffers are used again once the last caller has its answers.
impl Drop for Turn {
    fn drop(&mut self) {
        // The caller that drops this may have locked the lane.
        if let (Some(plan), Some(mut lane)) = (self.applied.take(), self.lane.try_lock()) {
            lane.keep(plan);
        }
    }
}

/// A plan that the store is applying. Dropping it answers its callers. Requests without an outcome have failed.
struct Unanswered {
    turn: Arc<Turn>,
    plan: Plan,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // It is set once, here.
        let _ = self.turn.applied.set(mem::take(&mut self.plan));
        let waiting = mem::take(&mut *self.turn.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Asked {
    /// Waits for the answers.
    pub async fn answers(self) -> Answers {
        if let Some(turn) = &self.turn {
            let mut place = None;
            poll_fn(|context| turn.poll_applied(&mut place, context.waker())).await;
        }
        Answers(self)
    }
}

impl Answers {
    /// Returns the report on the caller's requests.
    pub fn report(&self) -> Report<'_> {
        static NOTHING: OnceLock<Plan> = OnceLock::new();
        let Self(Asked { turn, requests }) = self;
        // The plan of a turn is there, because there are answers.
        let applied = turn.as_ref().map_or(&NOTHING, |turn| &turn.applied);
        Report::new(applied.get_or_init(Plan::default), requests.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;
    use crate::exceptions::{ExceptionTarget, ExceptionTerms};
    use crate::store::{Backend, ExceptionKind, FailurePolicy, RedisOptions, RedisStore, StoreError};
    use crate::tests::{limiter_of, limiter_on, operation, parse_rules, replace_rules};
    use crate::{CallerTask, Intent, Refusal};
    use divvy_core::clock::Clock;

    const RULES: &str =
        "[user=*]; creditLimit = 10; resetSeconds = 60; actorField = user; label = users; [default]; creditLimit = 0";

    fn hit(limiter: &Arc<Limiter>, user: &str) -> Asked {
        let Ok(asked) = limiter.ask(&Scope::EVERYTHING, |builder| {
            builder.add(&operation(&format!("user={user}")), Intent::Hit, None);
            Ok::<_, Infallible>(())
        });
        asked
    }

    async fn credit(asked: Asked) -> Option<u64> {
        let answers = asked.answers().await;
        let report = answers.report();
        assert_eq!(report.len(), 1);
        report.verdict(0).ok().map(|verdict| verdict.credit)
    }

    /// Returns the number of requests, and of plans, that were applied.
    fn applied(limiter: &Limiter) -> (u64, u64) {
        let buckets = limiter.metrics().batches.requests.observed();
        buckets.iter().fold((0, 0), |(sum, count), bucket| (sum + bucket.sum, count + bucket.observations))
    }

    #[tokio::test]
    async fn callers_of_a_turn_share_a_plan_and_get_their_own_answers() {
        let limiter = Arc::new(limiter_of(RULES));
        let (one, two) = (hit(&limiter, "ann"), hit(&limiter, "ann"));
        let Ok(none) = limiter.ask(&Scope::EVERYTHING, |_| Ok::<_, Infallible>(()));
        let three = hit(&limiter, "bob");
        assert!(none.answers().await.report().is_empty());
        assert_eq!(applied(&limiter), (0, 0), "the turn is not over");
        assert_eq!((credit(three).await, credit(two).await, credit(one).await), (Some(9), Some(8), Some(9)));
        assert_eq!(applied(&limiter), (3, 1));
        assert_eq!(credit(hit(&limiter, "ann")).await, Some(7));
        assert_eq!(applied(&limiter), (4, 2));
    }

    #[tokio::test]
    async fn panic_of_a_caller_reaches_no_other_one() {
        let limiter = Arc::new(limiter_of(RULES));
        let task = |panics: bool| {
            let limiter = Arc::clone(&limiter);
            let (answered, answer) = tokio::sync::oneshot::channel();
            let asks = async move {
                let credit = credit(hit(&limiter, "ann")).await;
                assert!(!panics);
                let _ = answered.send((credit, tokio::task::id()));
            };
            (tokio::spawn(CallerTask::new(asks)), answer)
        };
        let ((one, first), (two, second), (three, third)) = (task(false), task(true), task(false));
        let (ids, (first, third)) = ((one.id(), three.id()), tokio::join!(first, third));
        let (first, third) = (first.unwrap(), third.unwrap());
        assert_eq!((first.0, third.0), (Some(9), Some(7)));
        assert!(first.1 == third.1 && first.1 != ids.0 && third.1 != ids.1, "the turn ran them");
        assert!(second.await.is_err());
        for task in [one, two, three] {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn aborted_caller_ends_at_once() {
        let limiter = Arc::new(limiter_of(RULES));
        let (inside, asks) = (Arc::new(()), Arc::clone(&limiter));
        let known = Arc::downgrade(&inside);
        let mut task = Box::pin(CallerTask::new(async move {
            let _ = credit(hit(&asks, "ann")).await;
            drop(inside);
        }));
        assert!(futures_util::poll!(&mut task).is_pending());
        drop(task);
        assert!(known.upgrade().is_none(), "before the turn has its answer");
        assert_eq!(credit(hit(&limiter, "ann")).await, Some(8), "its hit counts");
    }

    #[tokio::test]
    async fn hits_of_a_caller_that_leaves_count() {
        let limiter = Arc::new(limiter_of(RULES));
        drop(hit(&limiter, "ann"));
        assert_eq!(credit(hit(&limiter, "ann")).await, Some(8));
        let mut waits = Box::pin(hit(&limiter, "ann").answers());
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(waits);
        assert_eq!(credit(hit(&limiter, "ann")).await, Some(6));
        assert_eq!(limiter.metrics().hits.counted().iter().map(|count| count.hits).sum::<u64>(), 4);
    }

    #[tokio::test]
    async fn caller_with_an_error_leaves_nothing_behind() {
        let limiter = Arc::new(limiter_of(RULES));
        let one = hit(&limiter, "ann");
        let failed = limiter.ask(&Scope::EVERYTHING, |builder| {
            builder.add(&operation("user=ann"), Intent::Hit, None);
            builder.add(&operation("user=bob"), Intent::Hit, None);
            assert!(builder.refusals().next().is_none() && builder.weight() > 0);
            Err("no")
        });
        assert_eq!(failed.err(), Some("no"));
        assert!(limiter.ask(&Scope::EVERYTHING, |_| Err("alone")).is_err());
        assert_eq!((credit(hit(&limiter, "bob")).await, credit(one).await), (Some(9), Some(9)));
        assert_eq!(applied(&limiter), (2, 1));
    }

    /// A client that has seen the answer to a change must find it in force.
    #[tokio::test]
    async fn changes_apply_to_callers_after_them() {
        let limiter = Arc::new(limiter_of(RULES));
        let before = hit(&limiter, "ann");
        replace_rules(&limiter, &RULES.replace("10", "20"));
        let after = hit(&limiter, "bob");
        assert_eq!((credit(before).await, credit(after).await), (Some(9), Some(19)));
        assert_eq!(applied(&limiter), (2, 2));

        let before = hit(&limiter, "bob");
        let target = ExceptionTarget { rule: "*", actor: "user=bob", kind: ExceptionKind::Block };
        limiter.set_exception(target, ExceptionTerms::default(), &Scope::EVERYTHING).await.unwrap();
        let blocked = hit(&limiter, "bob").answers().await;
        assert!(!blocked.report().verdict(0).unwrap().allowed);
        assert_eq!(credit(before).await, Some(18));
    }

    #[tokio::test]
    async fn callers_of_an_aborted_plan_get_an_error() {
        let limiter = Arc::new(limiter_of(RULES));
        let asked = hit(&limiter, "ann");
        let turn = asked.turn.clone().unwrap();
        let plan = turn.close().unwrap();
        drop(Unanswered { turn, plan });
        let answers = asked.answers().await;
        assert!(matches!(answers.report().verdict(0), Err(Refusal::Store(_))));
    }

    /// Each client leaves before the store's timeout, so no client sees the timeout that opens the breaker.
    #[tokio::test]
    async fn outage_is_noticed_if_no_client_waits_for_it() {
        // This server accepts connections, and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let urls = vec![format!("redis://{}", silent.local_addr().unwrap())];
        let options = RedisOptions { urls, timeout: Duration::from_millis(100), ..RedisOptions::default() };
        let store = Backend::redis(RedisStore::open(options).unwrap(), 0, FailurePolicy::Error, Clock::system());
        let limiter = Arc::new(limiter_on(store, parse_rules(RULES)));
        let impatient = async {
            loop {
                let mut answers = Box::pin(hit(&limiter, "ann").answers());
                tokio::task::yield_now().await;
                if let Poll::Ready(answers) = futures_util::poll!(&mut answers) {
                    break answers;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let answers = tokio::time::timeout(Duration::from_secs(30), impatient).await.unwrap();
        let answer = answers.report().verdict(0);
        assert!(matches!(answer, Err(Refusal::Store(StoreError::Unreachable(_)))), "{answer:?}");
    }

    #[tokio::test]
    async fn idle_thread_keeps_no_rules() {
        let limiter = Arc::new(limiter_of(RULES));
        let active = limiter.active_rules().unwrap();
        let in_use = Arc::strong_count(&active);
        assert!(limiter.ask(&Scope::EVERYTHING, |_| Err("no")).is_err());
        assert_eq!(Arc::strong_count(&active), in_use, "after an error");
        let _nothing = limiter.ask(&Scope::EVERYTHING, |_| Ok::<_, Infallible>(()));
        assert_eq!(Arc::strong_count(&active), in_use, "without requests");
        let answers = hit(&limiter, "ann").answers().await;
        assert_eq!(Arc::strong_count(&active), in_use + 1);
        drop(answers);
        assert_eq!(Arc::strong_count(&active), in_use, "after the answers");
    }

    #[tokio::test]
    async fn full_plan_has_no_room_until_its_turn_is_over() {
        let limiter = Arc::new(limiter_of(&RULES.replace("10;", "1000;")));
        assert!(limiter.has_room());
        let mut asked: Vec<_> = (0..ENOUGH_CALLERS).map(|_| hit(&limiter, "ann")).collect();
        assert!(!limiter.has_room());
        // A front that has read a request anyway begins the next plan.
        asked.push(hit(&limiter, "ann"));
        assert!(limiter.has_room());
        for (taken, asked) in (1..).zip(asked) {
            assert_eq!(credit(asked).await, Some(1_000 - taken));
        }
        assert_eq!(applied(&limiter), (ENOUGH_CALLERS as u64 + 1, 2));

        let large = limiter.ask(&Scope::EVERYTHING, |builder| {
            while builder.weight() < MAX_WEIGHT {
                builder.add(&operation("user=bob"), Intent::Peek, None);
            }
            Ok::<_, Infallible>(())
        });
        assert!(!limiter.has_room());
        let Ok(large) = large;
        drop(large.answers().await);
        assert!(limiter.has_room() && limiter.lanes.get().unwrap().lock().spare.len() == 1, "a large plan is not kept");
    }

    #[tokio::test]
    async fn buffers_are_used_again() {
        let limiter = Arc::new(limiter_of(RULES));
        for _ in 0..10 {
            let _ = tokio::join!(credit(hit(&limiter, "ann")), credit(hit(&limiter, "bob")));
        }
        let lane = limiter.lanes.get().unwrap().lock();
        let spare = lane.spare.iter().map(|plan| (plan.memory() > 0, plan.active.is_none())).collect::<Vec<_>>();
        assert_eq!(spare, [(true, true)]);
    }
}
