//! The replies about rules.

use super::declaration::Shape::{
    Decimal, Length, List, Map, Maybe, Named, Number, OneOf, Only, Pattern, Range, SecondsLeft, Text, Texts, Variants,
    Word,
};
use super::declaration::{Member, Shape, member, optional};
use super::hits::{CREDITS, LABEL, POSITIVE, RULE_NAME};
use divvy_core::rules::{MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR};

/// A field, and a text about it.
const OF_FIELD: Shape = Length(&Texts, 1, 1);

/// The reason of a block or an allow.
pub(super) const REASON_OF: Member = member("reason", Maybe(&Text), "The operator's reason.");
pub(super) const OVERRIDE_OF_RULE: &[Member] = &[
    member("kind", Word(&["block", "allow"]), "Whether the actor is blocked or allowed."),
    member("expiresIn", SecondsLeft, "Seconds until it ends; null if it lasts until it is removed."),
    REASON_OF,
    member("entry", Maybe(&Text), "The entry for all rules that it comes from; null if it is for the rule alone."),
];
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
            optional("quotaGroup", LABEL, "The rule's quota group, if it has one."),
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
            member("operation", Text, "The rule's operation, as in a section header of a rules file."),
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
pub(super) const EXPLANATION: Shape = Named(
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
        optional(
            "window",
            Word(&["second", "minute", "hour", "day", "week", "month", "year", "7-days", "30-days", "365-days"]),
            "",
        ),
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
            OneOf(&[Text, Length(&List(&Text), 2, u64::MAX)]),
            "A field, or several. Each combination of their values has its own counter.",
        ),
        optional("costField", Text, ""),
        optional(
            "overrun",
            Word(&["refuse", "debt", "count", "annotate"]),
            "The answer to a hit that costs more than is left: denied, allowed and counted below 0, denied and counted, or allowed with \
             a note.",
        ),
        optional("annotateAt", Range(1, 99), "The percentage of the limit beyond which answers have a note."),
        optional("quotaGroup", LABEL, "The group of rules that deny only if all of them are exceeded."),
        optional(
            "share",
            OneOf(&[Word(&["auto"]), Range(1, 1_000_000_000)]),
            "The most credits that a server takes ahead from a counter in Redis, to grant them on its own.",
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
        optional(
            "descriptor",
            Text,
            "The path of a limit in ratelimit's configuration, or an empty text for descriptors without a limit.",
        ),
    ]),
);

pub(super) const RULES: Shape =
    Named("Rules", &Only(&[member("rules", List(&RULE), "The rules in force, in order of precedence.")]));
