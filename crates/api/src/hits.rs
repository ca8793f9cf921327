//! The requests of applications and gateways: hits, checks and reservations.

use super::declaration::Shape::{
    Flag, Length, List, Map, Maybe, Named, Number, OneOf, Pattern, Range, Signed, Text, Word,
};
use super::declaration::{
    BAD_REQUEST, GET, Member, OPERATION_PAIRS, POST, PROBLEM, RETRY_AFTER, Reply, Route, Shape, member, optional,
};
use divvy_core::rules::MAX_CREDIT_LIMIT;

pub(super) const CREDITS: Shape = Range(0, MAX_CREDIT_LIMIT);
/// A number from 1. JSON's readers know whole numbers up to this one.
pub(super) const POSITIVE: Shape = Range(1, MAX_CREDIT_LIMIT);
const COST: Shape = Range(0, u64::MAX);
const RESERVATION_ID: Shape = Pattern("^[a-zA-Z0-9_-]{1,8208}$");
/// A rule's label, or a name of the same form.
pub(super) const LABEL: Shape = Pattern("^[a-zA-Z0-9_-]{1,255}$");
pub(super) const RULE_NAME: Shape = Named("RuleName", &LABEL);

const OPERATION: Member = member(
    "operation",
    OPERATION_PAIRS,
    "The operation. The rules decide which keys matter. Numbers and booleans count as their JSON text: 42 and \"42\" are the \
     same value, and 1.0 is not 1.",
);
const TTL: Member = member(
    "ttl",
    Named("TimeToLive", &Range(1, 600)),
    "Seconds, at most --max-reservation-ttl. Leases (`algorithm = concurrency`) last as long as their rule says, regardless of \
     this. It may be left out if all rules give leases. A renewal without it extends a reservation by its original time.",
);
/// The body of a hit, a peek, a charge or a refund.
const HIT: Shape = Named(
    "Ask",
    &Map(&[
        OPERATION,
        optional(
            "cost",
            Maybe(&COST),
            "The credits that the hit takes, all or none. 0 takes nothing, and is allowed when 1 would be. Default: the rule's \
             costField, or else 1.",
        ),
    ]),
);
const HITS: Shape = Named(
    "Asks",
    &Map(&[
        member("hits", Length(&List(&HIT), 0, 1000), "At most 16 if `atomic` is true."),
        optional(
            "atomic",
            Flag,
            "All hits count or, if any is denied, none does. Costs of hits on the same counter add up. Default: false.",
        ),
    ]),
);
const NEW_RESERVATION: Shape = Named(
    "NewReservation",
    &Map(&[
        OPERATION,
        member("amount", Range(1, u64::MAX), "The credits to reserve, all or none."),
        TTL,
        optional(
            "id",
            Maybe(&Length(&Text, 1, 255)),
            "The client's name for the reservation, at most 255 bytes. A repeated request with the same name returns the same \
             reservation. Default: none, and each request makes another reservation.",
        ),
    ]),
);
const COMMIT: Shape =
    Named("Used", &Map(&[member("cost", COST, "The credits that were used, regardless of the number reserved.")]));
const RENEWAL: Shape = Named("Longer", &Map(&[Member { is_optional: true, ..TTL }]));

const ALLOWED: Member = member("allowed", Flag, "");
const LIMIT: Member = member("limit", CREDITS, "The maximum number of credits.");
pub(super) const REMAINING: Member = member("remaining", CREDITS, "The credits left now.");
pub(super) const BALANCE: Member =
    member("balance", Signed, "Same as `remaining`, but negative if more was used than there were.");
pub(super) const RESET: Member = member(
    "reset",
    Number,
    "Seconds, rounded up, until there is more credit, as the rule's algorithm defines it. 0 if nothing is counted.",
);
const RETRY: Member = member(
    "retryAfter",
    Maybe(&Number),
    "Seconds, rounded up, until the same request would be allowed. null if it is allowed now, or if waiting does not help.",
);
const ANSWERING: Member = member(
    "rule",
    RULE_NAME,
    "The rule that answered, with its name in the RateLimit header: its label, or `default`, or `rule-` and its position, from 1.",
);
const VIOLATED: Member = optional(
    "violatedPolicies",
    Length(&List(&RULE_NAME), 1, u64::MAX),
    "Only in a denial by a stack of rules (`matchPolicy = and`): every rule that denies.",
);
const EXCEEDED: Member = optional(
    "exceeded",
    Length(&List(&RULE_NAME), 1, u64::MAX),
    "Every rule whose limit is exceeded although it allowed the request (`overrun = annotate`), or of whose limit more is used than \
     `annotateAt` percent.",
);
const BLOCKED: Member = optional(
    "blocked",
    Map(&[member("reason", Maybe(&Text), "The operator's reason, if there is one.")]),
    "Only in a denial of a blocked actor.",
);
const ANSWER: Shape =
    Named("Answer", &Map(&[ALLOWED, LIMIT, REMAINING, BALANCE, RESET, RETRY, ANSWERING, VIOLATED, EXCEEDED, BLOCKED]));
