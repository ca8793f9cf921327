//! The operation of a request: `key=value` pairs.

use std::ops::Range;

/// The key of the domain of a gRPC request: what Envoy's Rate Limit Service keeps apart from the other pairs.
pub const DOMAIN: &str = "domain";

/// What a caller asks about: `key=value` pairs, each key once. Reused from request to request: its buffers keep their
/// capacity.
#[derive(Debug, Clone, Default)]
pub struct Operation {
    text: String,
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone)]
struct Pair {
    key: Range<usize>,
    value: Range<usize>,
}

impl Operation {
    pub fn new() -> Self {
        Self::default()
    }

    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.pairs.capacity() * size_of::<Pair>()
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
    }

    /// Adds a pair. The last value of a repeated key wins.
    pub fn set(&mut self, key: &str, value: &str) {
        let repeated = self.pairs.iter().position(|pair| &self.text[pair.key.clone()] == key);
        let pair = Pair { key: self.append(key), value: self.append(value) };
        match repeated.and_then(|index| self.pairs.get_mut(index)) {
            Some(earlier) => *earlier = pair,
            None => self.pairs.push(pair),
        }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(candidate, _)| *candidate == key).map(|(_, value)| value)
    }

    /// The pairs in the order in which their keys came first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.pairs.iter().map(|pair| (&self.text[pair.key.clone()], &self.text[pair.value.clone()]))
    }

    fn append(&mut self, part: &str) -> Range<usize> {
        let start = self.text.len();
        self.text.push_str(part);
        start..self.text.len()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Operation {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut operation = Self::new();
        for (key, value) in pairs {
            operation.set(key, value);
        }
        operation
    }
}
