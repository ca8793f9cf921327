//! Decisions about groups: entries that take effect together or not at all. The store keeps the states of the buckets, and locks
//! them during the decision.

use std::borrow::Cow;

use crate::bounds::{CounterBudget, RecordBudgets, Share};
use crate::contract::{Action, Change, Entry, StoreError};
use divvy_core::algorithm::record::Replay;
use divvy_core::algorithm::{Outcome, Record, RecordChange, ReservationAsk, Resolution, State};

/// The decision about one entry.
#[derive(Debug, Default)]
pub struct EntryDecision {
    /// The answer to the entry.
    pub outcome: Outcome,
    /// The change of the bucket.
    pub change: Change,
    /// The change of the record.
    pub record: RecordChange,
    /// The share of a new record.
    pub share: Option<Share>,
}

impl EntryDecision {
    /// Decides about the member alone. `was_denied` says whether the group contains a member that was denied before.
    /// Decisions are large, so each one overwrites an earlier one.
    #[inline]
    fn decide_alone(&mut self, member: &Member, was_denied: bool, budget: &CounterBudget) -> Result<(), StoreError> {
        let (entry, bucket) = (member.entry, member.bucket.as_deref());
        (self.change, self.record, self.share) = (Change::Keep, RecordChange::Keep, None);
        let replay = member.find_replay();
        if let (Replay::HeldBack(outcome), true) = (replay, was_denied) {
            self.outcome = outcome;
            return Ok(());
        }
        // Answers are repeated even if the store is full. A policy's answer is not recorded.
        if bucket.is_none()
            && matches!(replay, Replay::None | Replay::HeldBack(_))
            && let Some(refusal) = budget.refusal(entry)
        {
            self.outcome = refusal?;
        } else if entry.action.has_record() {
            (self.outcome, self.change, self.record) = entry.decide_with_record(bucket, member.record);
        } else {
            (self.outcome, self.change) = entry.decide(bucket);
        }
        Ok(())
    }

    /// Decides about the member of a new reservation, whose name this bucket still knows.
    fn decide_next_run(
        &mut self,
        member: &Member,
        reserved: (u64, u32),
        budget: &CounterBudget,
    ) -> Result<(), StoreError> {
        let (entry, bucket) = (member.entry, member.bucket.as_deref());
        match budget.refusal(entry).filter(|_| bucket.is_none()) {
            Some(refusal) => self.outcome = refusal?,
            None => {
                (self.outcome, self.change, self.record) = entry.decide_next_run(bucket, member.record, reserved);
            }
        }
        Ok(())
    }

    /// Returns whether the decision prevents the group from taking anything. That of a commit, a release or a renewal
    /// never does.
    fn denies(&self, entry: &Entry) -> bool {
        !self.outcome.allowed && !entry.action.settles_reservation()
    }
}

/// An entry of the group, with the states of its bucket and its record.
pub struct Member<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// The state of its counter; `None` if there is none.
    pub bucket: Option<Cow<'a, State>>,
    /// Its record; `None` if there is none.
    pub record: Option<&'a Record>,
}

impl Member<'_> {
    /// Returns the earlier answer to an idempotent entry.
    fn find_replay(&self) -> Replay {
        let fingerprint = self.entry.action.fingerprint();
        fingerprint.map_or(Replay::None, |fingerprint| Replay::find(self.record, fingerprint, self.entry.at))
    }

    /// Returns the credits and the TTL that the entry asks to set aside.
    fn reserved(&self) -> Option<(u64, u32)> {
        match self.entry.action {
            Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => Some((credits, ttl_seconds)),
            _ => None,
        }
    }
}

/// Budgets for new counters and records.
#[derive(Clone, Copy)]
pub struct Budgets<'a> {
    /// The bound on counters.
    pub counters: &'a CounterBudget,
    /// The bounds on records.
    pub records: &'a RecordBudgets,
}

