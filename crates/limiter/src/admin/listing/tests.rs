use std::time::Duration;

use super::*;
use crate::counters::Page;
use crate::exceptions::{BlockChanges, ExceptionFilter, ExceptionTarget, ExceptionTerms};
use crate::tests::{all_pages, limiter_of, replace_rules, run};

const RULES: &str = "
[ip=* login=*]; creditLimit = 5; resetSeconds = 60; actorField = ip; label = login
[ip=* user=*]; creditLimit = 5; resetSeconds = 60; actorField = ip, user; label = both
[user=*]; creditLimit = 5; resetSeconds = 60; actorField = user; label = users
[default]; creditLimit = 0
";

fn set(limiter: &Limiter, kind: ExceptionKind, rule: &str, actor: &str) {
    let lasts = Some(Duration::from_secs(60));
    let terms = ExceptionTerms { reason: Some("reason"), lasts, ..ExceptionTerms::default() };
    run(limiter.set_exception(ExceptionTarget { kind, rule, actor }, terms, &Scope::EVERYTHING)).unwrap();
}

const OF_IP: ExceptionFilter<'_> = ExceptionFilter { rule: None, actor: None, program: None, field: Some("ip") };

/// Returns the rules and actors of all blocks of addresses, sorted.
fn listed(limiter: &Limiter) -> Vec<String> {
    let pages = all_pages(|cursor| {
        let ExceptionsPage { exceptions, next, .. } =
            run(limiter.exceptions(ExceptionKind::Block, OF_IP, cursor, 2, &Scope::EVERYTHING)).unwrap();
        Page { content: exceptions, next }
    });
    let listed = pages.concat();
    assert!(listed.iter().all(|block| block.reason.as_deref() == Some("reason") && block.ends_ns.is_some()));
    let mut listed: Vec<_> = listed.into_iter().map(|block| format!("{} {}", block.rule, block.actor)).collect();
    listed.sort();
    listed
}

fn sequence(limiter: &Limiter) -> String {
    run(limiter.exceptions(ExceptionKind::Block, OF_IP, None, 1, &Scope::EVERYTHING)).unwrap().sequence
}

fn changes(limiter: &Limiter, since: &str) -> BlockChanges {
    limiter.block_changes(OF_IP, since, 100, &Scope::EVERYTHING).unwrap()
}

#[test]
fn changes_are_those_of_the_field() {
    let limiter = limiter_of(RULES);
    let start = sequence(&limiter);
    for (rule, actor) in [("*", "ip=192.0.2.1"), ("login", "192.0.2.3"), ("*", "user=eve"), ("*", "ip=192.0.2.2")] {
        set(&limiter, ExceptionKind::Block, rule, actor);
    }
    let target = ExceptionTarget { kind: ExceptionKind::Block, rule: "*", actor: "ip=192.0.2.1" };
    run(limiter.remove_exception(target, None, &Scope::EVERYTHING)).unwrap();
    let found = changes(&limiter, &start);
    let set: Vec<_> = found.set.iter().map(|block| &*block.actor).collect();
    let removed: Vec<_> = found.removed.iter().map(|(rule, actor)| format!("{rule} {actor}")).collect();
    // A block that is not of the field may have been before.
    assert_eq!((set, removed), (vec!["ip=192.0.2.2", "192.0.2.3"], vec!["* ip=192.0.2.1".into(), "* user=eve".into()]));
    assert_eq!(changes(&limiter, &found.sequence).sequence, found.sequence);
    assert!(changes(&limiter, "x").is_reset);
}

#[test]
fn blocks_of_the_field_are_listed() {
    use ExceptionKind::Block;
    let limiter = limiter_of(RULES);
    for (rule, actor) in [
        ("*", "ip=192.0.2.1"),
        ("*", "ip=2001:db8::/32"),
        ("*", "ip=localhost"),
        ("*", "user=192.0.2.2"),
        ("*", "client-ip=192.0.2.2"),
        ("login", "192.0.2.3"),
        ("login", "192.0.2.4:443"),
        ("login", "unknown"),
        ("users", "192.0.2.2"),
        ("both", "ip=192.0.2.2 user=ann"),
    ] {
        set(&limiter, Block, rule, actor);
    }
    let expected = ["* ip=192.0.2.1", "* ip=2001:db8::/32", "login 192.0.2.3", "login 192.0.2.4:443"];
    assert_eq!(listed(&limiter), expected);
    // Without its rule, a block is not in force.
    let before = sequence(&limiter);
    replace_rules(&limiter, "[default]; creditLimit = 0");
    assert_eq!(listed(&limiter), ["* ip=192.0.2.1", "* ip=2001:db8::/32"]);
    assert!(changes(&limiter, &before).is_reset);
}

#[test]
fn allowed_networks_are_left_out() {
    use ExceptionKind::{Allow, Block};
    let limiter = limiter_of(RULES);
    let start = sequence(&limiter);
    let all = [
        ("*", "ip=10.0.0.0/8"),
        ("*", "ip=10.1.0.0/16"),
        ("*", "ip=10.1.2.3"),
        ("login", "10.1.2.4"),
        ("login", "192.0.2.1"),
        ("login", "192.0.2.2"),
    ];
    for (rule, actor) in all {
        set(&limiter, Block, rule, actor);
    }
    assert_eq!(listed(&limiter).len(), all.len());
    let found = changes(&limiter, &start);
    assert_eq!((found.set.len(), found.removed.len(), found.is_reset), (all.len(), 0, false));
    set(&limiter, Allow, "*", "ip=10.1.0.0/16");
    assert!(changes(&limiter, &found.sequence).is_reset, "many blocks may have changed");
    // An allow of one rule says nothing about the others.
    set(&limiter, Allow, "login", "192.0.2.1");
    set(&limiter, Allow, "users", "192.0.2.2");
    set(&limiter, Allow, "*", "user=192.0.2.2");
    assert_eq!(listed(&limiter), ["* ip=10.0.0.0/8", "login 192.0.2.2"]);
    let target = ExceptionTarget { kind: Allow, rule: "*", actor: "ip=10.1.0.0/16" };
    run(limiter.remove_exception(target, None, &Scope::EVERYTHING)).unwrap();
    assert_eq!(listed(&limiter).len(), all.len() - 1);
}

/// A client chose the text of an actor. Only an address, or a network of the rule's own lengths, is a decision about a network.
#[test]
fn texts_that_look_like_networks_and_blocks_by_canaries_are_left_out() {
    let more = "
[ip=* net=*]; creditLimit = 5; resetSeconds = 60; actorField = ip; actorPrefix = ip: 24, 56; label = nets
[ip=*]; creditLimit = 5; resetSeconds = 60; actorField = ip; matchPolicy = canary; label = trial
";
    let limiter = limiter_of(&RULES.replace("[default]", &format!("{more}[default]")));
    for (rule, actor) in [
        ("login", "[192.0.2.1]:80"),
        ("login", "192.0.2.2:80"),
        ("nets", "198.51.100.0/24"),
        ("nets", "2001:db8::/56"),
        ("nets", "somebody"),
        ("trial", "192.0.2.9"),
    ] {
        set(&limiter, ExceptionKind::Block, rule, actor);
    }
    assert_eq!(listed(&limiter), ["login 192.0.2.2:80", "nets 198.51.100.0/24", "nets 2001:db8::/56"]);
}
