//! The requests about rules, those of CrowdSec's bouncers, and those about the server itself.

use super::hits::{CREDITS, LABEL, OPERATION, POSITIVE, RULE_NAME};
use super::route::{Access, BAD_QUERY, FORBIDDEN, GET, NO_PASSWORD, POST, Reply, Route, UNAVAILABLE};
use super::shape::Shape::{
    Decimal, Flag, Length, List, Map, Maybe, Named, Number, Object, OneOf, Pattern, Range, Text, Texts, Variants, Word,
};
use super::shape::{Member, Shape, member, optional};
use super::table::OVERRIDE_OF_RULE;
use divvy_core::rules::{MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR};

const TEXTS: Shape = List(&Text);
/// A field, and a text about it.
const OF_FIELD: Shape = Length(&Texts, 1, 1);

const ENTRY_OF_VALUE: Shape = Map(&[
    member("key", Text, ""),
    optional("list", Text, "The name of the list, if the entry is in one."),
    optional("line", POSITIVE, "The line of the entry in the list."),
    member("entry", Text, ""),
]);
const GRANTS: Member = member(
    "grants",
    Named(
        "Grants",
        &Map(&[
            member("limit", Text, "The rule's limit in words."),
            optional("actorLimit", Text, "The actor's own limit in words, if it has one."),
            optional(
                "override",
                Named("ActorOverride", &Map(OVERRIDE_OF_RULE)),
                "The block or the allow that decides about the actor, if there is one.",
            ),
            optional("cost", Number, "The cost of the operation, if the rule has a costField."),
            optional(
                "members",
                Length(&List(&ENTRY_OF_VALUE), 1, 2),
                "The entries of `networks` and `list` that the operation's values match.",
            ),
        ]),
    ),
    "",
);
const EXPLAINED_RULES: Shape = Named(
    "ExplainedRules",
    &List(&Variants {
        common: &[
            member("name", RULE_NAME, "The rule's name in answers."),
            member("rule", Text, "The rule's operation, as in a section header of a rules file."),
            member("line", POSITIVE, "The line where the rule begins in its file."),
            optional("label", LABEL, ""),
        ],
        tag: "finding",
        of: &[
            (&["answers", "canary", "must-allow"], &[GRANTS]),
            (&["refuses"], &[member("reason", Text, "")]),
            (&["key-missing"], &[member("key", Text, "")]),
            (
                &["condition-fails"],
                &[
                    member("key", Text, ""),
                    member("setting", Word(&["networks", "list"]), ""),
                    member("entries", Text, "The setting's value, without the field."),
                    member("value", Text, ""),
                    optional("entry", Text, "The entry that the value matches, if it must not match any."),
                    optional("lineInList", POSITIVE, "The line of the entry in the list."),
                ],
            ),
            (&["value-differs"], &[member("key", Text, ""), member("pattern", Text, ""), member("value", Text, "")]),
        ],
    }),
);
const EXPLANATION: Shape = Named(
    "Explanation",
    &Map(&[
        member("rules", EXPLAINED_RULES, ""),
        optional(
            "check",
            Map(&[
                member("operation", Texts, "The operation in the spelling of checks."),
                member("rules", EXPLAINED_RULES, ""),
            ]),
            "How a gateway's check (/v1/check) of the operation is answered, if other rules match it: checks have one spelling of \
             methods, paths, hosts and addresses.",
        ),
    ]),
);
/// A rule's name, and its settings as in a rules file, without those that are not given.
const RULE: Shape = Named(
    "Rule",
    &Map(&[
        member("name", RULE_NAME, "The rule's name in answers."),
        member("operation", Texts, ""),
        optional(
            "allowed",
            Number,
            "Hits that rules with this name have allowed since the server started. Absent if the user may see only one actor.",
        ),
        optional("denied", Number, "Hits that they have denied, or would have denied if they are canaries."),
        optional(
            "limit",
            Word(&["none"]),
            "Present if the rule allows everything by these words. `creditLimit` and `resetSeconds` are absent then.",
        ),
        optional("creditLimit", CREDITS, ""),
        optional("resetSeconds", Decimal, "Absent for a window by the calendar."),
        optional("window", Word(&["minute", "hour", "day", "week", "month", "year"]), ""),
        optional("timezone", Text, "The window's time zone, as an IANA name."),
        optional("resetAt", Pattern("^[0-9]{2}:[0-9]{2}$"), "Time when a day of the window begins."),
        member(
            "algorithm",
            Word(&["fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket", "concurrency"]),
            "",
        ),
        optional("refillCredits", CREDITS, ""),
        optional("refillSeconds", Decimal, ""),
        optional("burst", CREDITS, ""),
        optional(
            "networks",
            OF_FIELD,
            "A field, and the networks that its value must be in, separated by commas. With `not ` in front, it must be in none of \
             them.",
        ),
        optional(
            "list",
            OF_FIELD,
            "A field, and the name of a list file that its value must be in. With `not ` in front, it must not be in it.",
        ),
        optional(
            "actorPrefix",
            OF_FIELD,
            "An actor field, and the lengths of the networks that are counted together: for IPv4, and for IPv6.",
        ),
        optional(
            "actorField",
            OneOf(&[Text, Length(&TEXTS, 2, u64::MAX)]),
            "A field, or several. Each combination of their values has its own counter.",
        ),
        optional("costField", Text, ""),
        optional(
            "overrun",
            Word(&["refuse", "debt"]),
            "The answer to a hit that costs more than is left: denied, or allowed and counted below 0.",
        ),
        optional("holdField", Text, "The field with a gateway's name for the lease of a request."),
        optional("counter", LABEL, "The name of the counter, which all rules with this name share."),
        optional("blockAfter", Range(1, MAX_BLOCK_AFTER), "Denials within `blockWindow` that block the actor."),
        optional("blockWindow", POSITIVE, "Seconds."),
        optional("blockSeconds", POSITIVE, "Length of the first block."),
        optional("blockFactor", Range(1, MAX_BLOCK_FACTOR), "Each block is this many times as long as the one before."),
        optional("blockMax", POSITIVE, "Length of the longest block in seconds."),
        optional("blockForget", Number, "Seconds after a block until the actor's blocks are forgotten."),
        member("matchPolicy", Word(&["stop", "and", "canary"]), ""),
        optional("label", LABEL, ""),
        optional("comment", Text, ""),
    ]),
);

