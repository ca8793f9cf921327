//! Groups: what each of several entries comes to that take effect together or not at all. What remembers the buckets' states,
//! and who may change them meanwhile, is the store's business.

use std::sync::Arc;

use super::batch::{Action, Change, Entry};
use super::counter_budget::CounterBudget;
use super::error::StoreError;
use super::records::Record;
use super::shares::{RecordBudgets, Share, Shares};
use crate::algorithm::once::Known;
use crate::algorithm::reservation::RecordChange;
use crate::algorithm::{Answered, Decision, Outcome, State};

/// What an entry comes to.
#[derive(Debug)]
pub struct Decided {
    pub outcome: Outcome,
    /// To its bucket,
    pub change: Change,
    /// and to the record that it is about,
    pub record: RecordChange<Record>,
    /// which has this share if it is new.
    pub share: Option<Arc<Share>>,
}

impl Decided {
    fn unchanged(outcome: Outcome) -> Self {
        Self { outcome, change: Change::Keep, record: RecordChange::Keep, share: None }
    }

    /// Whether it keeps the group from taking anything. A commit, a release or a renewal never does.
    fn denies(&self, entry: &Entry) -> bool {
        !self.outcome.allowed && !entry.action.settles_reservation()
    }
}

/// An entry of the group, and what is remembered of what it is about.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    pub entry: &'a Entry,
    pub bucket: Option<&'a State>,
    pub record: Option<&'a Record>,
}

impl Member<'_> {
    /// Returns the record as the entry finds it.
    fn found(&self) -> Option<Record> {
        self.record.and_then(|record| record.found(self.entry.at))
    }

    /// Returns the earlier answer to an entry that is answered once.
    fn known(&self) -> Known {
        let Some(fingerprint) = self.entry.action.fingerprint() else { return Known::Nothing };
        Known::of(self.found().as_ref().and_then(Record::answered), fingerprint, self.entry.at)
    }
}

/// How much more may be remembered.
#[derive(Clone, Copy)]
pub struct Budgets<'a> {
    pub counters: &'a CounterBudget,
    pub records: &'a RecordBudgets,
    /// The batch's shares.
    pub shares: &'a Shares,
}

/// Decides a group's entries. Also returns the room for the buckets that their changes make, which is to be kept once they
/// are made.
///
/// If a member denied before, all members repeat the answers that they had then. A bucket without a room to remember it is
/// answered by the policy: as any other entry it may deny the group.
///
/// # Errors
/// The policy's; nothing is to be changed then.
pub fn decide<'a, 'b>(
    members: impl Iterator<Item = Member<'a>> + Clone,
    budgets: Budgets<'b>,
) -> Result<(Vec<Decided>, Room<'b>), StoreError> {
    let mut decided = Vec::with_capacity(members.size_hint().0);
    let was_denied = members.clone().any(|member| matches!(member.known(), Known::Answered(first) if !first.allowed));
    for member in members.clone() {
        decided.push(decide_alone(member, was_denied, budgets.counters)?);
    }
    let mut room = Room { budgets, counters: 0 };
    // One that is alone may change its bucket although it tells that nothing was there.
    if is_granted(members.clone(), &decided) || decided.len() == 1 {
        for (member, decided) in members.clone().zip(&mut decided) {
            let is_new = matches!(decided.change, Change::Set(_)) && member.bucket.is_none();
            if is_new && !room.begin_counter() {
                *decided = Decided::unchanged(budgets.counters.refuse(member.entry)?);
            }
        }
    }
    if !is_granted(members.clone(), &decided) {
        let is_another = members.clone().any(|member| member.known() == Known::Different);
        if decided.len() > 1 {
            room.give_back();
        }
        for (member, decided) in members.clone().zip(&mut decided) {
            if decided.outcome.allowed {
                *decided = hold_back(member);
            }
            if is_another {
                // What was asked for under a name that is taken is not remembered.
                decided.record = RecordChange::Keep;
            }
        }
    }
    for (member, decided) in members.zip(&mut decided) {
        decided.record = decided.record.or_found(member.record.copied(), member.found());
        if let RecordChange::Set(record) = &decided.record
            && member.record.is_none()
        {
            decided.share = Some(budgets.shares.begin(member.entry, record, budgets.records)?);
        }
    }
    Ok((decided, room))
}

