//! Commands as Redis reads them: an array of bulk strings.

/// A command and its arguments.
pub fn write_command(words: &[&[u8]], out: &mut Vec<u8>) {
    write_head(words.len(), out);
    words.iter().for_each(|word| write_argument(word, out));
}

/// The start of a command of so many words.
pub fn write_head(words: usize, out: &mut Vec<u8>) {
    write_count(b'*', words, out);
}

/// One word.
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
