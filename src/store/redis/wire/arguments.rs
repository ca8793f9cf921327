//! The words of a command as Redis reads them: an array of bulk strings.

/// Words of a command, one after the other in one buffer.
#[derive(Debug, Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    len: usize,
}

impl Arguments {
    /// Reserves room for this number of arguments of a common length.
    pub fn with_capacity(arguments: usize) -> Self {
        Self { bytes: Vec::with_capacity(16 * arguments), len: 0 }
    }

    pub fn push(&mut self, argument: impl AsRef<[u8]>) {
        write_argument(argument.as_ref(), &mut self.bytes);
        self.len += 1;
    }

    /// Adds a number as its digits.
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

    /// Returns all arguments as Redis reads them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Arguments {
    fn from_iter<I: IntoIterator<Item = T>>(words: I) -> Self {
        let mut arguments = Self::default();
        words.into_iter().for_each(|word| arguments.push(word));
        arguments
    }
}

/// Writes the start of a command with this number of words.
pub fn write_head(words: usize, out: &mut Vec<u8>) {
    write_count(b'*', words, out);
}

/// Writes one word.
pub fn write_argument(bytes: &[u8], out: &mut Vec<u8>) {
    write_count(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn write_count(kind: u8, count: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    out.extend_from_slice(b"\r\n");
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