const ANSWERS: Shape = Named(
    "Answers",
    &Map(&[
        optional("allowed", Flag, "Only with `atomic`: whether all hits were allowed. If not, none of them counts."),
        member("results", Length(&List(&OneOf(&[ANSWER, PROBLEM])), 0, 1000), ""),
    ]),
);
const ID: Member = member("id", RESERVATION_ID, "The id for committing, renewing and releasing the reservation.");
const EXPIRES_IN: Member = member(
    "expiresIn",
    Maybe(&POSITIVE),
    "Seconds, rounded down, until the reservation expires, which may be at the end of its window. null if it is committed \
     already.",
);
const RESERVATION: Shape = Named(
    "Reservation",
    &Map(&[ALLOWED, LIMIT, REMAINING, BALANCE, RESET, RETRY, ANSWERING, EXCEEDED, ID, EXPIRES_IN]),
);
const STATUS: Member = member(
    "status",
    Word(&["settled", "late", "repeated"]),
    "`late`: the reservation had expired, and the cost counts now. `repeated`: it was committed before, with this answer.",
);
const COMMITTED: Shape = Named("Committed", &Map(&[REMAINING, BALANCE, RESET, STATUS]));
const RENEWED: Shape = Named(
    "Renewed",
    &Map(&[member(
        "expiresIn",
        POSITIVE,
        "Seconds, rounded down, until the reservation expires. Never less than before.",
    )]),
);
const RELEASED: Shape =
    Named("Released", &Map(&[member("released", Flag, "Whether anything was reserved until now.")]));