fn decide_alone(member: Member<'_>, was_denied: bool, budget: &CounterBudget) -> Result<Decided, StoreError> {
    let Member { entry, bucket, record } = member;
    match member.known() {
        Known::Answered(outcome) => return Ok(Decided::unchanged(outcome)),
        Known::HeldBack(outcome) if was_denied => return Ok(Decided::unchanged(outcome)),
        Known::Different => {
            let Decision { outcome, state } = entry.limit.differs(bucket, entry.at);
            return Ok(Decided { change: state.map_or(Change::Keep, Change::Set), ..Decided::unchanged(outcome) });
        }
        Known::Nothing | Known::HeldBack(_) => {}
    }
    let refusal = if bucket.is_none() { budget.refusal(entry) } else { None };
    Ok(match (refusal, entry.action) {
        // A policy's answer is not remembered.
        (Some(refusal), _) => Decided::unchanged(refusal?),
        (None, Action::Reservation(ask)) => {
            let (outcome, change, record) = entry.decide_reservation(ask, bucket, record);
            Decided { outcome, change, record, share: None }
        }
        (None, _) => {
            let (outcome, change) = entry.decide(bucket);
            let remember = |fingerprint| Answered::new(fingerprint, outcome, false, entry.at);
            let record = entry.action.fingerprint().map(remember);
            let record = record.map_or(RecordChange::Keep, |record| RecordChange::Set(Record::Answered(record)));
            Decided { outcome, change, record, share: None }
        }
    })
}

/// What becomes of a member that would be granted, of a group that is denied.
fn hold_back(member: Member<'_>) -> Decided {
    let Member { entry, bucket, .. } = member;
    match member.known() {
        Known::Answered(outcome) | Known::HeldBack(outcome) => Decided::unchanged(outcome),
        Known::Nothing | Known::Different => {
            let (outcome, change) = entry.look(bucket);
            let mut decided = Decided { change, ..Decided::unchanged(outcome) };
            if let Some(fingerprint) = entry.action.fingerprint() {
                let record = Answered::new(fingerprint, decided.outcome, true, entry.at);
                decided.record = RecordChange::Set(Record::Answered(record));
            }
            decided
        }
    }
}

fn is_granted<'a>(members: impl Iterator<Item = Member<'a>>, decided: &[Decided]) -> bool {
    members.zip(decided).all(|(member, decided)| !decided.denies(member.entry))
}

/// Room for new buckets, given back unless it is kept.
#[must_use]
pub struct Room<'a> {
    budgets: Budgets<'a>,
    counters: u64,
}