/// A block of an address or a network.
const DECISION: Shape = Named(
    "Decision",
    &Map(&[
        member(
            "duration",
            Pattern("^([0-9]+h)?([0-9]+m)?[0-9]+s$"),
            "The time until it ends, in Go's format. At most `168h0m0s`: divvy announces longer ones again in time.",
        ),
        member("id", POSITIVE, "The same for the same address or network."),
        member("origin", Word(&["divvy", "crowdsec"]), "The program that decided."),
        member(
            "scenario",
            Text,
            "`divvy/` with the rule's name, and the reason, if there is one. Or the scenario of CrowdSec.",
        ),
        member("scope", Word(&["Ip", "Range"]), ""),
        member("type", Word(&["ban"]), ""),
        member("value", Text, "The address or network."),
    ]),
);
const DECISIONS: Shape = List(&DECISION);
const STREAM: Shape = Named("DecisionChanges", &Map(&[member("new", DECISIONS, ""), member("deleted", DECISIONS, "")]));

const SCOPES: Member =
    optional("scopes", Text, "Only decisions about addresses (`ip`) or networks (`range`). Separated by commas.");
const TYPE: Member = optional("type", Text, "Only decisions of this type. All of them are of the type `ban`.");
const ORIGINS: Member = optional("origins", Text, "Only decisions of these origins, separated by commas.");
const SCENARIOS: Member = optional(
    "scenarios_containing",
    Text,
    "Only decisions whose scenario contains one of these words, in any case. Separated by commas.",
);
const OTHER_SCENARIOS: Member = optional(
    "scenarios_not_containing",
    Text,
    "Only decisions whose scenario contains none of these words, in any case. Separated by commas.",
);

