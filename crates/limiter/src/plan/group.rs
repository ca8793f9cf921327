//! Groups of requests, which take effect together or not at all. Each counter has one entry, and all entries form one
//! group.

use super::builder::PlanBuilder;
use super::contents::{Group, Plan, Request, Source};
use super::entries::{OpenGroup, Together};
use super::reservation_id::MAX_ID_TEXT;
use crate::refusal::{Refusal, RefusedMember};

impl PlanBuilder {
    /// Adds the requests of `add` as a group: they take effect together or not at all, and each reports its result in
    /// either case. `describe` returns the error for a request that is refused.
    ///
    /// # Errors
    /// `add` fails, or one of the requests is refused. Then nothing is added.
    pub fn together<E>(
        &mut self,
        together: Together,
        describe: impl FnOnce(RefusedMember) -> E,
        add: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.plan.mark();
        self.group = Some(Box::new(OpenGroup::new(together, start)));
        let added = add(self);
        let refused = self.group.take().and_then(|group| self.close(*group));
        let added = added.and_then(|()| refused.map_or(Ok(()), |refused| Err(describe(refused))));
        if added.is_err() {
            self.plan.return_to(start);
        }
        added
    }

    /// Closes the group. Returns the first of its requests that was refused.
    fn close(&mut self, group: OpenGroup) -> Option<RefusedMember> {
        let refused = self.first_refused(group.start.requests);
        if refused.is_some() {
            // The whole group is removed.
            return refused;
        }
        let Plan { batch, members, requests, groups, .. } = &mut self.plan;
        // The group may use credits that a settlement gives back, so the entries that are not part of it come first.
        let entries = batch.take(&group.entries(batch).collect::<Vec<_>>());
        let OpenGroup { start, is_denied, record_id, apart, .. } = group;
        let first = batch.len();
        batch.put_back(entries);
        if is_denied {
            batch.only_look(first);
        }
        if !(first..batch.len()).any(|entry| batch.entry(entry).is_some_and(|entry| entry.action.is_settlement())) {
            batch.group(first);
            groups.push(Group { members: start.members..members.len(), requests: start.requests..requests.len() });
        }
        let correct = |entry: &mut usize| {
            *entry = match apart.binary_search(entry) {
                Ok(place) => start.entries + place,
                Err(apart_before) => *entry + apart.len() - apart_before,
            };
        };
        members.iter_mut().skip(start.members).for_each(|member| {
            if let Source::Entry(entry) = &mut member.source {
                correct(entry);
            }
        });
        requests.iter_mut().skip(start.requests).for_each(|request| {
            if let Request::OwnLimit(entry) = request {
                correct(entry);
            }
        });
        let members = record_id.and_then(|_| self.plan.members.get(start.members..))?;
        let is_long = self.plan.id_length(members) > MAX_ID_TEXT;
        is_long.then_some(RefusedMember { index: 0, refusal: Refusal::LongReservation })
    }

    /// Returns the first request from index `first` on that was refused.
    fn first_refused(&self, first: usize) -> Option<RefusedMember> {
        // A charge that no rule counts fails alone, because the group takes nothing that depends on it.
        let fails = |(index, refusal): &(usize, &Refusal)| {
            *index >= first && !matches!(refusal, Refusal::NothingToCharge { .. })
        };
        let (index, refusal) = self.plan.refusals().find(fails)?;
        Some(RefusedMember { index: index - first, refusal: refusal.clone() })
    }
}
