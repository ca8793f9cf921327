//! The types of the tables: the shapes of values in requests and replies, the fields of operations' requests, and the routes
//! that are not operations. Members of objects are in the order that RESP's arrays have them.

use std::fmt;

use divvy_core::rules::MAX_RESET_SECONDS;

/// A member of an object, a parameter, or a header.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its name in JSON and in RESP's maps.
    pub name: &'static str,
    /// Its values.
    pub shape: Shape,
    /// Its meaning. Empty if its name says everything.
    pub about: &'static str,
    /// Whether it may be missing.
    pub is_optional: bool,
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
    /// An object with members that all variants have, and the members of one variant, which the member `tag` names.
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
        /// The content of the page.
        of: &'static Shape,
        /// The meaning of the entries.
        about: &'static str,
        /// Further members of the page over HTTP.
        more: &'static [Member],
    },
    /// An object over HTTP, and `OK` over RESP.
    Done(&'static Shape),
}

/// The pairs of an operation, as many as a request may have by default.
pub(super) const OPERATION_PAIRS: Shape = Shape::Named("Operation", &Shape::Length(&Shape::Operation, 0, 256));

/// Creates a member that is always there.
pub(super) const fn member(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member { name, shape, about, is_optional: false }
}

/// Creates a member that may be missing.
pub(super) const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member { is_optional: true, ..member(name, shape, about) }
}

/// Creates the shape of a page of a list.
pub(super) const fn page(name: &'static str, of: &'static Shape, about: &'static str) -> Shape {
    Shape::Page { name, of, about, more: &[] }
}

/// A field of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in JSON, in a URL's query, and in RESP's usage.
    pub name: &'static str,
    /// Where RESP commands have it.
    pub place: Place,
    /// Whether it is in the body of an HTTP request instead of the query.
    pub is_in_body: bool,
    /// Whether it must be given.
    pub is_required: bool,
    /// Its values.
    pub kind: Kind,
    /// Its meaning, in one sentence.
    pub about: &'static str,
}

/// Where a RESP command has a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At its position among the others.
    Position,
    /// After this word, in any order.
    Option(&'static str),
    /// As a word of its own, which is the value.
    Word,
    /// Nowhere: only HTTP has it.
    Nowhere,
}

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A whole number in this range.
    Number {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// How long something lasts, in whole seconds.
    Seconds,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A rule: its name, or its operation, which over RESP is a word for each pair.
    Rule,
    /// Pairs of field and value.
    Pairs,
    /// The name of a program that owns blocks.
    Owner,
    /// A list of objects with these fields, in a body.
    List {
        /// The fields of each.
        of: &'static [&'static Field],
        /// The largest number of objects.
        max: usize,
    },
}

impl Kind {
    /// Returns the smallest and the largest number.
    pub fn range(self) -> (u64, u64) {
        match self {
            Self::Number { min, max } => (min, max),
            _ => (1, MAX_RESET_SECONDS),
        }
    }
}

impl fmt::Display for Kind {
    /// Describes the values, for "must be".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Rule => f.write_str("the name of a rule, or its operation as in the rules file"),
            Self::Number { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Seconds => {
                write!(f, "a whole number of seconds from 1 to {MAX_RESET_SECONDS}, which is 100 years")
            }
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::Pairs => f.write_str("field=value pairs"),
            Self::Owner => f.write_str("1 to 64 printable ASCII characters without spaces"),
            Self::List { max, .. } => write!(f, "a list of at most {max}"),
        }
    }
}

