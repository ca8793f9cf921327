//! Operations in JSON: objects whose values are strings.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::metrics::Bound;
use crate::rules::Operation;
use crate::server::http::problem::Problem;

/// The pairs of an operation, in order.
#[derive(Debug, Default)]
pub struct Pairs<'a>(Vec<(Text<'a>, Text<'a>)>);

/// A string. Without escapes it is borrowed from the body.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl Pairs<'_> {
    /// Copies the pairs into `operation`. `place` is their position in the body.
    ///
    /// # Errors
    /// There are more than `max_pairs`, or a field is given twice.
    pub fn read(&self, max_pairs: usize, pointer: impl Display, operation: &mut Operation) -> Result<(), Problem> {
        // The number is checked first, because finding a repeated key compares each key with all others.
        if self.0.len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs"))
                .with_limit(Bound::Pairs)
                .at(pointer));
        }
        operation.clear();
        for (key, value) in &self.0 {
            if !operation.set(&key.0, &value.0) {
                return Err(Problem::bad_request(format!("the field {:?} is given twice", key.0)).at(pointer));
            }
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

// This is not derived, because the crate that finds the position of an error does not see keys of a derived newtype.
impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}