const NEW_SHARE: Shape = Named(
    "NewShare",
    &Map(&[
        OPERATION,
        member(
            "want",
            Range(1, u64::MAX),
            "The most credits that the client can use, such as those of the last second.",
        ),
    ]),
);
const SHARE: Shape = Named(
    "Share",
    &Map(&[
        member("credits", Range(0, u32::MAX as u64), "Credits of the share, at most an eighth of what is left."),
        member(
            "milliseconds",
            Number,
            "How long they may be granted, counted from the moment when the request was sent. An allowance for clocks that differ is \
             subtracted.",
        ),
        member("id", Maybe(&RESERVATION_ID), "The id for returning the share. null if it has no credits."),
        REMAINING,
        RESET,
        ANSWERING,
    ]),
);
const RETURN: Shape = Named(
    "UnusedCredits",
    &Map(&[member("credits", Range(1, u64::MAX), "The credits to give back, at most those of the share.")]),
);
const RETURNED: Shape = Named(
    "Returned",
    &Map(&[member(
        "returned",
        Flag,
        "Whether credits came back. If not, the share is over, or nothing was used since a reset.",
    )]),
);
const NO_SHARE: Reply = Reply::error(
    "409",
    "NoShare",
    "Several rules must allow the operation, or its rule gives no shares: it counts no credits, may exceed its limit, or denies with \
     others.",
);
const IDEMPOTENCY_KEY: Member = optional(
    "Idempotency-Key",
    Pattern(r#"^("[ !#-\[\]-~]{1,255}"|[!#-+\--~]{1,255})$"#),
    "draft-ietf-httpapi-idempotency-key-header-07: for 60 seconds, a repeated request with the same key has the same answer, and \
     takes nothing again. A string with or without double quotes.",
);
const CHECKED: &[Member] = &[
    optional("X-Original-Method", Text, "The request's method, or else X-Forwarded-Method."),
    optional("X-Original-URI", Text, "The request's path and query, or else X-Forwarded-Uri."),
    optional(
        "X-Forwarded-For",
        Text,
        "The last address is the client's, unless the server has trusted hops. Without this header, X-Real-IP.",
    ),
];
const RATE_LIMIT: Member = member(
    "RateLimit",
    Pattern(r#"^"[a-zA-Z0-9_-]+";r=[0-9]{1,15}(;t=[0-9]{1,15})?$"#),
    "draft-ietf-httpapi-ratelimit-headers-11: the rule, the credits left, and the seconds to the reset. The flag \
     --rate-limit-headers selects other headers.",
);
const POLICY: Member = member(
    "RateLimit-Policy",
    Pattern(r#"^"[a-zA-Z0-9_-]+";q=[0-9]{1,15}(;w=[1-9][0-9]{0,14})?$"#),
    "The rule, its quota, and its window in seconds.",
);
const EXCEEDED_RULES: Member = optional(
    "divvy-exceeded",
    Pattern("^[a-zA-Z0-9_-]+(, [a-zA-Z0-9_-]+)*$"),
    "Every rule whose limit is exceeded although it allowed the request, or of whose limit more is used than `annotateAt` percent.",
);
const REPLAYED: Member =
    optional("Idempotent-Replayed", Word(&["true"]), "The answer was given before, under the same Idempotency-Key.");
const LOCATION: Member = member("Location", Pattern("^/v1/reservations/[a-zA-Z0-9_-]+$"), "The reservation's path.");
const LIMITS: &[Member] = &[RATE_LIMIT, POLICY, EXCEEDED_RULES];
const LIMITS_AND_RETRY: &[Member] = &[RATE_LIMIT, POLICY, EXCEEDED_RULES, RETRY_AFTER];
const LIMITS_RETRY_AND_REPLAYED: &[Member] = &[RATE_LIMIT, POLICY, EXCEEDED_RULES, REPLAYED, RETRY_AFTER];
const LIMITS_AND_REPLAYED: &[Member] = &[RATE_LIMIT, POLICY, EXCEEDED_RULES, REPLAYED];

const IN_FLIGHT: Reply = Reply::error(
    "409",
    "InFlight",
    "The first request with this Idempotency-Key is still being answered. Or a rule limits concurrency: only reservations take \
     from it.",
)
.with(&[RETRY_AFTER]);
const TAKES_LEASES: Reply =
    Reply::error("409", "TakesLeases", "A rule limits concurrency: only reservations take from it.");
const CANNOT_CHARGE: Reply = Reply::error(
    "409",
    "CannotCharge",
    "The rule that answers this operation counts no costs, or is a sliding-log, which cannot count more than its limit.",
);
const CANNOT_RESERVE: Reply =
    Reply::error("409", "CannotReserve", "A rule is a sliding-log, which cannot reserve credits.");
const OTHER_REQUEST: Reply = Reply::error(
    "422",
    "OtherRequest",
    "Another request used this Idempotency-Key less than a minute ago. Nothing has changed.",
);
const OTHER_RESERVATION: Reply =
    Reply::error("422", "OtherReservation", "There is a reservation with this `id` and another amount or time.");
const NO_RESERVATION: Reply = Reply::error(
    "404",
    "NoSuchReservation",
    "The id is unknown, or the reservation has ended and is not remembered, or no rule has its counter anymore.",
);
const PASSED: Reply = Reply { name: "CheckPassed", ..Reply::empty("200", "Let the request pass. No body.", LIMITS) };
const DENIED: Reply = Reply {
    name: "CheckDenied",
    ..Reply::empty("429", "Deny the request. No body. The flag --deny-status sets another status.", LIMITS_AND_RETRY)
};

const KEYED: Route = Route { headers: &[IDEMPOTENCY_KEY], ..POST };
const CHECK: Route = Route {
    methods: &["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"],
    summary: "Answer a gateway about this request",
    replies: &[PASSED, DENIED, BAD_REQUEST, TAKES_LEASES],
    ..GET
};
const SETTLEMENT: Route =
    Route { in_path: &[member("id", RESERVATION_ID, "The `id` in the answer to the reservation.")], ..POST };

pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/v1/hit",
        id: "hit",
        summary: "Take a hit",
        body: Some(HIT),
        replies: &[
            Reply::json("200", "Allowed. The credit is taken.", ANSWER).with(LIMITS_AND_REPLAYED),
            Reply::json("429", "Denied. No credit is taken.", ANSWER).with(LIMITS_RETRY_AND_REPLAYED),
            IN_FLIGHT,
            OTHER_REQUEST,
        ],
        ..KEYED
    },
    Route {
        path: "/v1/hits",
        id: "hits",
        summary: "Take many hits, in order, as one batch",
        about: "If a hit is malformed, the whole request is refused and no credit is taken. With `atomic`, all hits count or none \
                does.",
        body: Some(HITS),
        replies: &[
            Reply::json("200", "An answer or a problem for each hit, in order.", ANSWERS).with(&[REPLAYED]),
            IN_FLIGHT,
            OTHER_REQUEST,
        ],
        ..KEYED
    },
    Route {
        path: "/v1/check",
        id: "checkBy",
        methods: &["GET", "POST"],
        summary: "Check the request that the headers describe, for a gateway",
        headers: CHECKED,
        ..CHECK
    },
    Route { path: "/v1/check/", id: "checkRoot", ..CHECK },
    Route {
        path: "/v1/check/{path}",
        id: "checkBelow",
        in_path: &[member(
            "path",
            Length(&Text, 1, u64::MAX),
            "The path of the request in question. Slashes need no escaping.",
        )],
        ..CHECK
    },
    Route {
        path: "/v1/peek",
        id: "peek",
        summary: "Return the answer to a hit, without taking credit",
        body: Some(HIT),
        replies: &[Reply::json(
            "200",
            "The answer to a hit. `allowed` says whether its status would be 200 or 429.",
            ANSWER,
        )
        .with(LIMITS)],
        ..POST
    },
    Route {
        path: "/v1/charge",
        id: "charge",
        summary: "Count credits that were used already, even if fewer are left",
        body: Some(HIT),
        replies: &[
            Reply::json("200", "The state of the counter. `allowed` says whether anything was left before.", ANSWER)
                .with(LIMITS_AND_REPLAYED),
            CANNOT_CHARGE,
            OTHER_REQUEST,
        ],
        ..KEYED
    },
    Route {
        path: "/v1/refund",
        id: "refund",
        summary: "Give back credits of a hit or a charge, at most all of them",
        body: Some(HIT),
        replies: &[
            Reply::json("200", "The state of the counter.", ANSWER).with(LIMITS_AND_REPLAYED),
            IN_FLIGHT,
            OTHER_REQUEST,
        ],
        ..KEYED
    },
    Route {
        path: "/v1/shares",
        id: "share",
        summary: "Take a share of a counter, to grant its credits without further requests",
        about: "The credits are taken from the counter. A client grants them until `milliseconds` after it sent the request, by a clock \
                that no program sets, and gives back what it has not granted. So the limit is never exceeded.",
        body: Some(NEW_SHARE),
        replies: &[
            Reply::json("200", "The share, perhaps of 0 credits. Then send hits.", SHARE),
            Reply::json("429", "Denied: the actor is blocked.", ANSWER).with(LIMITS_AND_RETRY),
            NO_SHARE,
        ],
        ..POST
    },
    Route {
        path: "/v1/shares/{id}/return",
        id: "returnShare",
        summary: "Give back unused credits of a share",
        about: "A repeated request has the answer of the first, and no further effect.",
        in_path: &[member("id", RESERVATION_ID, "The `id` in the answer to the request for the share.")],
        body: Some(RETURN),
        replies: &[Reply::json("200", "Whether credits came back.", RETURNED), NO_RESERVATION],
        ..POST
    },
    Route {
        path: "/v1/reservations",
        id: "reserve",
        summary: "Reserve credits until they are committed, released, or expire",
        about: "All rules that a hit would take from reserve the amount, or none does. Rules that count requests count this one.",
        body: Some(NEW_RESERVATION),
        replies: &[
            Reply::json("201", "Allowed. The amount is reserved.", RESERVATION).with(&[
                LOCATION,
                RATE_LIMIT,
                POLICY,
                EXCEEDED_RULES,
            ]),
            Reply::json("200", "The same `id` has reserved the amount before. Nothing has changed.", RESERVATION)
                .with(LIMITS),
            Reply::json("429", "Denied. Nothing is reserved.", ANSWER).with(LIMITS_AND_RETRY),
            CANNOT_RESERVE,
            OTHER_RESERVATION,
        ],
        ..POST
    },
    Route {
        methods: &["DELETE"],
        path: "/v1/reservations/{id}",
        id: "release",
        summary: "Release a reservation",
        replies: &[Reply::json("200", "Nothing is reserved anymore.", RELEASED), NO_RESERVATION],
        ..SETTLEMENT
    },
    Route {
        path: "/v1/reservations/{id}/commit",
        id: "commit",
        summary: "Count the used credits, which may be more than were reserved, and release the rest",
        about: "Repeated within a minute, it has the same answer and counts nothing more.",
        body: Some(COMMIT),
        replies: &[
            Reply::json(
                "200",
                "The state of the counter. If there are several rules, the one that leaves the least in proportion.",
                COMMITTED,
            ),
            NO_RESERVATION,
        ],
        ..SETTLEMENT
    },
    Route {
        path: "/v1/reservations/{id}/renew",
        id: "renew",
        summary: "Keep credits reserved for a number of seconds from now",
        body: Some(RENEWAL),
        replies: &[Reply::json("200", "The credits are still reserved.", RENEWED), NO_RESERVATION],
        ..SETTLEMENT
    },
];
