//! The cost of a hit: one credit, the cost that the request gives, or the value of one of its fields.

use super::rule::NO_COST_FIELD;
use super::{Operation, Overrun, Rule};

/// Characters of an invalid value that an error message repeats.
const MAX_ECHOED_CHARS: usize = 64;

/// An error for a request whose cost field has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field '{field}' is the cost of the hit and must be a whole number from 0 to {}, not '{value}'", u64::MAX)]
pub struct BadCost {
    /// The rule's `costField`.
    pub field: String,
    /// The beginning of its value.
    pub value: String,
}

impl Rule {
    /// Returns whether a request takes the cost that it gives, or 1, and the value of no field.
    #[inline]
    pub fn takes_given_cost(&self) -> bool {
        self.cost_field.is_none()
    }

    /// Returns whether any request takes the same number of credits from both rules.
    pub(super) fn costs_the_same(&self, other: &Self) -> bool {
        self.cost_field == other.cost_field
    }

    /// Returns whether every request takes one credit from this rule, regardless of its cost.
    pub fn counts_requests(&self) -> bool {
        self.cost_field.as_deref() == Some(NO_COST_FIELD)
    }

    /// Describes the cost of a request for people: `at the cost in bytes`, and `with debt`.
    pub(super) fn cost_words(&self) -> impl Iterator<Item = String> {
        let cost = match self.cost_field.as_deref() {
            None => None,
            Some(NO_COST_FIELD) => Some("at a cost of 1 each".to_owned()),
            Some(field) => Some(format!("at the cost in {field}")),
        };
        let debt = (self.overrun == Overrun::Debt).then(|| "with debt".to_owned());
        cost.into_iter().chain(debt)
    }

    /// Returns the credits that `operation` takes from this rule: the `given` cost, or else the value of the rule's
    /// `costField`, or else 1. A rule with [`NO_COST_FIELD`] always takes 1.
    ///
    /// # Errors
    /// The value is not a whole number in digits, or does not fit 64 bits.
    pub fn cost(&self, operation: &Operation, given: Option<u64>) -> Result<u64, BadCost> {
        let field = match (&self.cost_field, given) {
            _ if self.counts_requests() => return Ok(1),
            (_, Some(given)) => return Ok(given),
            (Some(field), None) => field,
            (None, None) => return Ok(1),
        };
        let Some(value) = operation.get(field) else { return Ok(1) };
        let number = value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok());
        number
            .flatten()
            .ok_or_else(|| BadCost { field: field.clone(), value: value.chars().take(MAX_ECHOED_CHARS).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::rule;

    fn cost(value: &str) -> Result<u64, BadCost> {
        let rule = Rule { cost_field: Some("bytes".into()), ..rule("") };
        rule.cost(&[("bytes", value), ("other", "x")].into_iter().collect(), None)
    }

    #[test]
    fn cost_is_read_from_the_field() {
        assert_eq!(cost("0"), Ok(0));
        assert_eq!(cost("0512"), Ok(512));
        assert_eq!(cost("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn hit_without_the_field_costs_one() {
        let operation = [("bytes", "5")].into_iter().collect();
        assert_eq!(rule("").cost(&operation, None), Ok(1));
        assert_eq!(Rule { cost_field: Some("size".into()), ..rule("") }.cost(&operation, None), Ok(1));
    }

    #[test]
    fn given_cost_overrides_the_field_but_not_none() {
        let operation = [("bytes", "many"), ("none", "7")].into_iter().collect();
        let by = |field: &str| Rule { cost_field: Some(field.into()), ..rule("") };
        assert_eq!([rule(""), by("bytes")].map(|rule| rule.cost(&operation, Some(3))), [Ok(3), Ok(3)]);
        assert_eq!([None, Some(0), Some(3)].map(|given| by("none").cost(&operation, given)), [Ok(1), Ok(1), Ok(1)]);
    }

    #[test]
    fn cost_other_than_digits_is_rejected() {
        for value in ["", " 1", "-1", "+1", "1.0", "1e3", "0x10", "many", "١", "18446744073709551616"] {
            assert_eq!(cost(value), Err(BadCost { field: "bytes".into(), value: value.into() }));
        }
        assert_eq!(cost(&"ü".repeat(1_000)).unwrap_err().value.chars().count(), 64);
    }
}
