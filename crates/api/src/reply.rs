//! The form of replies: the members of objects, in the order that RESP's arrays have them.

/// A member of an object.
#[derive(Debug)]
pub struct Member {
    /// Its name in JSON and in RESP's maps.
    pub name: &'static str,
    /// Its values.
    pub shape: Shape,
    /// What it means, in one sentence.
    pub about: &'static str,
}

/// The form of a value.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A text.
    Text,
    /// A text, or null.
    MaybeText,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number from 0.
    Number,
    /// A whole number from 0, or null.
    MaybeNumber,
    /// A whole number, which may be negative.
    Signed,
    /// Seconds; null if there is no end, which is -1 over RESP.
    SecondsLeft,
    /// True or false: 1 or 0 over RESP.
    Flag,
    /// An object: over RESP an array of its values.
    Row(&'static [Member]),
    /// An object: a map over RESP, too.
    Map(&'static [Member]),
    /// A map, or null.
    MaybeMap(&'static [Member]),
    /// An object that is its only member over RESP.
    Only(&'static [Member]),
    /// A list of values.
    List(&'static Shape),
    /// A page of a list: `next` is the cursor of the next page, or null on the last one. Over RESP, the cursor comes first, and
    /// is `0` on the last page.
    Page {
        /// The name of the list, or of the number of its entries.
        name: &'static str,
        /// What the page contains.
        of: &'static Shape,
        /// What the entries are.
        about: &'static str,
    },
    /// An object over HTTP, and `OK` over RESP.
    Done(&'static Shape),
}

impl Member {
    pub(super) const fn new(name: &'static str, shape: Shape, about: &'static str) -> Self {
        Self { name, shape, about }
    }
}
