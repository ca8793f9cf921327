//! The arguments of a script, one after the other in one buffer, in the form in which Redis takes them.

use super::command::write_argument;

/// Texts and numbers; a number goes as its digits.
#[derive(Debug, Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    len: usize,
}

impl Arguments {
    /// Room for so many of a common length.
    pub fn with_capacity(arguments: usize) -> Self {
        Self { bytes: Vec::with_capacity(16 * arguments), len: 0 }
    }

    pub fn push(&mut self, text: &str) {
        write_argument(text.as_bytes(), &mut self.bytes);
        self.len += 1;
    }

    pub fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number));
    }

    pub fn append(&mut self, others: &Self) {
        self.bytes.extend_from_slice(&others.bytes);
        self.len += others.len;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// All of them as Redis reads them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_written_as_redis_reads_them() {
        let mut arguments = Arguments::with_capacity(1);
        arguments.push("take");
        arguments.push("");
        arguments.push_number(u64::MAX);
        assert_eq!(arguments.len(), 3);
        assert_eq!(arguments.as_bytes(), b"$4\r\ntake\r\n$0\r\n\r\n$20\r\n18446744073709551615\r\n");
    }
}
