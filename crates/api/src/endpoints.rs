//! The table of operations.

use super::declaration::{
    FULL, Field, Kind, Member, NO_RULE, NOT_FOUND, OTHER_ACTORS, Place, Reply, Shape, member, page,
};
use super::hits::{BALANCE, REMAINING, RESET};
use super::rule_replies::{EXPLANATION, OVERRIDE_OF_RULE, REASON_OF, RULES};
use divvy_access::Category;
use divvy_access::audit::Action;
use divvy_core::rules::MAX_CREDIT_LIMIT;
use divvy_limiter::counters::MAX_PAGE;
use divvy_limiter::exceptions::ExceptionKind;
use divvy_limiter::inspection::MAX_COUNT;
use divvy_telemetry::metrics::RequestKind;

/// The work of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Shows something.
    Read(Inspection),
    /// Changes something, with this line in the audit log.
    Change(Edit, Action),
}

/// A look at something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspection {
    /// Limits, blocks or allows: of one actor, or of all.
    Exceptions(ExceptionKind),
    /// A rule's counters.
    Counters,
    /// A rule's actors by denials or credits taken.
    Ranking,
    /// An actor's counters.
    Status,
    /// The rules in force.
    Rules,
    /// The rules that match an operation, and why the others do not.
    Explanation,
    /// Statistics of the server.
    Statistics,
    /// The users.
    Users,
}

/// A change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Gives an actor a limit of its own, or blocks or allows it.
    SetException(ExceptionKind),
    /// Removes an actor's limit, block or allow.
    RemoveException(ExceptionKind),
    /// Sets and removes blocks of many actors.
    EditBlocks,
    /// Forgets a rule's counters.
    ForgetCounters,
    /// Forgets the counters of an operation.
    ResetCounters,
    /// Reloads the files of the server.
    Reload,
    /// Backs up the store.
    BackUp,
}

/// An operation of operators.
#[derive(Debug)]
pub struct Endpoint {
    /// Its work.
    pub task: Task,
    /// Its method and path over HTTP; `None` if it is only a command.
    pub http: Option<(&'static str, &'static str)>,
    /// Its RESP command and subcommand, in lower case. An empty subcommand stands for none, and an empty command for an operation
    /// that is only over HTTP.
    pub command: (&'static str, &'static str),
    /// The category that a user needs.
    pub category: Category,
    /// The kind of its requests in the metrics.
    pub kind: RequestKind,
    /// Its fields. Fields with a position over RESP come first, in this order.
    pub fields: &'static [&'static Field],
    /// Its reply.
    pub reply: Shape,
    /// Its effect, in one line.
    pub summary: &'static str,
    /// The answer if nothing is found: null over RESP, and 404 with this text over HTTP.
    pub missing: &'static str,
    /// Its errors over HTTP besides those of all operations.
    pub errors: &'static [Reply],
}

impl Endpoint {
    /// Returns whether it concerns more than counters. Over HTTP, only users may ask for it, who have logged in.
    pub fn needs_user(&self) -> bool {
        matches!(self.category, Category::Admin | Category::Backup)
    }

    /// Returns its command and subcommand on the command line; `None` if it has none.
    pub fn line(&self) -> Option<(&'static str, &'static str)> {
        match self.command {
            ("" | "divvy.reset", _) => None,
            ("info", _) => Some(("stats", "")),
            ("acl", _) => Some(("users", "")),
            ("divvy.status", _) => Some(("actor", "")),
            (command, "del") => Some((command.strip_prefix("divvy.")?, "delete")),
            (command, subcommand) => Some((command.strip_prefix("divvy.")?, subcommand)),
        }
    }

    /// Returns the line in the audit log, if it is a change.
    pub const fn action(&self) -> Option<Action> {
        match self.task {
            Task::Read(_) => None,
            Task::Change(_, action) => Some(action),
        }
    }

    /// Returns whether its fields are in the body of an HTTP request.
    pub fn has_body(&self) -> bool {
        self.fields.iter().any(|field| field.is_in_body)
    }

    /// Returns the command with its arguments.
    pub fn usage(&self) -> String {
        let (name, subcommand) = self.command;
        let name = [name, subcommand].join(" ").trim_end().to_uppercase();
        let fields = self.fields.iter().filter(|field| field.place != Place::Nowhere);
        fields.fold(name, |usage, field| format!("{usage} {}", field.usage()))
    }

