//! The arguments of a script, one after the other in one buffer.

/// Texts and numbers; a number goes as its digits.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Arguments {
    /// Room for so many of a common length.
    pub(super) fn with_capacity(arguments: usize) -> Self {
        Self { bytes: Vec::with_capacity(8 * arguments), ends: Vec::with_capacity(arguments) }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len());
    }

    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// What all of them hold together (bytes).
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| self.bytes.get(*start..*end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_out_as_they_went_in() {
        let mut arguments = Arguments::with_capacity(1);
        arguments.push("take");
        arguments.push("");
        arguments.push_number(u64::MAX);
        assert_eq!(arguments.iter().collect::<Vec<_>>(), [&b"take"[..], b"", b"18446744073709551615"]);
        assert_eq!((arguments.len(), arguments.bytes()), (3, 24));
    }
}