/// Decides a group's entries into `decisions`, and reserves budget for the buckets that they create. Call [`Room::keep`] once they
/// exist.
///
/// If a member was denied before, all members repeat their earlier answers. If the store is full, the full-store policy answers
/// for a new bucket, and may deny the group.
///
/// # Errors
/// The policy says so, or there is no room for a new record. Then nothing may be changed.
pub fn decide<'b>(
    members: &[Member<'_>],
    budgets: Budgets<'b>,
    decisions: &mut Vec<EntryDecision>,
) -> Result<Room<'b>, StoreError> {
    decisions.resize_with(members.len(), EntryDecision::default);
    let is_denial = |member: &Member| matches!(member.find_replay(), Replay::Answered(first) if !first.allowed);
    let was_denied = members.iter().any(is_denial);
    let mut is_granted = true;
    for (member, decision) in members.iter().zip(decisions.iter_mut()) {
        decision.decide_alone(member, was_denied, budgets.counters)?;
        is_granted &= !decision.denies(member.entry);
    }
    if is_granted && is_partly_over(members, decisions) {
        for (member, decision) in members.iter().zip(decisions.iter_mut()) {
            if let (Some(reserved), Resolution::Repeated) = (member.reserved(), decision.outcome.resolution) {
                decision.decide_next_run(member, reserved, budgets.counters)?;
                is_granted &= !decision.denies(member.entry);
            }
        }
    }
    let mut room = Room { budgets, counters: 0 };
    // A single entry may change its bucket even if it is denied.
    if members.len() == 1 || is_granted {
        for (member, decision) in members.iter().zip(decisions.iter_mut()) {
            let is_new = member.bucket.is_none() && matches!(decision.change, Change::Set(_));
            if is_new && budgets.counters.begin() {
                room.counters += 1;
            } else if is_new {
                let outcome = budgets.counters.refuse(member.entry)?;
                *decision = EntryDecision { outcome, ..EntryDecision::default() };
                is_granted &= !decision.denies(member.entry);
            }
        }
    }
    if !is_granted {
        let has_conflict = members.iter().any(|member| member.find_replay() == Replay::Conflict);
        if members.len() > 1 {
            room.give_back();
        }
        for (member, decision) in members.iter().zip(decisions.iter_mut()) {
            if decision.outcome.allowed {
                *decision = hold_back(member);
            }
            if has_conflict {
                // A request that conflicts with an earlier one is not recorded.
                decision.record = RecordChange::Keep;
            }
        }
    }
    for (member, decision) in members.iter().zip(decisions).filter(|(member, _)| member.entry.action.has_record()) {
        decision.record = decision.record.or_found(member.record, member.entry.at);
        if let RecordChange::Set(record) = &decision.record
            && member.record.is_none()
        {
            decision.share = Some(budgets.records.begin(record)?);
        }
    }
    Ok(room)
}

/// Returns whether the group makes a reservation under the name of an earlier one that some of the buckets still know.
fn is_partly_over(members: &[Member<'_>], decisions: &[EntryDecision]) -> bool {
    let (mut is_made, mut is_known) = (false, false);
    for (_, decision) in members.iter().zip(decisions).filter(|(member, _)| member.reserved().is_some()) {
        is_made |= decision.outcome.resolution == Resolution::Done;
        is_known |= decision.outcome.resolution == Resolution::Repeated;
    }
    is_made && is_known
}

/// Decides a member that would be granted, when its group is denied.
fn hold_back(member: &Member) -> EntryDecision {
    let entry = member.entry;
    if let Replay::Answered(outcome) | Replay::HeldBack(outcome) = member.find_replay() {
        return EntryDecision { outcome, ..EntryDecision::default() };
    }
    let (outcome, change) = entry.look(member.bucket.as_deref());
    let remember = |fingerprint| RecordChange::Set(Record::new_answer(fingerprint, outcome, true, entry.at));
    let record = entry.action.fingerprint().map_or(RecordChange::Keep, remember);
    EntryDecision { outcome, change, record, share: None }
}

/// Budget for new buckets. Dropping it gives the budget back.
#[must_use]
pub struct Room<'a> {
    budgets: Budgets<'a>,
    counters: u64,
}