    /// Returns the number of words of the command in Redis's notation: -2 stands for two or more.
    pub fn arity(&self) -> i64 {
        let is_word = |field: &&Field| field.place == Place::Position && field.is_required;
        let is_single = |field: &Field| is_word(&field) && !matches!(field.kind, Kind::Pairs | Kind::Rule);
        let fields = || self.fields.iter().copied();
        let words = fields().filter(is_word).count() as i64 + if self.command.1.is_empty() { 1 } else { 2 };
        if fields().all(|field| is_single(field) || field.place == Place::Nowhere) { words } else { -words }
    }
}

/// Finds the operation with this method and path.
pub fn find(method: &str, path: &str) -> Option<&'static Endpoint> {
    ENDPOINTS.iter().copied().find(|endpoint| endpoint.http == Some((method, path)))
}

const LABEL: Field = Field::new("rule", Kind::Text, "The rule's label, or `default` for the default rule.");
const LABEL_OR_ALL: Field =
    Field::new("rule", Kind::Text, "The rule's label, `default` for the default rule, or `*` for all rules.");
const ACTOR: Field = Field::new(
    "actor",
    Kind::Text,
    "The actor: the value of the rule's actorField, or `user=a path=/b` if it names several fields; with the rule `*`, \
     `field=value` or `field=network`, as in `ip=10.0.0.0/8`.",
);
const CREDITS: Field = Field::new(
    "credits",
    Kind::Number { min: 0, max: MAX_CREDIT_LIMIT },
    "Credits in place of the rule's. 0 denies every request.",
)
.in_body();
const EXPIRES_IN: Field = Field::option(
    "EX",
    "expiresIn",
    Kind::Seconds,
    "The time until it ends. Without it, it lasts until it is removed.",
)
.in_body();
const REASON: Field = Field::option(
    "REASON",
    "reason",
    Kind::Text,
    "The reason, for people. Clients see the reason of a block over HTTP.",
)
.in_body();
const OWNER: Field = Field::option(
    "OWNER",
    "owner",
    Kind::Owner,
    "The program that keeps it up to date. With an owner, only what has the same owner is replaced or removed.",
);
const OWNER_IN_BODY: Field = Field { is_in_body: true, ..OWNER };
const OF_OWNER: Field = Field::option("OWNER", "owner", Kind::Owner, "Only those of this owner.");
const OF_FIELD: Field = Field::only_over_http(
    "field",
    Kind::Text,
    "Only blocks that keep an address of this field away from everything a rule counts, for firewalls: those for all rules, and \
     those of rules whose actorField it is. Leaves out allowed addresses, and blocks of canaries.",
);
const SINCE: Field = Field::only_over_http(
    "since",
    Kind::Text,
    "`sequence` of an earlier answer. The answer has the next `count` changes since then; ask again until `sequence` stays the same.",
);
const SET: Field = Field::only_over_http(
    "set",
    Kind::List { of: &[&LABEL_OR_ALL, &ACTOR, &EXPIRES_IN, &REASON], max: MAX_EDITS },
    "The blocks to set, after those in `remove` are removed.",
)
.in_body();
const REMOVE: Field = Field::only_over_http(
    "remove",
    Kind::List { of: &[&LABEL_OR_ALL, &ACTOR], max: MAX_EDITS },
    "The blocks to remove.",
)
.in_body();
/// Maximum number of blocks that one request sets, and removes. --max-body is reached first, unless it was raised.
const MAX_EDITS: usize = 1_000;
const OF_RULE: Field =
    Field::option("RULE", "rule", Kind::Text, "Only those of this rule. Without it, those of all rules.");
/// An actor that only HTTP's listings can name.
const OF_ACTOR_OVER_HTTP: Field =
    Field::only_over_http("actor", Kind::Text, "Only this actor's, which is the whole answer if `rule` is given, too.");
