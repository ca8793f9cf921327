//! A Lua script in the form that calls send.

/// A Lua script.
pub struct Script {
    /// The name under which the script of groups calls it.
    pub name: &'static str,
    pub text: String,
    /// The hash of the text. Redis finds the script by it, unless it has forgotten the script.
    pub hash: String,
}

impl Script {
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { name, hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}