impl Field {
    /// Creates a field that must be given, at its position.
    pub(super) const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, place: Place::Position, is_in_body: false, is_required: true, kind, about }
    }

    /// Returns the field as one that may be missing.
    pub(super) const fn optional(self) -> Self {
        Self { is_required: false, ..self }
    }

    /// Creates a field that may be missing, after `word`.
    pub(super) const fn option(word: &'static str, name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { place: Place::Option(word), ..Self::new(name, kind, about).optional() }
    }

    /// Creates a field for HTTP requests alone, which may be missing.
    pub(super) const fn only_over_http(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { place: Place::Nowhere, ..Self::new(name, kind, about).optional() }
    }

    /// Returns the field in the body of HTTP requests.
    pub(super) const fn in_body(self) -> Self {
        Self { is_in_body: true, ..self }
    }

    /// Returns the field as a member of HTTP requests.
    pub(super) fn member(&self) -> Member {
        let shape = match self.kind {
            // A cursor is only valid as the server has made it; 0 is the first page.
            Kind::Text if self.place == Place::Option("CURSOR") => Shape::Pattern("^(0|[^ ]+ .*)$"),
            Kind::Text | Kind::Rule => Shape::Text,
            Kind::Choice(words) => Shape::Word(words),
            Kind::Owner => Shape::Pattern("^[!-~]{1,64}$"),
            Kind::List { .. } => Shape::List(&Shape::Object),
            Kind::Pairs if self.is_in_body => OPERATION_PAIRS,
            Kind::Pairs => Shape::Length(&Shape::Texts, 1, u64::MAX),
            Kind::Number { .. } | Kind::Seconds => {
                let (min, max) = self.kind.range();
                Shape::Range(min, max)
            }
        };
        // There may be no words for an operation, but in JSON it is an object in any case.
        let is_required = self.is_required || (self.kind == Kind::Pairs && self.is_in_body);
        Member { name: self.name, shape, about: self.about, is_optional: !is_required }
    }

    /// Returns its part of a command's usage.
    pub(super) fn usage(&self) -> String {
        let values = match self.kind {
            Kind::Rule => "rule | key=value...".to_owned(),
            Kind::Pairs => "key=value...".to_owned(),
            Kind::Choice(words) => words.join(" | "),
            Kind::Seconds => "seconds".to_owned(),
            Kind::Text | Kind::Number { .. } | Kind::Owner | Kind::List { .. } => self.name.to_owned(),
        };
        match self.place {
            Place::Option(word) => format!("[{word} {values}]"),
            Place::Word => format!("[{}]", values.to_uppercase()),
            Place::Position | Place::Nowhere => values,
        }
    }
}

/// A path of HTTP, with methods that do the same.
#[derive(Debug)]
pub struct Route {
    /// Its methods.
    pub methods: &'static [&'static str],
    /// Its path.
    pub path: &'static str,
    /// Its name for generated clients. If there are several methods, theirs are added.
    pub id: &'static str,
    /// Its effect, in one line.
    pub summary: &'static str,
    /// More about it, if the summary does not say everything.
    pub about: &'static str,
    /// Whether anyone may use it, and not only users.
    pub is_public: bool,
    /// Parts of the path.
    pub in_path: &'static [Member],
    /// Headers.
    pub headers: &'static [Member],
    /// The JSON in the body. With a body, the errors of [`OF_BODY`] are possible, too.
    pub body: Option<Shape>,
    /// Its replies.
    pub replies: &'static [Reply],
    /// The errors that many routes have.
    pub errors: &'static [Reply],
}

/// A reply over HTTP.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// Its status.
    pub status: &'static str,
    /// Its name in OpenAPI's description. Empty if only one route has it.
    pub name: &'static str,
    /// Its meaning.
    pub about: &'static str,
    /// Headers.
    pub headers: &'static [Member],
    /// The body, if there is one: its type, and its form.
    pub content: Option<(&'static str, Shape)>,
}

/// The common part of routes: a body in a request by a user, and errors in the rules.
pub(super) const POST: Route = Route {
    methods: &["POST"],
    path: "",
    id: "",
    summary: "",
    about: "",
    is_public: false,
    in_path: &[],
    headers: &[],
    body: None,
    replies: &[],
    errors: OF_RULES,
};
pub(super) const GET: Route = Route { methods: &["GET"], ..POST };