const OF_ACTOR: Field = Field::option("ACTOR", "actor", Kind::Text, "Only this actor's.");
const CURSOR: Field = Field::option("CURSOR", "cursor", Kind::Text, "`next` of the previous page.");
const COUNT: Field = Field::option(
    "COUNT",
    "count",
    Kind::Number { min: 1, max: MAX_PAGE as u64 },
    "The highest number of entries in a page. Without it, 100.",
);
const RULE: Field = Field::new(
    "rule",
    Kind::Rule,
    "The rule's name: its label, or `default`, or `rule-` and its position, from 1. A label takes precedence. Or its operation, as \
     in the rules file.",
);
const RULE_OR_ALL: Field = Field::new(
    "rule",
    Kind::Rule,
    "The rule's name, as `GET /v1/rules` has it, or its operation, or `*` for all rules but canaries.",
);
const ORDER: Field = Field {
    place: Place::Word,
    ..Field::option(
        "",
        "order",
        Kind::Choice(&["denied", "taken"]),
        "The counted events: denied requests, or credits taken. Without it, denied requests.",
    )
};
const LAST: Field = Field::option(
    "LAST",
    "last",
    Kind::Choice(&["60", "3600"]),
    "The time over which it is counted: the last minute or the last hour, in seconds. Without it, the minute.",
);
const TOP_COUNT: Field = Field::option(
    "COUNT",
    "count",
    Kind::Number { min: 1, max: MAX_COUNT as u64 },
    "The number of actors. Without it, 10.",
);
const FIELDS_OF_ACTOR: Field = Field::new(
    "actor",
    Kind::Pairs,
    "The fields of the actor with their values, each a parameter of its own, as in `?tenant=acme&user=ann`. They are exactly the \
     fields of the rules' actorField, in any order.",
);
const OPERATION: Field = Field::new("operation", Kind::Pairs, "The pairs of the operation.").optional();
const EXPLAINED_OPERATION: Field = OPERATION.in_body();
const NAME: Field = Field::new("name", Kind::Text, "The name of the backup in the server's --backup-dir.").in_body();
const SECTION: Field = Field::new("section", Kind::Text, "Only this section, as in `server` or `metrics`.").optional();

const RULE_OF: Member = member("rule", Shape::Text, "The rule's label, or `*` for all rules.");
const ACTOR_OF: Member = member("actor", Shape::Text, "The actor, in the form that requests give it.");
const CREDITS_OF: Member = member("credits", Shape::Number, "Credits in place of the rule's.");
const ENDS: Member =
    member("expiresIn", Shape::SecondsLeft, "Seconds until it ends, rounded up; null if it lasts until it is removed.");
const OWNER_OF: Member = member(
    "owner",
    Shape::Maybe(&Shape::Text),
    "The program that keeps it up to date; null if an operator or a rule set it.",
);
const ORPHAN: Member = member(
    "orphan",
    Shape::Flag,
    "Whether it is not in force, because no rule with a counter has its label, or can have it.",
);

