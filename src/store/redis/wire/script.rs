//! A Lua script as calls send it.

use super::command::write_argument;

/// A Lua script.
pub struct Script {
    /// The name under which the script of groups calls it.
    pub name: &'static str,
    /// `EVALSHA` and the script's hash, as arguments.
    by_hash: Vec<u8>,
    /// `EVAL` and the script's text, as arguments.
    with_text: Vec<u8>,
}

impl Script {
    pub fn new(name: &'static str, text: &str) -> Self {
        let by_hash = arguments(&["EVALSHA", redis::Script::new(text).get_hash()]);
        Self { name, by_hash, with_text: arguments(&["EVAL", text]) }
    }

    /// Returns the start of a command that runs the script by its hash. Redis may have forgotten it.
    pub fn by_hash(&self) -> &[u8] {
        &self.by_hash
    }

    /// Returns the start of a command that runs the script by its text. Redis remembers it.
    pub fn with_text(&self) -> &[u8] {
        &self.with_text
    }
}

fn arguments(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    words.iter().for_each(|word| write_argument(word.as_bytes(), &mut out));
    out
}
