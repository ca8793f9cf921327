//! Operators' requests within a scope.

use super::*;
use crate::counters::{CountersOf, RuleName};
use crate::exceptions::{ExceptionFilter, ExceptionKind, ExceptionsPage};

const UPLOADS: &[&str] = &["upload-*"];

fn all(rule: &str) -> CountersOf<'_> {
    CountersOf { rule: RuleName::Name(rule), actor: None, cursor: None, count: 100 }
}

fn actors(limiter: &Limiter, of: CountersOf<'_>, scope: &Scope) -> Result<Vec<String>, String> {
    let page = run(limiter.counters(of, scope)).map_err(|error| error.to_string())?;
    Ok(page.content.into_iter().map(|counter| counter.actor).collect())
}

fn forgotten(limiter: &Limiter, of: CountersOf<'_>, scope: &Scope) -> Result<u64, String> {
    run(limiter.forget_counters(of, scope)).map(|page| page.content).map_err(|error| error.to_string())
}

/// Returns a limiter with a counter of each rule for two users.
fn used() -> Limiter {
    let limiter = limiter_of(RULES);
    for user in ["ann", "bob"] {
        for rule in ["api=upload", "api=search", "plain=x", "other=x"] {
            hit(&limiter, &format!("{rule} user={user}")).unwrap();
        }
    }
    limiter
}

#[test]
fn rules_are_named_by_operations_in_scope() {
    let limiter = used();
    for (pairs, expected) in [("plain=*", false), ("no=such", false), ("api=upload user=* tenant=*", true)] {
        let operation = operation(pairs);
        let of = CountersOf { rule: RuleName::Operation(&operation), ..all("") };
        assert_eq!(actors(&limiter, of, &scope(UPLOADS)).is_ok(), expected, "{pairs}");
        assert!(actors(&limiter, of, &scope(&["*"])).is_ok() || pairs == "no=such");
    }
    let typo = actors(&limiter, all("upload-houl"), &scope(UPLOADS));
    assert_eq!(typo, Err("no rule is called 'upload-houl'".to_owned()), "the scope covers the name");
}

#[test]
fn scope_of_an_actor_has_its_counters_alone() {
    let limiter = used();
    let ann = scope_of(&[("user", "ann")]);
    assert_eq!(actors(&limiter, all("search"), &ann), Ok(vec!["ann".into()]));
    let bob = CountersOf { actor: Some("bob"), ..all("search") };
    assert_eq!(actors(&limiter, bob, &ann), Err(REFUSED.to_owned()));
    assert_eq!(forgotten(&limiter, bob, &ann), Err(REFUSED.to_owned()));
    assert_eq!(actors(&limiter, all("upload-tenant"), &ann), Err(REFUSED.to_owned()), "other fields");
    assert_eq!(actors(&limiter, all("rule-7"), &ann), Err(REFUSED.to_owned()), "no fields");
    assert_eq!(actors(&limiter, all("no-such"), &ann), Err(REFUSED.to_owned()));
    assert_eq!(forgotten(&limiter, all("search"), &ann), Ok(1));
    assert_eq!(actors(&limiter, all("search"), &scope(&["*"])), Ok(vec!["bob".into()]));
}

#[test]
fn limits_in_scope_are_changed() {
    let limiter = limiter_of(RULES);
    for (scope, rule, actor) in
        [(scope(UPLOADS), "upload-hour", "bob"), (scope_of(&[("user", "ann")]), "search", "ann")]
    {
        let of = ExceptionTarget::limit(rule, actor);
        run(limiter.set_exception(of, with_credits(7), &scope)).unwrap();
        assert_eq!(limiter.exception_of(of, &scope).unwrap().unwrap().credits, Some(7));
        assert!(run(limiter.remove_exception(of, None, &scope)).unwrap());
    }
}

/// Returns the labels and actors on all pages, one limit a page, with all cursors as text.
fn listed_limits(limiter: &Limiter, scope: &Scope) -> (Vec<String>, String) {
    let of = ExceptionFilter::default();
    let pages = all_pages(|cursor| {
        let ExceptionsPage { exceptions, next, .. } =
            run(limiter.exceptions(ExceptionKind::Limit, of, cursor, 1, scope)).unwrap();
        Page { content: (exceptions, cursor.unwrap_or_default().to_owned()), next }
    });
    let (found, cursors): (Vec<_>, Vec<_>) = pages.into_iter().unzip();
    let mut found: Vec<_> = found.concat().iter().map(|limit| format!("{} {}", limit.rule, limit.actor)).collect();
    found.sort();
    (found, cursors.concat())
}

#[test]
fn listings_of_limits_and_their_cursors_have_no_limits_out_of_scope() {
    let rules = RULES.replace("label = search", "label = gone");
    let limiter = limiter_of(&rules);
    let mut every = Vec::new();
    for rule in ["upload-hour", "upload-minute", "gone"] {
        for actor in ["ann", "bob", "secret"] {
            set_limit(&limiter, rule, actor, 7);
            every.push(format!("{rule} {actor}"));
        }
    }
    every.sort();
    replace_rules(&limiter, RULES);
    assert_eq!(listed_limits(&limiter, &Scope::EVERYTHING).0, every);
    assert_eq!(listed_limits(&limiter, &scope(&["*"])).0, every);
    let expected = ["upload-hour ann", "upload-hour bob", "upload-hour secret"];
    let (found, cursors) = listed_limits(&limiter, &scope(&["upload-hour"]));
    assert!(found == expected && !cursors.contains("gone") && !cursors.contains("minute"), "{found:?} {cursors}");
    assert_eq!(listed_limits(&limiter, &scope(&["g*"])).0, ["gone ann", "gone bob", "gone secret"]);
    let (found, cursors) = listed_limits(&limiter, &scope_of(&[("user", "ann")]));
    assert_eq!(found, ["upload-hour ann", "upload-minute ann"], "a limit without a rule has no fields");
    assert!(!cursors.contains("secret") && !cursors.contains("bob"));
    for (rule, is_covered) in [("gone", true), ("upload-hour", false), ("nothing", false)] {
        let of = ExceptionFilter { rule: Some(rule), ..ExceptionFilter::default() };
        assert_eq!(
            run(limiter.exceptions(ExceptionKind::Limit, of, None, 9, &scope(&["g*"]))).is_ok(),
            is_covered,
            "{rule}"
        );
    }
    assert!(run(limiter.remove_exception(ExceptionTarget::limit("gone", "bob"), None, &scope(&["g*"]))).unwrap());
}

#[test]
fn explanation_has_the_rules_in_scope_and_is_refused_if_another_one_matches() {
    let limiter = limiter_of(RULES);
    let names = |pairs: &str, scope: &Scope| {
        let explanation = limiter.explain(&operation(pairs), scope).map_err(|refusal| refusal.to_string())?;
        Ok::<_, String>(explanation.rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>().join(" "))
    };
    let everything = "upload-hour upload-tenant upload-minute trial search";
    assert_eq!(names("api=search user=ann", &scope(&["*"])).unwrap(), everything);
    assert_eq!(names("api=search user=ann", &scope(&["*r*"])), Ok("upload-hour trial search".into()));
    assert_eq!(names("api=search user=ann", &scope(&["search"])), Err(REFUSED.to_owned()));
    let ann = scope_of(&[("user", "ann")]);
    assert_eq!(names("api=search user=ann", &ann), Ok("upload-hour upload-minute trial search".into()));
    assert_eq!(names("api=search user=bob", &ann), Err(REFUSED.to_owned()));
    assert_eq!(names("plain=x", &scope(UPLOADS)), Err(REFUSED.to_owned()));
}