/// A limit of a single actor.
static LIMIT: Shape = Shape::Row(&[RULE_OF, ACTOR_OF, CREDITS_OF, ENDS, ORPHAN]);
static LIMITS: Shape = Shape::List(&LIMIT);
/// A block or an allow.
static OVERRIDE: Shape = Shape::Row(&[RULE_OF, ACTOR_OF, ENDS, REASON_OF, ORPHAN, OWNER_OF]);
static OVERRIDES: Shape = Shape::List(&OVERRIDE);
static CHANGES: &[Member] = &[
    member(
        "removed",
        Shape::List(&Shape::Row(&[RULE_OF, ACTOR_OF])),
        "With `since`: blocks that are gone. One that ended at its time is not listed.",
    ),
    member("sequence", Shape::Text, "The position of this answer in the order of all changes, for `since`."),
    member(
        "reset",
        Shape::Flag,
        "With `since`: true if the changes are not known, after a restart or too many changes, or if the rules or an allow changed. \
         List all blocks again, without `since`, and go on from the `sequence` of the first page.",
    ),
];
static EDITED: Shape = Shape::Map(&[
    member("set", Shape::Number, "Blocks that were set."),
    member("removed", Shape::Number, "Blocks that were removed."),
    member("kept", Shape::Number, "Blocks that were left as they are, because another owner or an operator set them."),
    member("full", Shape::Number, "Blocks that found no room (--max-blocks, or 32 fields with blocks for all rules)."),
]);
static REMOVED: Shape = Shape::Only(&[member("removed", Shape::Flag, "Whether there was one.")]);
static COUNTERS: Shape = Shape::List(&Shape::Row(&[
    member("actor", Shape::Text, "The counter's actor. Empty for the one counter of a rule without actors."),
    REMAINING,
    RESET,
    BALANCE,
]));
static STATUSES: Shape = Shape::List(&Shape::Map(&[
    member("rule", Shape::Text, "The rule's name."),
    member("limit", Shape::Number, "The most credits that the actor can have."),
    member("used", Shape::Number, "Credits that were used. Reserved ones are not."),
    member("reserved", Shape::Number, "Credits of open reservations."),
    member("inFlight", Shape::Number, "Leases of a concurrency rule that are held."),
    REMAINING,
    RESET,
    BALANCE,
    member("ownLimit", Shape::Maybe(&Shape::Number), "The actor's own credits in place of the rule's."),
    member(
        "override",
        Shape::Maybe(&Shape::Map(OVERRIDE_OF_RULE)),
        "The block or the allow that decides in place of the counter.",
    ),
]));
static RANKED: Shape = Shape::Row(&[
    member("actor", Shape::Text, "The actor."),
    member("count", Shape::Number, "Its requests or credits, at most `error` too many."),
    member("error", Shape::Number, "By how much `count` may be too high."),
    member("cut", Shape::Flag, "Whether `actor` is only the start of a longer name."),
    member("rule", Shape::Text, "The name of the actor's rule."),
]);
static RANKING: Shape = Shape::Map(&[
    member("rule", Shape::Text, "The rule's name, or `*` for all rules."),
    member("order", Shape::Word(&["denied", "taken"]), "The counted events."),
    member("last", Shape::Number, "The time over which it is counted, in seconds."),
    member("canary", Shape::Flag, "Whether the rule is a canary, whose denials deny nothing."),
    member(
        "sampled",
        Shape::Flag,
        "Whether the counts are estimates, because there were too many requests to count each.",
    ),
    member("hasRoom", Shape::Flag, "Whether there is memory to rank the rule's actors."),
    member("total", Shape::Maybe(&Shape::Number), "The sum over all actors; null for a user who may see only one."),
    member("top", Shape::List(&RANKED), "The actors, in descending order of `count`."),
]);

/// `DIVVY.LIMIT SET`, `PUT /v1/limits`
pub const SET_LIMIT: Endpoint = Endpoint {
    task: Task::Change(Edit::SetException(ExceptionKind::Limit), Action::LimitSet),
    http: Some(("PUT", "/v1/limits")),
    command: ("divvy.limit", "set"),
    category: Category::Limits,
    kind: RequestKind::Limits,
    fields: &[&LABEL, &ACTOR, &CREDITS, &EXPIRES_IN],
    reply: Shape::Done(&LIMIT),
    summary: "Gives one actor of a rule its own number of credits, in force from the next request. Usage carries over.",
    missing: "this actor has no limit of its own",
    errors: &[NO_RULE, OTHER_ACTORS, FULL],
};
/// `DIVVY.LIMIT LIST`, `GET /v1/limits`
pub const FIND_LIMITS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Exceptions(ExceptionKind::Limit)),
    http: Some(("GET", "/v1/limits")),
    command: ("divvy.limit", "list"),
    category: Category::Read,
    fields: &[&OF_RULE, &OF_ACTOR_OVER_HTTP, &CURSOR, &COUNT],
    reply: page("limits", &LIMITS, "Limits, in no particular order."),
    summary: "Lists limits of actors, one page at a time.",
    errors: &[NOT_FOUND, OTHER_ACTORS],
    ..SET_LIMIT
};
/// `DIVVY.LIMIT GET`
const GET_LIMIT: Endpoint = Endpoint {
    http: None,
    command: ("divvy.limit", "get"),
    fields: &[&LABEL, &ACTOR],
    reply: Shape::Row(&[CREDITS_OF, ENDS]),
    summary: "Returns the credits of an actor's own limit, and the seconds until it ends.",
    ..FIND_LIMITS
};
/// `DIVVY.LIMIT DEL`, `DELETE /v1/limits`
pub const REMOVE_LIMIT: Endpoint = Endpoint {
    task: Task::Change(Edit::RemoveException(ExceptionKind::Limit), Action::LimitDelete),
    http: Some(("DELETE", "/v1/limits")),
    command: ("divvy.limit", "del"),
    fields: &[&LABEL, &ACTOR],
    reply: REMOVED,
    summary: "Removes an actor's own limit, so that the rule's applies again.",
    errors: &[NO_RULE, OTHER_ACTORS],
    ..SET_LIMIT
};

