//! The values that rules are matched against.

use std::borrow::Cow;

use super::key::Key;
use super::operation::Operation;

/// The keys of a request, each once, and their values.
pub trait Values {
    fn keys(&self) -> impl Iterator<Item = &str>;
    fn value(&self, key: &Key) -> Option<&[u8]>;
    /// Returns the value for the conditions of this setting.
    fn value_for(&self, key: &Key, setting: &'static str) -> Option<Cow<'_, [u8]>>;
}

impl Values for Operation {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    fn value(&self, key: &Key) -> Option<&[u8]> {
        self.value(key)
    }

    #[inline]
    fn value_for(&self, key: &Key, _: &'static str) -> Option<Cow<'_, [u8]>> {
        self.value(key).map(Cow::Borrowed)
    }
}
