//! Requests over HTTP that are not in the table of operations, as OpenAPI's description has them, and the errors of all.

use super::shape::{Member, Shape, member, optional};

/// A path of HTTP, with methods that do the same.
#[derive(Debug)]
pub struct Route {
    /// Its methods.
    pub methods: &'static [&'static str],
    /// Its path.
    pub path: &'static str,
    /// Its name for generated clients. If there are several methods, theirs are added.
    pub id: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// More about it, if the summary does not say everything.
    pub about: &'static str,
    /// Who may use it.
    pub access: Access,
    /// Parts of the path.
    pub in_path: &'static [Member],
    /// Parameters of the query.
    pub query: &'static [Member],
    /// Headers.
    pub headers: &'static [Member],
    /// The JSON in the body. With a body, the errors of [`OF_BODY`] are possible, too.
    pub body: Option<Shape>,
    /// Its replies.
    pub replies: &'static [Reply],
    /// The errors that many routes have.
    pub errors: &'static [Reply],
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone.
    Public,
    /// Users.
    Users,
    /// Users, and customers about themselves.
    Customers,
}

/// A reply over HTTP.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// Its status.
    pub status: &'static str,
    /// Its name in OpenAPI's description. Empty if only one route has it.
    pub name: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Headers.
    pub headers: &'static [Member],
    /// The body, if there is one: its type, and its form.
    pub content: Option<(&'static str, Shape)>,
}

/// What routes have in common: a body in a request by a user, and errors in the rules.
pub(super) const POST: Route = Route {
    methods: &["POST"],
    path: "",
    id: "",
    summary: "",
    about: "",
    access: Access::Users,
    in_path: &[],
    query: &[],
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