/// `DIVVY.BLOCK SET`, `PUT /v1/blocks`
const SET_BLOCK: Endpoint = Endpoint {
    task: Task::Change(Edit::SetException(ExceptionKind::Block), Action::BlockSet),
    http: Some(("PUT", "/v1/blocks")),
    command: ("divvy.block", "set"),
    category: Category::Block,
    kind: RequestKind::Blocks,
    fields: &[&LABEL_OR_ALL, &ACTOR, &EXPIRES_IN, &REASON, &OWNER_IN_BODY],
    reply: Shape::Done(&OVERRIDE),
    summary: "Denies every request of one actor of a rule, or of all rules (*).",
    missing: "this actor has no block",
    ..SET_LIMIT
};
/// `POST /v1/blocks/bulk`
pub(super) const EDIT_BLOCKS: Endpoint = Endpoint {
    task: Task::Change(Edit::EditBlocks, Action::BlocksEdit),
    http: Some(("POST", "/v1/blocks/bulk")),
    command: ("", ""),
    fields: &[&OWNER_IN_BODY, &SET, &REMOVE],
    reply: EDITED,
    summary: "Sets and removes blocks of many actors. A mistake in one of them changes none.",
    ..SET_BLOCK
};
/// `DIVVY.BLOCK LIST`, `GET /v1/blocks`
const FIND_BLOCKS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Exceptions(ExceptionKind::Block)),
    http: Some(("GET", "/v1/blocks")),
    command: ("divvy.block", "list"),
    category: Category::Read,
    fields: &[&OF_RULE, &OF_ACTOR_OVER_HTTP, &CURSOR, &COUNT, &OF_OWNER, &OF_FIELD, &SINCE],
    reply: Shape::Page { name: "blocks", of: &OVERRIDES, about: "Blocks, in no particular order.", more: CHANGES },
    summary: "Lists blocks, one page at a time.",
    errors: &[NOT_FOUND, OTHER_ACTORS],
    ..SET_BLOCK
};
/// `DIVVY.BLOCK GET`
const GET_BLOCK: Endpoint = Endpoint {
    http: None,
    command: ("divvy.block", "get"),
    fields: &[&LABEL_OR_ALL, &ACTOR],
    reply: Shape::Row(&[ENDS, REASON_OF]),
    summary: "Returns the seconds until an actor's block ends, and its reason.",
    ..FIND_BLOCKS
};
/// `DIVVY.BLOCK DEL`, `DELETE /v1/blocks`
const REMOVE_BLOCK: Endpoint = Endpoint {
    task: Task::Change(Edit::RemoveException(ExceptionKind::Block), Action::BlockDelete),
    http: Some(("DELETE", "/v1/blocks")),
    command: ("divvy.block", "del"),
    fields: &[&LABEL_OR_ALL, &ACTOR, &OWNER],
    reply: REMOVED,
    summary: "Removes an actor's block.",
    errors: &[NO_RULE, OTHER_ACTORS],
    ..SET_BLOCK
};

