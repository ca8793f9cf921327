//! A Lua script as calls send it.

use super::arguments::Arguments;

/// A Lua script.
pub struct Script {
    /// The name under which the script of groups calls it.
    pub name: &'static str,
    /// The start of a command that runs the script by its hash. Redis may have forgotten it.
    pub by_hash: Arguments,
    /// The start of a command that runs the script by its text. Redis then remembers it.
    pub with_text: Arguments,
}

impl Script {
    pub fn new(name: &'static str, text: &str) -> Self {
        let by_hash = ["EVALSHA", redis::Script::new(text).get_hash()].iter().collect();
        Self { name, by_hash, with_text: ["EVAL", text].iter().collect() }
    }
}
