//! The cost of a hit: one credit, what the request says, or the value of a field of the request.

use super::rule::NO_COST_FIELD;
use super::{Operation, Rule};

/// How much of an invalid value a message repeats (characters).
const MAX_ECHOED_CHARS: usize = 64;

/// A request with an invalid cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field '{field}' is the cost of the hit and must be a whole number from 0 to {}, not '{value}'", u64::MAX)]
pub struct BadCost {
    /// The rule's `costField`.
    pub field: String,
    /// The beginning of its value.
    pub value: String,
}

impl Rule {
    /// Whether it takes one credit for each request, whatever that costs.
    pub fn counts_requests(&self) -> bool {
        self.cost_field.as_deref() == Some(NO_COST_FIELD)
    }

    /// How many credits `operation` takes from this rule: the cost that is `given` beside it, or else the value of the
    /// rule's `costField`; 1 when the rule has none, or the operation has no such field. With [`NO_COST_FIELD`] always 1.
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
    fn the_field_tells_the_cost() {
        assert_eq!(cost("0"), Ok(0));
        assert_eq!(cost("0512"), Ok(512));
        assert_eq!(cost("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn without_the_field_a_hit_costs_one() {
        let operation = [("bytes", "5")].into_iter().collect();
        assert_eq!(rule("").cost(&operation, None), Ok(1));
        assert_eq!(Rule { cost_field: Some("size".into()), ..rule("") }.cost(&operation, None), Ok(1));
    }

    #[test]
    fn a_given_cost_wins_but_over_none() {
        let operation = [("bytes", "many"), ("none", "7")].into_iter().collect();
        let by = |field: &str| Rule { cost_field: Some(field.into()), ..rule("") };
        assert_eq!([rule(""), by("bytes")].map(|rule| rule.cost(&operation, Some(3))), [Ok(3), Ok(3)]);
        assert_eq!([None, Some(0), Some(3)].map(|given| by("none").cost(&operation, given)), [Ok(1), Ok(1), Ok(1)]);
    }

    #[test]
    fn anything_but_digits_is_refused() {
        for value in ["", " 1", "-1", "+1", "1.0", "1e3", "0x10", "many", "١", "18446744073709551616"] {
            assert_eq!(cost(value), Err(BadCost { field: "bytes".into(), value: value.into() }));
        }
        assert_eq!(cost(&"ü".repeat(1_000)).unwrap_err().value.chars().count(), 64);
    }
}