/// `DIVVY.ALLOW SET`, `PUT /v1/allows`
const SET_ALLOW: Endpoint = Endpoint {
    task: Task::Change(Edit::SetException(ExceptionKind::Allow), Action::AllowSet),
    http: Some(("PUT", "/v1/allows")),
    command: ("divvy.allow", "set"),
    summary: "Never denies a request of one actor of a rule, or of all rules (*).",
    missing: "this actor has no allow",
    ..SET_BLOCK
};
/// `DIVVY.ALLOW LIST`, `GET /v1/allows`
const FIND_ALLOWS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Exceptions(ExceptionKind::Allow)),
    http: Some(("GET", "/v1/allows")),
    command: ("divvy.allow", "list"),
    fields: &[&OF_RULE, &OF_ACTOR_OVER_HTTP, &CURSOR, &COUNT, &OF_OWNER],
    reply: page("allows", &OVERRIDES, "Allows, in no particular order."),
    summary: "Lists allows, one page at a time.",
    missing: "this actor has no allow",
    ..FIND_BLOCKS
};
/// `DIVVY.ALLOW GET`
const GET_ALLOW: Endpoint = Endpoint {
    http: None,
    command: ("divvy.allow", "get"),
    fields: &[&LABEL_OR_ALL, &ACTOR],
    reply: Shape::Row(&[ENDS, REASON_OF]),
    summary: "Returns the seconds until an actor's allow ends, and its reason.",
    ..FIND_ALLOWS
};
/// `DIVVY.ALLOW DEL`, `DELETE /v1/allows`
const REMOVE_ALLOW: Endpoint = Endpoint {
    task: Task::Change(Edit::RemoveException(ExceptionKind::Allow), Action::AllowDelete),
    http: Some(("DELETE", "/v1/allows")),
    command: ("divvy.allow", "del"),
    summary: "Removes an actor's allow.",
    missing: "this actor has no allow",
    ..REMOVE_BLOCK
};