impl Room<'_> {
    fn begin_counter(&mut self) -> bool {
        let has_room = self.budgets.counters.begin();
        self.counters += u64::from(has_room);
        has_room
    }

    fn give_back(&mut self) {
        (0..std::mem::take(&mut self.counters)).for_each(|_| self.budgets.counters.forget());
    }

    /// The buckets are made.
    pub fn keep(mut self) {
        self.counters = 0;
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::reservation::Fate;
    use crate::algorithm::{Ask, ReservationAsk, fixed_window};
    use crate::store::batch::Action;
    use crate::store::counter_budget::{Bounds, WhenFull};
    use crate::store::testing::{at, window};

    fn budget(max_counters: u64, when_full: WhenFull) -> CounterBudget {
        CounterBudget::new(Bounds { max_counters, when_full, ..Bounds::default() })
    }

    fn take(cost: u64) -> Entry {
        Entry::new(0..0, window(5, 60), Action::Ask(Ask::Take { cost }), at(0))
    }

    fn left(left: u64) -> State {
        State::FixedWindow(fixed_window::State { ends: at(60), count: left })
    }

    /// Whether it is allowed, what is left, and whether it changes.
    fn decided(
        entries: &[Entry],
        states: &[Option<State>],
        budget: &CounterBudget,
    ) -> Result<Vec<(bool, u64, bool)>, StoreError> {
        let (records, shares) = (RecordBudgets::new(0, 0), Shares::of(None));
        let members =
            entries.iter().zip(states).map(|(entry, state)| Member { entry, bucket: state.as_ref(), record: None });
        let (decided, room) = decide(members, Budgets { counters: budget, records: &records, shares: &shares })?;
        room.keep();
        let told = |Decided { outcome, change, .. }| (outcome.allowed, outcome.left, change != Change::Keep);
        Ok(decided.into_iter().map(told).collect())
    }

    #[test]
    fn all_take_or_none_does_and_a_denied_one_tells_what_is_there() {
        let budget = budget(10, WhenFull::Error);
        let states = [Some(left(3)), None];
        let granted = decided(&[take(2), take(1)], &states, &budget).unwrap();
        assert_eq!((granted, budget.at_least()), (vec![(true, 1, true), (true, 4, true)], 1));
        let denied = decided(&[take(4), take(1)], &states, &budget).unwrap();
        assert_eq!((denied, budget.at_least()), (vec![(false, 3, false), (true, 5, false)], 1));
    }

    #[test]
    fn a_group_without_room_for_all_of_its_counters_takes_room_for_none() {
        let group = [take(1), take(1), take(1)];
        let states = [None, None, Some(left(3))];
        let full = |when_full| {
            let budget = budget(1, when_full);
            let decided = decided(&group, &states, &budget).map_err(|_| ());
            (decided, budget.at_least())
        };
        assert_eq!(full(WhenFull::Error), (Err(()), 0));
        assert_eq!(full(WhenFull::Deny), (Ok(vec![(true, 5, false), (false, 0, false), (true, 3, false)]), 0));
        // Who lets through what cannot be counted counts what can be.
        assert_eq!(full(WhenFull::Allow), (Ok(vec![(true, 4, true), (true, 4, false), (true, 2, true)]), 1));
    }

    /// After the clock was set back no counter must deny longer than its limit says, now or when the others allow.
    #[test]
    fn denied_group_corrects_the_time_of_all_its_buckets() {
        let far = |count| Some(State::FixedWindow(fixed_window::State { ends: at(10_000), count }));
        let group = [take(1), take(1), take(1)];
        let denied = decided(&group, &[far(0), far(3), None], &budget(10, WhenFull::Error)).unwrap();
        assert_eq!(denied, [(false, 0, true), (true, 3, true), (true, 5, false)]);
    }

    #[test]
    fn what_settles_a_reservation_denies_no_group() {
        let settle = |ask| Entry { action: Action::Reservation(ask), ..take(0) };
        let commit = settle(ReservationAsk::Commit { cost: 2, charges: true });
        let gone = settle(ReservationAsk::Commit { cost: 2, charges: false });
        let budgets = (budget(10, WhenFull::Error), RecordBudgets::new(1, 0));
        let settled = |entries: &[Entry]| {
            let members = entries.iter().map(|entry| Member { entry, bucket: None, record: None });
            let shares = Shares::of(None);
            let (decided, room) =
                decide(members, Budgets { counters: &budgets.0, records: &budgets.1, shares: &shares })?;
            room.keep();
            Ok::<_, StoreError>(decided.iter().map(|one| (one.outcome.fate, one.outcome.left)).collect::<Vec<_>>())
        };
        assert!(settled(&[commit.clone(), commit.clone()]).is_err(), "there is room for one record");
        assert_eq!((budgets.0.at_least(), budgets.1.remembered()), (0, Default::default()));
        assert_eq!(settled(&[gone, commit]).unwrap(), [(Fate::Gone, 5), (Fate::Late, 3)]);
    }
}