impl Reply {
    /// Creates a reply without a body.
    pub(super) const fn empty(status: &'static str, about: &'static str, headers: &'static [Member]) -> Self {
        Self { status, name: "", about, headers, content: None }
    }

    /// Creates a reply with a JSON body.
    pub(super) const fn json(status: &'static str, about: &'static str, body: Shape) -> Self {
        Self { content: Some(("application/json", body)), ..Self::empty(status, about, &[]) }
    }

    /// Creates a reply that is a text.
    pub(super) const fn text(status: &'static str, about: &'static str) -> Self {
        Self { content: Some(("text/plain", Shape::Text)), ..Self::empty(status, about, &[]) }
    }

    /// Creates an error.
    pub(super) const fn error(status: &'static str, name: &'static str, about: &'static str) -> Self {
        Self { name, content: Some(("application/problem+json", PROBLEM)), ..Self::empty(status, about, &[]) }
    }

    /// Returns the reply with these headers.
    pub(super) const fn with(self, headers: &'static [Member]) -> Self {
        Self { headers, ..self }
    }
}

/// A problem with a request, in the format of RFC 9457.
pub(super) const PROBLEM: Shape = Shape::Named(
    "Problem",
    &Shape::Map(&[
        member("type", Shape::Word(&["about:blank"]), ""),
        member("title", Shape::Text, ""),
        member("status", Shape::Range(400, 599), ""),
        member("detail", Shape::Text, "The problem in words."),
        optional("pointer", Shape::Pattern("^#"), "The position in the body: a JSON pointer."),
    ]),
);
pub(super) const RETRY_AFTER: Member = optional(
    "Retry-After",
    Shape::Number,
    "Seconds, rounded up, until the same request would be allowed. Absent if waiting does not help.",
);

pub(super) const BAD_QUERY: Reply = Reply::error(
    "400",
    "BadQuery",
    "The request is malformed, or the rule counts nothing, or a change names the rule by its position.",
);
pub(super) const BAD_REQUEST: Reply =
    Reply::error("400", "BadRequest", "The request is malformed. No credit is taken.");
pub(super) const NOT_FOUND: Reply =
    Reply::error("404", "NotFound", "There is no such rule, or nothing is known about this actor.");
pub(super) const NO_RULE: Reply = Reply::error("404", "NoSuchRule", "No rule has this name.");
pub(super) const OTHER_ACTORS: Reply =
    Reply::error("409", "OtherActors", "The rule has no actors, or its actors have other fields.");
pub(super) const FULL: Reply = Reply::error("507", "Full", "There are as many as the server allows.");
pub(super) const NO_PASSWORD: Reply = Reply::error(
    "401",
    "NoPassword",
    "The server has a password, and it is missing or wrong. Or the token is not valid.",
)
.with(&[member("WWW-Authenticate", Shape::Text, "")]);
pub(super) const FORBIDDEN: Reply = Reply::error(
    "403",
    "Forbidden",
    "The user has no permission for requests of this category, or for a rule or an actor that the request is about.",
);
const RULES_MISTAKE: Reply = Reply::error(
    "500",
    "RulesMistake",
    "No rules are loaded, or more rules with `matchPolicy = and` match the request than a stack may have. The operator must \
     correct this.",
);
pub(super) const UNAVAILABLE: Reply =
    Reply::error("503", "Unavailable", "The store does not answer, or no memory is left for the body.")
        .with(&[RETRY_AFTER]);

/// The errors of requests about rules.
pub(super) const OF_RULES: &[Reply] = &[NO_PASSWORD, FORBIDDEN, RULES_MISTAKE, UNAVAILABLE];
/// The errors of requests with a body.
pub(super) const OF_BODY: &[Reply] = &[
    BAD_REQUEST,
    Reply::error("408", "TooSlow", "The body did not arrive within the server's --request-timeout."),
    Reply::error("413", "TooLong", "The body is too long."),
    Reply::error("415", "NotJson", "The Content-Type is not JSON."),
];