/// `DIVVY.COUNTERS`, `GET /v1/counters`
const LIST_COUNTERS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Counters),
    http: Some(("GET", "/v1/counters")),
    command: ("divvy.counters", ""),
    category: Category::Read,
    kind: RequestKind::Counters,
    fields: &[&RULE, &OF_ACTOR, &CURSOR, &COUNT],
    reply: page("counters", &COUNTERS, "Counters that are not full again."),
    summary: "Lists a rule's counters, one page at a time.",
    missing: "",
    errors: &[NO_RULE, OTHER_ACTORS],
};
/// `DIVVY.FORGET`, `DELETE /v1/counters`
pub const FORGET_COUNTERS: Endpoint = Endpoint {
    task: Task::Change(Edit::ForgetCounters, Action::CountersForget),
    http: Some(("DELETE", "/v1/counters")),
    command: ("divvy.forget", ""),
    category: Category::Forget,
    reply: page("forgotten", &Shape::Number, "The number of counters forgotten in this page."),
    summary: "Forgets a rule's counters, one page at a time.",
    ..LIST_COUNTERS
};
/// `DIVVY.RESET`
pub const RESET_COUNTERS: Endpoint = Endpoint {
    task: Task::Change(Edit::ResetCounters, Action::CountersReset),
    http: None,
    command: ("divvy.reset", ""),
    category: Category::Forget,
    kind: RequestKind::Reset,
    fields: &[&OPERATION],
    reply: Shape::Only(&[member("forgotten", Shape::Number, "The number of forgotten counters.")]),
    summary: "Forgets the counters of an operation. Returns their number.",
    ..LIST_COUNTERS
};
/// `DIVVY.TOP`, `GET /v1/top`
pub const RANK: Endpoint = Endpoint {
    task: Task::Read(Inspection::Ranking),
    http: Some(("GET", "/v1/top")),
    command: ("divvy.top", ""),
    kind: RequestKind::Top,
    fields: &[&RULE_OR_ALL, &ORDER, &LAST, &TOP_COUNT],
    reply: RANKING,
    summary: "Ranks a rule's actors by denials or credits taken in the last minute or hour, as this server counted them.",
    missing: "no rule ranks actors: all are canaries",
    errors: &[NOT_FOUND],
    ..LIST_COUNTERS
};
/// `DIVVY.STATUS`, `GET /v1/status`
const SHOW_STATUS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Status),
    http: Some(("GET", "/v1/status")),
    command: ("divvy.status", ""),
    category: Category::Status,
    kind: RequestKind::Status,
    fields: &[&FIELDS_OF_ACTOR, &CURSOR, &COUNT],
    reply: page(
        "rules",
        &STATUSES,
        "The rules under which the actor has used something, or has an exception, in their order.",
    ),
    summary: "Shows what one actor has used and has left under each rule, one page at a time.",
    missing: "this actor has all credits under every rule that counts by it, and no limit, block or allow of its own; a block of \
              another field may still deny its requests, which an explanation of a whole request shows",
    errors: &[NOT_FOUND],
};
/// `DIVVY.RULES`, `GET /v1/rules`
pub const LIST_RULES: Endpoint = Endpoint {
    task: Task::Read(Inspection::Rules),
    http: Some(("GET", "/v1/rules")),
    command: ("divvy.rules", ""),
    kind: RequestKind::Rules,
    fields: &[],
    reply: RULES,
    summary: "Lists the rules in order of precedence, each with its settings and its name.",
    errors: &[],
    ..LIST_COUNTERS
};
/// `DIVVY.EXPLAIN`, `POST /v1/explain`
pub const EXPLAIN: Endpoint = Endpoint {
    task: Task::Read(Inspection::Explanation),
    http: Some(("POST", "/v1/explain")),
    command: ("divvy.explain", ""),
    kind: RequestKind::Explain,
    fields: &[&EXPLAINED_OPERATION],
    reply: EXPLANATION,
    summary: "Lists which rules match an operation, which one answers, and why the earlier ones do not.",
    ..LIST_RULES
};
/// `GET /v1/stats`; RESP has `INFO`, in Redis's form.
pub const SHOW_STATS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Statistics),
    http: Some(("GET", "/v1/stats")),
    command: ("info", ""),
    category: Category::Info,
    kind: RequestKind::Server,
    fields: &[&SECTION],
    reply: Shape::Object,
    summary: "Shows the server's version, store and memory, the hits it has answered, its last errors, and its metrics.",
    missing: "there is no such section",
    errors: &[NOT_FOUND],
};
/// `ACL LIST`, `GET /v1/users`
pub const LIST_USERS: Endpoint = Endpoint {
    task: Task::Read(Inspection::Users),
    http: Some(("GET", "/v1/users")),
    command: ("acl", "list"),
    category: Category::Admin,
    kind: RequestKind::Server,
    reply: Shape::Only(&[member(
        "users",
        Shape::List(&Shape::Text),
        "A line for each user, as in the access file but without hashes.",
    )]),
    summary: "Lists the users, as in the access file but without their hashes.",
    ..LIST_RULES
};
/// `DIVVY.RELOAD`, `POST /v1/reload`
pub const RELOAD: Endpoint = Endpoint {
    task: Task::Change(Edit::Reload, Action::Reload),
    http: Some(("POST", "/v1/reload")),
    command: ("divvy.reload", ""),
    category: Category::Admin,
    kind: RequestKind::Server,
    reply: Shape::Done(&Shape::Only(&[member("reloading", Shape::Flag, "True: the server begins to load its files.")])),
    summary: "Loads the rules, the users, the token keys and the TLS files anew, as SIGHUP does. The log has the outcome.",
    ..LIST_RULES
};
/// `DIVVY.BACKUP`, `POST /v1/backups`
pub const BACK_UP: Endpoint = Endpoint {
    task: Task::Change(Edit::BackUp, Action::Backup),
    http: Some(("POST", "/v1/backups")),
    command: ("divvy.backup", ""),
    category: Category::Backup,
    kind: RequestKind::Server,
    fields: &[&NAME],
    reply: Shape::Only(&[member("path", Shape::Text, "The path of the backup on the server's machine.")]),
    summary: "Backs up all counters, with this name in the server's --backup-dir. Returns the path.",
    errors: &[],
    ..LIST_COUNTERS
};

/// All operations.
pub static ENDPOINTS: &[&Endpoint] = &[
    &SET_LIMIT,
    &GET_LIMIT,
    &REMOVE_LIMIT,
    &FIND_LIMITS,
    &SET_BLOCK,
    &GET_BLOCK,
    &REMOVE_BLOCK,
    &FIND_BLOCKS,
    &EDIT_BLOCKS,
    &SET_ALLOW,
    &GET_ALLOW,
    &REMOVE_ALLOW,
    &FIND_ALLOWS,
    &LIST_COUNTERS,
    &FORGET_COUNTERS,
    &RANK,
    &SHOW_STATUS,
    &RESET_COUNTERS,
    &LIST_RULES,
    &EXPLAIN,
    &SHOW_STATS,
    &LIST_USERS,
    &RELOAD,
    &BACK_UP,
];
