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
        let pair = Pair { key: self.append(key), value: self.append(value) };
        self.add(pair);
    }

    /// As [`Operation::set`], for a pair that is written with a character of one byte between key and value: `equals` is
    /// where.
    pub fn set_written(&mut self, pair: &str, equals: usize) {
        let Range { start, end } = self.append(pair);
        self.add(Pair { key: start..start + equals, value: start + equals + 1..end });
    }

    fn add(&mut self, pair: Pair) {
        let key = self.text.as_bytes().get(pair.key.clone()).unwrap_or_default();
        match self.place(key).and_then(|place| self.pairs.get_mut(place)) {
            Some(earlier) => *earlier = pair,
            None => self.pairs.push(pair),
        }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        let pair = self.pairs.get(self.place(key.as_bytes())?)?;
        self.text.get(pair.value.clone())
    }

    /// Where the key's pair is. Bytes are compared, and lengths first: to cut a `str` out costs more than that.
    fn place(&self, key: &[u8]) -> Option<usize> {
        let text = self.text.as_bytes();
        self.pairs.iter().position(|pair| pair.key.len() == key.len() && text.get(pair.key.clone()) == Some(key))
    }

    /// The pairs in the order in which their keys came first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let part = |range: &Range<usize>| self.text.get(range.clone()).unwrap_or_default();
        self.pairs.iter().map(move |pair| (part(&pair.key), part(&pair.value)))
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