impl Room<'_> {
    fn give_back(&mut self) {
        (0..std::mem::take(&mut self.counters)).for_each(|_| self.budgets.counters.forget());
    }

    /// Keeps the budget, because the buckets exist.
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
    use crate::bounds::{Bounds, WhenFull};
    use crate::testing::{at, window};
    use divvy_core::algorithm::{Ask, WindowState};

    fn budget(max_counters: u64, when_full: WhenFull) -> CounterBudget {
        CounterBudget::new(Bounds { max_counters, when_full, ..Bounds::default() })
    }

    fn take(cost: u64) -> Entry {
        Entry::new(0..0, window(5, 60), Action::Ask(Ask::Take { cost }), at(0))
    }

    fn left(left: u64) -> State {
        State::FixedWindow(WindowState { ends: at(60), count: left })
    }

    /// Returns whether each entry is allowed, the credits left, and whether its bucket changes.
    fn decide_all(
        entries: &[Entry],
        states: &[Option<State>],
        budget: &CounterBudget,
    ) -> Result<Vec<(bool, u64, bool)>, StoreError> {
        let records = RecordBudgets::new(Bounds::default());
        let member =
            |(entry, state): (_, &Option<State>)| Member { entry, bucket: state.clone().map(Cow::Owned), record: None };
        let members: Vec<_> = entries.iter().zip(states).map(member).collect();
        let mut decided = Vec::new();
        decide(&members, Budgets { counters: budget, records: &records }, &mut decided)?.keep();
        let describe = |EntryDecision { outcome, change, .. }| (outcome.allowed, outcome.left, change != Change::Keep);
        Ok(decided.into_iter().map(describe).collect())
    }

    #[test]
    fn group_without_room_for_all_of_its_counters_takes_room_for_none() {
        let group = [take(1), take(1), take(1)];
        let states = [None, None, Some(left(3))];
        let full = |when_full| {
            let budget = budget(1, when_full);
            let decided = decide_all(&group, &states, &budget).map_err(|_| ());
            (decided, budget.count())
        };
        assert_eq!(full(WhenFull::Error), (Err(()), 0));
        assert_eq!(full(WhenFull::Deny), (Ok(vec![(true, 5, false), (false, 0, false), (true, 3, false)]), 0));
        // This policy still counts the other members.
        assert_eq!(full(WhenFull::Allow), (Ok(vec![(true, 4, true), (true, 4, false), (true, 2, true)]), 1));
    }

    /// After the clock was set back, no counter denies for longer than its limit, either now or once the others allow.
    #[test]
    fn denied_group_corrects_the_time_of_all_its_buckets() {
        let far = |count| Some(State::FixedWindow(WindowState { ends: at(10_000), count }));
        let group = [take(1), take(1), take(1)];
        let denied = decide_all(&group, &[far(0), far(3), None], &budget(10, WhenFull::Error)).unwrap();
        assert_eq!(denied, [(false, 0, true), (true, 3, true), (true, 5, false)]);
    }

    #[test]
    fn settlement_denies_no_group() {
        let settle = |ask| Entry { action: Action::Reservation(ask), ..take(0) };
        let commit = settle(ReservationAsk::Commit { cost: 2, charges: true, run: None });
        let gone = settle(ReservationAsk::Commit { cost: 2, charges: false, run: None });
        let budgets =
            (budget(10, WhenFull::Error), RecordBudgets::new(Bounds { max_reservations: 1, ..Bounds::default() }));
        let settled = |entries: &[Entry]| {
            let members: Vec<_> = entries.iter().map(|entry| Member { entry, bucket: None, record: None }).collect();
            let mut decided = Vec::new();
            let budgets = Budgets { counters: &budgets.0, records: &budgets.1 };
            decide(&members, budgets, &mut decided)?.keep();
            Ok::<_, StoreError>(
                decided.iter().map(|one| (one.outcome.resolution, one.outcome.left)).collect::<Vec<_>>(),
            )
        };
        assert!(settled(&[commit.clone(), commit.clone()]).is_err(), "there is room for one record");
        assert_eq!((budgets.0.count(), budgets.1.remembered()), (0, Default::default()));
        assert_eq!(settled(&[gone, commit]).unwrap(), [(Resolution::Gone, 5), (Resolution::Late, 3)]);
    }
}
