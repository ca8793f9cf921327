//! The form of values in requests and replies. Members of objects are in the order that RESP's arrays have them.

/// A member of an object, a parameter, or a header.
#[derive(Debug)]
pub struct Member {
    /// Its name in JSON and in RESP's maps.
    pub name: &'static str,
    /// Its values.
    pub shape: Shape,
    /// What it means. Empty if its name says everything.
    pub about: &'static str,
    /// Whether it may be missing.
    pub is_optional: bool,
    /// A value, as an example.
    pub example: Option<&'static str>,
}

/// The form of a value.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A text.
    Text,
    /// A text that matches this regular expression.
    Pattern(&'static str),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number from 0.
    Number,
    /// A whole number in this range.
    Range(u64, u64),
    /// A whole number, which may be negative.
    Signed,
    /// A number from 0, perhaps with decimals.
    Decimal,
    /// Seconds; null if there is no end, which is -1 over RESP.
    SecondsLeft,
    /// True or false: 1 or 0 over RESP.
    Flag,
    /// The pairs of an operation: an object of texts, numbers and flags under any names.
    Operation,
    /// An object of texts under any names.
    Texts,
    /// Any object.
    Object,
    /// An object: over RESP an array of its values.
    Row(&'static [Member]),
    /// An object: a map over RESP, too.
    Map(&'static [Member]),
    /// An object that is its only member over RESP.
    Only(&'static [Member]),
    /// An object with members that all variants have, and those of a variant, which the member `tag` names.
    Variants {
        /// The members that all have.
        common: &'static [Member],
        /// The member whose value names the variant.
        tag: &'static str,
        /// The names of each variant, and its members.
        of: &'static [(&'static [&'static str], &'static [Member])],
    },
    /// A list of values.
    List(&'static Shape),
    /// A text, a list or an object with at least and at most this many characters, entries or members.
    Length(&'static Shape, u64, u64),
    /// A value, or null.
    Maybe(&'static Shape),
    /// A value of one of these shapes.
    OneOf(&'static [Shape]),
    /// A value of a shape that has a name in OpenAPI's description.
    Named(&'static str, &'static Shape),
    /// A page of a list: `next` is the cursor of the next page, or null on the last one. Over RESP, the cursor comes first, and
    /// is `0` on the last page.
    Page {
        /// The name of the list, or of the number of its entries.
        name: &'static str,
        /// What the page contains.
        of: &'static Shape,
        /// What the entries are.
        about: &'static str,
        /// Further members of the page over HTTP.
        more: &'static [Member],
    },
    /// An object over HTTP, and `OK` over RESP.
    Done(&'static Shape),
}

/// Creates a member that is always there.
pub(super) const fn member(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member { name, shape, about, is_optional: false, example: None }
}

/// Creates a member that may be missing.
pub(super) const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member { is_optional: true, ..member(name, shape, about) }
}

impl Member {
    pub(super) const fn with_example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }
}
