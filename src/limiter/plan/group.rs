//! Requests that take effect together or not at all: each counter is asked once, and all of their entries are one group.

use std::ops::Range;

use super::builder::PlanBuilder;
use super::contents::{Group, Plan, Request, Source};
use super::entries::{OpenGroup, Owner, Together};
use super::reservation_id::{MAX_ID_TEXT, ReservationId};
use crate::limiter::refusal::{Refusal, RefusedMember};
use crate::store::Action;

impl PlanBuilder {
    /// Adds what `add` adds as a group: its requests take effect together or not at all, and each reports what it would come
    /// to.
    ///
    /// # Errors
    /// If `add` fails, or one of the requests is refused. Nothing is added then.
    pub fn together<E: From<RefusedMember>>(
        &mut self,
        together: Together,
        add: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let mark = self.mark();
        self.group = Some(Box::new(OpenGroup::new(together, &self.plan)));
        let added = add(self);
        let refused = self.close_group();
        let added = added.and_then(|()| refused.map_or(Ok(()), |refused| Err(refused.into())));
        if added.is_err() {
            self.return_to(mark);
        }
        added
    }

    /// Closes the group. Returns the first of its requests that was refused.
    fn close_group(&mut self) -> Option<RefusedMember> {
        let group = *self.group.take()?;
        let Plan { batch, members, requests, groups, .. } = &mut self.plan;
        if group.is_denied {
            batch.only_look(group.first_entry);
        }
        let is_settlement = |entry| batch.action(entry).is_some_and(Action::is_settlement);
        if !(group.first_entry..batch.len()).any(is_settlement) {
            batch.group(group.first_entry);
            let range = (group.first_member..members.len(), group.first_request..requests.len());
            groups.push(Group { members: range.0, requests: range.1 });
        }
        let first = batch.append(&group.apart);
        for (entry, owner) in (first..).zip(group.owners) {
            match owner {
                Owner::Member { place, .. } => {
                    members.iter_mut().skip(place).take(1).for_each(|member| member.source = Source::Entry(entry));
                }
                Owner::Request(place) => {
                    requests.iter_mut().skip(place).take(1).for_each(|request| *request = Request::OwnLimit(entry));
                }
            }
        }
        let range = group.first_request..self.plan.requests.len();
        self.first_refused(range.clone()).or_else(|| group.record_id.and_then(|_| self.check_id(range)))
    }

    fn first_refused(&self, requests: Range<usize>) -> Option<RefusedMember> {
        let first = requests.start;
        // A charge that no rule counts fails alone: the group takes nothing that depends on it.
        let fails = |(_, refusal): &(usize, &Refusal)| !matches!(refusal, Refusal::NothingToCharge { .. });
        let mut refused = self.plan.refusals().filter(|(index, _)| requests.contains(index)).filter(fails);
        refused.next().map(|(index, refusal)| RefusedMember { index: index - first, refusal: refusal.clone() })
    }

    /// Checks that the id of all that these requests reserve is not too long.
    fn check_id(&self, requests: Range<usize>) -> Option<RefusedMember> {
        let entries = requests.flat_map(|index| self.plan.reserving_members(index));
        let length = ReservationId::text_length(self.plan.records(entries).map(|(_, key)| key.len()));
        (length > MAX_ID_TEXT).then_some(RefusedMember { index: 0, refusal: Refusal::LongReservation })
    }
}