const FOR_BOUNCERS: Route = Route { access: Access::Bouncers, errors: &[NO_PASSWORD, FORBIDDEN, UNAVAILABLE], ..GET };
const PUBLIC: Route = Route { access: Access::Public, errors: &[], ..GET };

pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/v1/explain",
        id: "explain",
        summary: "Explain which rules match an operation, and why the others do not",
        body: Some(Named("Question", &Map(&[OPERATION]))),
        replies: &[Reply::json("200", "Each rule, in order, up to the one that answers.", EXPLANATION)],
        ..POST
    },
    Route {
        path: "/v1/rules",
        id: "rules",
        summary: "List the rules in force, in order",
        replies: &[Reply::json("200", "The rules.", Named("Rules", &Map(&[member("rules", List(&RULE), "")])))],
        ..GET
    },
    Route {
        path: "/v1/decisions",
        id: "decisions",
        summary: "Return the blocks of addresses and networks, as decisions of CrowdSec",
        about: "For CrowdSec's bouncers. One decision for each address or network: the block that ends last. Other parameters are \
                ignored.",
        query: &[
            optional("ip", Text, "Only decisions that concern this address."),
            optional("range", Text, "Only decisions about networks that contain this one."),
            optional(
                "contains",
                Flag,
                "With false, `ip` and `range` stand for decisions about addresses and networks in this one. Default: true.",
            ),
            optional("value", Text, "Only the decision about exactly this address or network."),
            optional("scope", Text, "The same as `scopes`."),
            SCOPES,
            TYPE,
            ORIGINS,
            SCENARIOS,
            OTHER_SCENARIOS,
        ],
        replies: &[
            Reply::json("200", "The decisions; `null` if there are none.", Maybe(&Length(&DECISIONS, 1, u64::MAX))),
            BAD_QUERY,
        ],
        ..FOR_BOUNCERS
    },
    Route {
        path: "/v1/decisions/stream",
        id: "decisionsStream",
        summary: "Return the decisions that are new, and those that have ended, since the bouncer's last request",
        about: "For CrowdSec's bouncers, which differ by their key, their address and their `User-Agent`. Other parameters are \
                ignored.",
        query: &[
            optional("startup", Flag, "With true, all decisions in force are new. Default: false."),
            SCOPES,
            TYPE,
            ORIGINS,
            SCENARIOS,
            OTHER_SCENARIOS,
        ],
        replies: &[
            Reply::json("200", "The changes. An address or a network is in one of the lists at most.", STREAM),
            BAD_QUERY,
        ],
        ..FOR_BOUNCERS
    },
    Route {
        methods: &["POST"],
        path: "/v1/usage-metrics",
        id: "usageMetrics",
        summary: "Accept the metrics of a CrowdSec bouncer, which are not kept",
        body: Some(Object),
        replies: &[Reply::empty("201", "The metrics were accepted.", &[])],
        ..FOR_BOUNCERS
    },
    Route {
        path: "/openapi.json",
        id: "description",
        summary: "Return this description",
        replies: &[Reply::json("200", "This description.", Object)],
        ..PUBLIC
    },
    Route {
        path: "/metrics",
        id: "metrics",
        summary: "Return metrics for Prometheus; the flag --metrics-path sets the path",
        replies: &[Reply::text("200", "Prometheus's text format.")],
        errors: &[NO_PASSWORD, FORBIDDEN],
        ..GET
    },
    Route {
        path: "/healthz",
        id: "alive",
        summary: "Report whether the process is alive",
        replies: &[Reply::text("200", "The process is alive.")],
        ..PUBLIC
    },
    Route {
        path: "/readyz",
        id: "ready",
        summary: "Report whether the server can answer hits",
        replies: &[
            Reply::text("200", "Hits can be answered."),
            Reply::text("503", "Do not send requests; the body says why."),
        ],
        ..PUBLIC
    },
];
