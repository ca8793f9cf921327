//! The values that rules are matched against.

use super::key::Key;
use super::operation::Operation;

/// The keys of a request, each once, and their values.
pub trait Values {
    fn keys(&self) -> impl Iterator<Item = &str>;
    fn value(&self, key: &Key) -> Option<&[u8]>;
}

impl Values for Operation {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    fn value(&self, key: &Key) -> Option<&[u8]> {
        self.value(key)
    }
}
