//! Requests that are encoded before the run. Sending one means copying it and filling in the key.

/// Decimal digits of a key, as in redis-benchmark's `__rand_int__`: every request has the same length.
pub const KEY_DIGITS: usize = 12;

const PLACEHOLDER: &str = "{}";

/// An encoded request with gaps for the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTemplate {
    /// Text before each key.
    before: Vec<Vec<u8>>,
    /// Text after the last key, or the whole request if it has no key.
    end: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("the command is empty")]
    Empty,
    #[error("a command of the line protocol is one line")]
    LineBreak,
    #[error("the command has an unclosed quote or ends with a backslash")]
    Unclosed,
}

impl RequestTemplate {
    /// Encodes a line of Divvy's protocol. `{}` stands for the key.
    pub fn line(command: &str) -> Result<Self, TemplateError> {
        if command.contains(['\n', '\r']) {
            return Err(TemplateError::LineBreak);
        }
        if command.trim().is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut template = Self::empty();
        template.push(command);
        template.end.push(b'\n');
        Ok(template)
    }

    /// Encodes the command as a RESP array of its words, split and quoted as in a shell. `{}` in a word stands for the
    /// key.
    pub fn resp(command: &str) -> Result<Self, TemplateError> {
        let words = shlex::split(command).ok_or(TemplateError::Unclosed)?;
        if words.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut template = Self::empty();
        template.push(&format!("*{}\r\n", words.len()));
        for word in &words {
            let keys = word.matches(PLACEHOLDER).count();
            let length = word.len() - keys * PLACEHOLDER.len() + keys * KEY_DIGITS;
            template.push(&format!("${length}\r\n"));
            template.push(word);
            template.push("\r\n");
        }
        Ok(template)
    }

    fn empty() -> Self {
        Self { before: Vec::new(), end: Vec::new() }
    }

    fn push(&mut self, text: &str) {
        let mut parts = text.split(PLACEHOLDER);
        self.end.extend(parts.next().unwrap_or_default().bytes());
        for after_key in parts {
            self.before.push(std::mem::replace(&mut self.end, after_key.into()));
        }
    }

    /// Appends the request for `key` to `output`. Keys with more than [`KEY_DIGITS`] digits keep only their last
    /// digits.
    pub fn append(&self, key: u64, output: &mut Vec<u8>) {
        let digits = decimal(key);
        for before in &self.before {
            output.extend_from_slice(before);
            output.extend_from_slice(&digits);
        }
        output.extend_from_slice(&self.end);
    }
}

fn decimal(key: u64) -> [u8; KEY_DIGITS] {
    let mut digits = [b'0'; KEY_DIGITS];
    let mut formatted = itoa::Buffer::new();
    let significant = formatted.format(key).bytes().rev();
    for (place, digit) in digits.iter_mut().rev().zip(significant) {
        *place = digit;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(template: &RequestTemplate, key: u64) -> String {
        let mut output = Vec::new();
        template.append(key, &mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn line_is_sent_as_written() {
        let template = RequestTemplate::line("HIT path=/a ip={}").unwrap();
        assert_eq!(encoded(&template, 42), "HIT path=/a ip=000000000042\n");
        assert_eq!(encoded(&RequestTemplate::line("HIT").unwrap(), 42), "HIT\n");
    }

    #[test]
    fn resp_lengths_include_the_keys() {
        let template = RequestTemplate::resp("SET '{} or {}' x{}").unwrap();
        let key = "000000000007";
        assert_eq!(encoded(&template, 7), format!("*3\r\n$3\r\nSET\r\n$28\r\n{key} or {key}\r\n$13\r\nx{key}\r\n"));
        assert_eq!(encoded(&RequestTemplate::resp("PING").unwrap(), 7), "*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn keys_have_a_fixed_width() {
        assert_eq!(&decimal(0), b"000000000000");
        assert_eq!(&decimal(999_999_999_999), b"999999999999");
        assert_eq!(&decimal(1_234_567_890_123), b"234567890123");
    }

    #[test]
    fn invalid_commands_are_rejected() {
        assert_eq!(RequestTemplate::line("HIT\nHIT"), Err(TemplateError::LineBreak));
        assert_eq!(RequestTemplate::line(" "), Err(TemplateError::Empty));
        assert_eq!(RequestTemplate::resp(""), Err(TemplateError::Empty));
        assert_eq!(RequestTemplate::resp("GET 'x"), Err(TemplateError::Unclosed));
    }
}
