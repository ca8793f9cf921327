//! The rules that count an actor, which is given by its fields and their values.

use super::{Condition, Network, Operation, Rule, RuleSet};

impl RuleSet {
    /// Returns the rules that count by exactly the fields of `actor`, in any order, with their indexes.
    pub fn rules_by_fields_of(&self, actor: &Operation) -> impl Iterator<Item = (usize, &Rule)> {
        self.rules().iter().enumerate().filter(|(_, rule)| rule.counts_by_fields_of(actor))
    }

    /// Returns the rules that count by exactly the fields of `actor` and that its requests can match, with their indexes.
    pub fn rules_of_actor(&self, actor: &Operation) -> impl Iterator<Item = (usize, &Rule)> {
        self.rules_by_fields_of(actor).filter(|(_, rule)| rule.can_match(actor))
    }
}

impl Rule {
    fn counts_by_fields_of(&self, actor: &Operation) -> bool {
        let fields = &self.actor_fields;
        fields.len() == actor.iter().len() && fields.iter().all(|field| actor.get(field).is_some())
    }

    /// Returns whether the patterns and the conditions match the values of the actor's fields. Other keys of a request may have any value.
    fn can_match(&self, actor: &Operation) -> bool {
        self.operation.iter().all(|(key, pattern)| actor.get(key).is_none_or(|value| pattern.matches(value)))
            && self.conditions().all(|condition| {
                let meets = |value: &str| condition.is_met_by(value.as_bytes()) || self.may_be_met_in(condition, value);
                actor.get(&condition.field).is_none_or(meets)
            })
    }

    /// Returns whether the actor is named as a network, some of whose addresses may meet the condition.
    fn may_be_met_in(&self, condition: &Condition, actor: &str) -> bool {
        let is_network = || Network::parse(actor).is_ok_and(|network| !network.is_address());
        self.actor_prefix.as_ref().is_some_and(|prefix| prefix.field == condition.field) && is_network()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{operation, rule};

    fn by(fields: &[&str], header: &str) -> Rule {
        Rule { actor_fields: fields.iter().map(|field| (*field).to_owned()).collect(), ..rule(header) }
    }

    #[test]
    fn rules_have_exactly_the_fields_and_match_their_values() {
        let rules = RuleSet::new(vec![
            by(&["user"], "path=/a user=*"),
            by(&["user"], "user=ann"),
            by(&["user"], "user=vip-*"),
            by(&["tenant", "user"], "user=*"),
            by(&["path"], "user=ann"),
            by(&[], "user=ann"),
            by(&["user"], ""),
        ]);
        let rules = rules.unwrap();
        for (actor, expected) in [
            ("user=ann", &[0, 1, 6][..]),
            ("user=vip-1", &[0, 2, 6]),
            ("user=", &[0, 6]),
            ("user=a tenant=b", &[3]),
            ("tenant=b user=a", &[3]),
            ("path=/b", &[4]),
        ] {
            let actor = operation(actor);
            assert!(rules.rules_by_fields_of(&actor).next().is_some());
            assert_eq!(rules.rules_of_actor(&actor).map(|(index, _)| index).collect::<Vec<_>>(), expected, "{actor:?}");
        }
        assert!(
            ["tenant=b", "user=a path=b"]
                .iter()
                .all(|other| rules.rules_by_fields_of(&operation(other)).next().is_none())
        );
    }
}
