//! A Lua script as calls send it.

/// A Lua script.
pub struct Script {
    /// The name under which the script of groups calls it.
    pub name: &'static str,
    pub text: String,
    /// The hash of the text. Redis may have forgotten the script with it.
    pub hash: String,
}

impl Script {
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { name, hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}
