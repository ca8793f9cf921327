//! Blocks and allows of single actors.

use std::time::Duration;

use super::*;
use crate::exceptions::ExceptionFilter;
use crate::exceptions::ExceptionKind::{Allow, Block};
use crate::inspection::RuleStatus;
use crate::register::owner::ExceptionOwner;
use crate::store::{Effect, Exception, ExceptionChange, Repetition};
use divvy_core::rules::{FinalSlash, Spelling};

const API: &str = "
[api=* ip=*]; creditLimit = 5; resetSeconds = 3600; actorField = ip; matchPolicy = and; label = api
[api=* user=*]; creditLimit = 50; resetSeconds = 3600; actorField = user; label = user
[free=yes]; creditLimit = 9; resetSeconds = 0; label = free
[default]; creditLimit = 0
";

/// Returns the terms of a block or an allow of this length.
fn lasting(seconds: u64) -> ExceptionTerms<'static> {
    ExceptionTerms { lasts: Some(Duration::from_secs(seconds)), ..ExceptionTerms::default() }
}

/// Tries to set a block without an end. Returns the text of the error.
fn try_block(limiter: &Limiter, rule: &str, actor: &str, reason: Option<&str>) -> Result<(), String> {
    let of = ExceptionTarget { kind: Block, rule, actor };
    let terms = ExceptionTerms { reason, ..ExceptionTerms::default() };
    run(limiter.set_exception(of, terms, &Scope::EVERYTHING)).map_err(|error| error.to_string())
}

/// Returns whether a hit is allowed, the credits left at the rule that answers, and the reason of the block, if there is
/// one.
fn answer(limiter: &Limiter, pairs: &str) -> (bool, u64, Option<String>) {
    let requests = apply(limiter, &[(pairs, Intent::Hit)]);
    let standing = requests.report().standing(0).unwrap();
    let reason = standing.block.and_then(|block| block.reason.as_deref().map(str::to_owned));
    (standing.verdict.allowed, standing.verdict.credit, reason)
}

/// An allow wins over a block, a block over the actor's own limit, and the limit over the rule. Of two overrides of one
/// kind, the rule's own wins.
#[test]
fn precedence_holds_for_every_combination() {
    const PAIRS: &str = "api=a user=ann";
    for combination in 0..1_u32 << 5 {
        let has = |bit: u32| combination & (1 << bit) != 0;
        let limiter = limiter_of(API);
        let entries =
            [(Allow, "user", "ann"), (Allow, "*", "user=ann"), (Block, "user", "ann"), (Block, "*", "user=ann")];
        for (_, (kind, rule, actor)) in (0..).zip(entries).filter(|(bit, _)| has(*bit)) {
            set(&limiter, kind, rule, actor);
        }
        if has(4) {
            set_limit(&limiter, "user", "ann", 1);
        }
        let (is_allowed, block) = (has(0) || has(1), (2..4).find(|bit| has(*bit)));
        let reason =
            block.filter(|_| !is_allowed).map(|bit| if bit == 2 { "block user" } else { "block *" }.to_owned());
        let limit = if has(4) { 1 } else { 50 };
        let expected = match reason {
            Some(reason) => (false, 0, Some(reason)),
            None => (true, limit - 1, None),
        };
        assert_eq!(answer(&limiter, PAIRS), expected, "{combination:b}");
        // An allowed actor is counted up to its limit, and never below zero.
        let used = last(&limiter, &[(PAIRS, Intent::Hit), (PAIRS, Intent::Hit), (PAIRS, Intent::Peek)]).unwrap();
        let after = if limit == 1 { (is_allowed, 0) } else { (true, limit - 3) };
        assert_eq!(used, if expected.0 { after } else { (false, 0) }, "{combination:b}");
        assert_eq!(answer(&limiter, "api=a user=bob"), (true, 49, None), "no other actor is affected");
    }
}

#[test]
fn blocked_actor_is_denied_and_its_counters_do_not_change() {
    let limiter = limiter_of(API);
    let left = |limiter: &Limiter| peek(limiter, "api=a ip=1.2.3.4 user=ann").unwrap();
    assert_eq!(answer(&limiter, "api=a ip=1.2.3.4 user=ann"), (true, 4, None));
    set(&limiter, Block, "user", "ann");
    for _ in 0..3 {
        assert_eq!(answer(&limiter, "api=a ip=1.2.3.4 user=ann"), (false, 0, Some("block user".to_owned())));
    }
    assert_eq!(answer(&limiter, "api=a ip=1.2.3.4 user=bob"), (true, 3, None), "the stack took nothing before");
    // Usage that has already happened counts.
    let charged = apply(&limiter, &[("api=a user=ann", Intent::Charge)]);
    assert!(charged.report().verdict(0).is_ok());
    remove(&limiter, Block, "user", "ann");
    assert_eq!(left(&limiter), (true, 3));
    assert_eq!(answer(&limiter, "api=a user=ann"), (true, 47, None));
    set(&limiter, Block, "*", "ip=1.2.3.0/24");
    assert!(!answer(&limiter, "free=yes ip=1.2.3.4").0, "rules without a counter deny, too");
    assert_eq!(answer(&limiter, "free=yes ip=1.2.4.4"), (true, 9, None));
    assert_eq!(left(&limiter), (false, 0));
}

#[test]
fn entry_of_a_rule_concerns_that_rule_only() {
    let limiter = limiter_of(API);
    set(&limiter, Allow, "user", "ann");
    for left in (0..5).rev() {
        assert_eq!(answer(&limiter, "api=a ip=1.2.3.4 user=ann"), (true, left, None));
    }
    assert_eq!(answer(&limiter, "api=a ip=1.2.3.4 user=ann"), (false, 0, None), "the other rule denies");
    set(&limiter, Allow, "*", "ip=1.2.3.4");
    assert!(answer(&limiter, "api=a ip=1.2.3.4 user=ann").0, "both rules allow");
    set(&limiter, Block, "user", "eve");
    assert!(answer(&limiter, "api=a ip=1.2.3.4 user=eve").0, "an allow of all rules wins over a block of one");
    assert!(hit(&limiter, "nothing=here").is_ok_and(|(allowed, _)| !allowed));
    set(&limiter, Allow, "*", "nothing=here");
    assert_eq!(hit(&limiter, "nothing=here"), Ok((true, 0)), "even at a rule that never allows");
}

#[test]
fn invalid_entries_are_refused() {
    let limiter = limiter_of(API);
    for (rule, actor, reason, text) in [
        ("nobody", "a", None, "no rule is called 'nobody'"),
        ("free", "a", None, "counts nothing"),
        ("*", "ann", None, "field=value or field=network"),
        ("*", "=ann", None, "field=value or field=network"),
        ("*", "a b=ann", None, "field=value or field=network"),
        ("*", "ip=10.0.0.1/8", None, "write 10.0.0.0/8"),
        (
            "*",
            "ip=10.0.0/8",
            None,
            "10.0.0/8 is not a network in its usual form: it is neither an address nor a network",
        ),
        ("*", "ip=203.0.113.300", None, "neither an address nor a network; write an address"),
        ("*", "ip=10.0.0.1-10.0.0.9", None, "neither an address nor a network"),
        ("*", "ip=10.0.0.*", None, "have no patterns"),
        ("user", "ann", Some("a\nb"), "the reason has more than 256 bytes, or control characters"),
    ] {
        let error = try_block(&limiter, rule, actor, reason).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    assert!(try_block(&limiter, "user", "ann", Some(&"x".repeat(257))).is_err());
}

#[test]
fn fields_of_entries_for_all_rules_are_bounded_and_unused_ones_are_forgotten() {
    let limiter = limiter_of(API);
    let field = |number: usize| format!("field{number}=x");
    let try_set = |number: usize| try_block(&limiter, "*", &field(number), None);
    for number in 0..1_000 {
        let of = ExceptionTarget { kind: Block, rule: "*", actor: &field(number) };
        assert!(!run(limiter.remove_exception(of, None, &Scope::EVERYTHING)).unwrap(), "there is none to remove");
    }
    assert_eq!(limiter.exceptions.fields().len(), 0);
    assert!((0..32).all(|number| try_set(number).is_ok()));
    assert!(try_set(32).unwrap_err().contains("about 32 fields"));
    assert_eq!(try_set(5), Ok(()), "a known field");
    remove(&limiter, Block, "*", "field7=x");
    assert_eq!(try_set(32), Ok(()));
}

#[test]
fn explanation_names_the_entry_that_decides() {
    let limiter = limiter_of(API);
    set(&limiter, Block, "user", "ann");
    set(&limiter, Allow, "*", "ip=10.0.0.0/8");
    let explained = |pairs: &str| limiter.explain(&operation(pairs), &Scope::EVERYTHING).unwrap().to_string();
    let blocked = explained("api=a user=ann");
    assert!(blocked.contains("; this actor is blocked: block user"), "{blocked}");
    let allowed = explained("api=a user=ann ip=10.1.2.3");
    assert_eq!(
        allowed.matches("; this actor is always allowed under all rules, as ip=10.0.0.0/8: allow *").count(),
        2,
        "{allowed}"
    );
    assert!(!explained("api=a user=bob").contains("this actor is"));
}

/// Returns what the status says about the actor's overrides: for each rule, the kind, the end, the reason and the entry.
fn status(limiter: &Limiter, actor: &str) -> Vec<String> {
    let page = run(limiter.status(&operation(actor), None, 100, &Scope::EVERYTHING)).unwrap();
    let shown = |status: RuleStatus| {
        let shown = status.actor_override.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
        format!("{} {}/{}: {shown}", status.rule, status.verdict.credit, status.limit)
    };
    page.content.into_iter().map(shown).collect()
}

#[test]
fn status_shows_the_entry_that_decides() {
    let limiter = limiter_of(API);
    assert_eq!(status(&limiter, "user=ann"), [""; 0]);
    set(&limiter, Block, "*", "user=ann");
    assert_eq!(status(&limiter, "user=ann"), ["user 50/50: blocked under all rules, as user=ann: block *"]);
    set(&limiter, Block, "user", "ann");
    assert_eq!(status(&limiter, "user=ann"), ["user 50/50: blocked: block user"]);
    assert!(answer(&limiter, "api=a user=bob").0);
    assert_eq!(status(&limiter, "user=bob"), ["user 49/50: nothing"]);
    let of = ExceptionTarget { kind: Allow, rule: "user", actor: "ann" };
    run(limiter.set_exception(of, lasting(60), &Scope::EVERYTHING)).unwrap();
    assert_eq!(status(&limiter, "user=ann"), ["user 50/50: always allowed for another 60 s"]);
    remove(&limiter, Allow, "user", "ann");
    remove(&limiter, Block, "user", "ann");
    remove(&limiter, Block, "*", "user=ann");
    assert_eq!(status(&limiter, "user=ann"), [""; 0]);
}

#[test]
fn status_leaves_out_an_override_that_has_ended() {
    let limiter = limiter_of(API);
    for (kind, ends) in [(Block, 5), (Allow, 9)] {
        let owner = ExceptionOwner::of_rule(kind, "user").to_string();
        let setter = crate::store::Setter::Rule(Repetition { number: 1, remembered_seconds: 10_000_000_000 });
        let effect = Effect::Override { reason: None, setter };
        let value = Some(Exception { effect, ends: Timestamp::from_secs(ends) });
        let actor = "ann".to_owned();
        limiter.exceptions.memory.apply(&ExceptionChange { owner, actor, value }, 0);
    }
    assert_eq!(status(&limiter, "user=ann"), [""; 0]);
}

const WAYS: &str = "
[api=plain ip=*]; creditLimit = 50; resetSeconds = 3600; actorField = ip; label = plain
[api=debt ip=*]; creditLimit = 50; resetSeconds = 3600; actorField = ip; overrun = debt; costField = tokens
label = debt
[api=both ip=*]; creditLimit = 50; resetSeconds = 3600; actorField = ip; matchPolicy = and; label = requests
[api=both ip=*]; creditLimit = 60; resetSeconds = 3600; actorField = ip; overrun = debt; costField = tokens
label = tokens
[api=leases ip=*]; creditLimit = 50; resetSeconds = 60; algorithm = concurrency; actorField = ip; holdField = id
label = leases
[api=free]; limit = none; label = free
[default]; creditLimit = 0
";

/// Returns whether the request is allowed: by the rules, under a limit of its own, or under one that allows nothing.
fn ways_to_hit(limiter: &Limiter, api: &str) -> Vec<(String, bool)> {
    let operation = operation(&format!("api={api} ip=1.2.3.4 id=r1 tokens=2"));
    let limit = Limit::FixedWindow(FixedWindow::new(50, NANOS_PER_SECOND).unwrap());
    let ask = |name: &str, is_own: bool, add: &dyn Fn(&mut PlanBuilder)| {
        let applied = crate::tests::ask(limiter, add);
        let report = applied.report();
        let allowed = if is_own { report.outcome(0).unwrap().allowed } else { report.verdict(0).unwrap().allowed };
        (format!("{name} {api}"), allowed)
    };
    let intents = [Intent::Peek, Intent::Enter, Intent::EnterOrCharge];
    let mut ways: Vec<_> = intents
        .map(|intent| ask(&format!("{intent:?}"), false, &|builder| builder.add(&operation, intent, Some(2))))
        .into();
    if api != "leases" {
        ways.push(ask("hit", false, &|builder| builder.add(&operation, Intent::Hit, Some(2))));
    }
    ways.push(ask("reserve", false, &|builder| builder.add_clamped_reservation(&operation, 2, Some(60))));
    ways.push(ask("together", false, &|builder| {
        add_together(builder, Together::AsOne, |builder| builder.add(&operation, Intent::EnterOrCharge, Some(2)))
            .unwrap();
    }));
    ways.push(ask("own limit", true, &|builder| builder.add_limited(&operation, limit, Intent::Enter, 2)));
    ways.push(ask("own limit, charged", true, &|builder| {
        builder.add_limited(&operation, limit, Intent::EnterOrCharge, 2);
    }));
    ways
}

#[test]
fn no_way_to_hit_leads_past_any_form_of_block() {
    for api in ["plain", "debt", "both", "leases", "free"] {
        let own = if api == "both" { "requests" } else { api };
        let forms =
            [("*", "ip=1.2.3.4"), ("*", "ip=1.2.3.0/24"), ("*", "ip=0.0.0.0/0"), ("*", "id=r1"), (own, "1.2.3.4")];
        for (rule, actor) in forms {
            if api == "free" && rule == own {
                continue;
            }
            let limiter = limiter_of(WAYS);
            assert!(ways_to_hit(&limiter, api).iter().all(|(_, allowed)| *allowed), "{:?}", ways_to_hit(&limiter, api));
            set(&limiter, Block, rule, actor);
            for (way, allowed) in ways_to_hit(&limiter, api) {
                assert!(!allowed, "{way}, blocked as {rule} {actor}");
            }
            set(&limiter, Allow, rule, actor);
            for (way, allowed) in ways_to_hit(&limiter, api) {
                assert!(allowed, "{way}, allowed as {rule} {actor}");
            }
        }
    }
}

#[test]
fn charge_of_a_blocked_actor_counts_and_is_denied() {
    let limiter = limiter_of(WAYS);
    set(&limiter, Block, "*", "ip=1.2.3.4");
    let asked = [("api=debt ip=1.2.3.4 tokens=7", Intent::EnterOrCharge)];
    assert_eq!(last(&limiter, &asked), Ok((false, 0)));
    remove(&limiter, Block, "*", "ip=1.2.3.4");
    assert_eq!(peek(&limiter, "api=debt ip=1.2.3.4"), Ok((true, 43)));
    set(&limiter, Block, "tokens", "1.2.3.4");
    assert_eq!(last(&limiter, &[("api=both ip=1.2.3.4 tokens=7", Intent::EnterOrCharge)]), Ok((false, 0)));
    remove(&limiter, Block, "tokens", "1.2.3.4");
    let left = apply(&limiter, &[("api=both ip=1.2.3.4", Intent::Peek)]);
    let standings = left.report().standings(0).unwrap();
    assert_eq!(standings.map(|standing| standing.verdict.credit).collect::<Vec<_>>(), [50, 53]);
}

/// Two hits on one counter, one of an allowed actor, in an atomic group: both costs count.
#[test]
fn cost_of_an_allowed_actor_counts_in_a_group() {
    let rules = "[api=a ip=*]\ncreditLimit = 10\nper = 1h\ncounter = shared\nlabel = one\n\n\
        [api=b ip=*]\ncreditLimit = 10\nper = 1h\ncounter = shared\nlabel = other\n\n[default]\ncreditLimit = 0\n";
    for order in [["api=a ip=1", "api=b ip=2"], ["api=b ip=2", "api=a ip=1"]] {
        let limiter = limiter_of(rules);
        set(&limiter, Allow, "*", "ip=1");
        ask_together(&limiter, Together::Summed, |builder| {
            order.iter().for_each(|pairs| builder.add(&operation(pairs), Intent::Hit, Some(3)));
        });
        assert_eq!(peek(&limiter, "api=b ip=2"), Ok((true, 4)), "{order:?}");
    }
}

/// The limit of an allowed actor denies no hit of its group.
#[test]
fn limit_of_an_allowed_actor_does_not_decide_in_a_group() {
    let plan = |name: &str, credits: u64| {
        format!(
            "[plan={name} c=*]\ncreditLimit = {credits}\nper = 1h\nactorField = c\ncounter = usage\nlabel = {name}\n\n"
        )
    };
    let rules = plan("free", 10) + &plan("pro", 20) + "[default]\ncreditLimit = 0\n";
    for order in [[("plan=free c=x", 3), ("plan=pro c=x", 4)], [("plan=pro c=x", 4), ("plan=free c=x", 3)]] {
        let limiter = limiter_of(&rules);
        set(&limiter, Allow, "free", "x");
        let take_together = |hits: [(&str, u64); 2]| {
            let applied = ask_together(&limiter, Together::Summed, |builder| {
                hits.iter().for_each(|(pairs, cost)| builder.add(&operation(pairs), Intent::Hit, Some(*cost)));
            });
            answers(&applied).into_iter().map(|(allowed, _)| allowed).collect::<Vec<_>>()
        };
        assert_eq!(take_together([("plan=pro c=x", 5), ("plan=pro c=x", 4)]), [true; 2]);
        assert_eq!(take_together(order), [true; 2], "{order:?}");
        assert_eq!(peek(&limiter, "plan=pro c=x"), Ok((true, 4)));
        assert_eq!(take_together(order), [false; 2], "7 credits are more than the 4 that are left: {order:?}");
    }
}

/// Rules whose values checks normalize.
const CHECKED: &str = "
[path=/login ip=*]; creditLimit = 5; resetSeconds = 60; actorField = ip; label = login
[host=* path=/h]; creditLimit = 5; resetSeconds = 60; actorField = host; label = byhost
[path=//p/*]; creditLimit = 5; resetSeconds = 60; actorField = path; label = bypath
[path=/two ip=* host=*]; creditLimit = 5; resetSeconds = 60; actorField = ip, host; label = two
[n=*]; creditLimit = 5; resetSeconds = 60; actorField = n; networks = n: 10.0.0.0/8; label = net
[lst=*]; creditLimit = 5; resetSeconds = 60; actorField = lst; list = lst: l.txt; label = lst
[pre=*]; creditLimit = 5; resetSeconds = 60; actorField = pre; actorPrefix = pre: 24, 56
networks = pre: 10.0.0.0/8; label = pre
[user=*]; creditLimit = 5; resetSeconds = 60; actorField = user, ip; label = user
[default]; creditLimit = 0
";

fn checked() -> Limiter {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.ini");
    std::fs::write(&path, CHECKED.replace("; ", "\n")).unwrap();
    std::fs::write(dir.path().join("l.txt"), "alice\n10.0.0.0/8\n").unwrap();
    let spellings = [
        ("method", Spelling::Method),
        ("path", Spelling::Path(FinalSlash::Keep)),
        ("host", Spelling::Host),
        ("ip", Spelling::Address),
    ];
    let spellings = spellings.into_iter().map(|(key, spelling)| (key.to_owned(), spelling)).collect();
    let serving = config::Serving { spellings, ..config::Serving::default() };
    let rules = config::load_for(&path, &serving).unwrap().rules;
    limiter_on(Backend::Memory(MemoryStore::default()), rules)
}

#[test]
fn exceptions_get_the_spelling_of_checks() {
    let limiter = checked();
    let all = Scope::EVERYTHING;
    for (rule, actor, listed) in [
        ("login", "2001:DB8::1", "2001:db8::1"),
        ("login", "192.0.2.1:80", "192.0.2.1"),
        ("login", "::ffff:192.0.2.1", "192.0.2.1"),
        ("login", "unknown", "unknown"),
        ("byhost", "SHOP.example", "shop.example"),
        ("byhost", "shop.example:443", "shop.example"),
        ("bypath", "//p/a", "/p/a"),
        ("bypath", "/%70/a", "/p/a"),
        ("two", "host=SHOP.example ip=2001:DB8::1", "ip=2001:db8::1 host=shop.example"),
        ("net", "10.0.0.1", "10.0.0.1"),
        ("lst", "alice", "alice"),
        ("lst", "10.1.1.1", "10.1.1.1"),
        ("pre", "10.1.2.3", "10.1.2.0/24"),
        ("user", "user=ann ip=", "user=ann ip="),
        ("*", "host=SHOP.example", "host=shop.example"),
        ("*", "path=//login", "path=/login"),
        ("*", "path=/login#a", "path=/login"),
        ("*", "method=get", "method=GET"),
        ("*", "ip=2001:DB8::/32", "ip=2001:db8::/32"),
        ("*", "host=10.0.0.0/8", "host=10.0.0.0/8"),
        ("*", "user=//a", "user=//a"),
    ] {
        let of = ExceptionTarget { kind: Block, rule, actor };
        set(&limiter, Block, rule, actor);
        let page = run(limiter.exceptions(Block, ExceptionFilter::default(), None, 9, &all)).unwrap();
        let entries: Vec<_> =
            page.exceptions.iter().map(|entry| (&*entry.rule, &*entry.actor, entry.is_orphan)).collect();
        assert_eq!(entries, [(rule, listed, false)], "{actor}");
        assert_eq!(limiter.exception_of(of, &all).unwrap().unwrap().actor, listed, "{actor}");
        remove(&limiter, Block, rule, actor);
        if rule != "*" {
            set_limit(&limiter, rule, actor, 3);
            let limit = limiter.exception_of(ExceptionTarget::limit(rule, actor), &all).unwrap();
            assert_eq!(limit.unwrap().actor, listed, "{actor}");
            remove(&limiter, ExceptionKind::Limit, rule, actor);
        }
    }
}

#[test]
fn exception_that_no_check_and_no_hit_has_is_an_error() {
    let limiter = checked();
    let all = Scope::EVERYTHING;
    for (rule, actor) in [
        ("login", "192.0.2.1/32"),
        ("login", "192.0.2.7x"),
        ("login", "192.0.2"),
        ("login", ""),
        ("login", "*"),
        ("byhost", "*"),
        ("byhost", "https://shop.example"),
        ("byhost", "shop.example:8443"),
        ("byhost", "192.0.2.0/24"),
        ("bypath", "/q"),
        ("bypath", "/p/../q"),
        ("bypath", "/p/?x=1"),
        ("two", "ip=192.0.2.0/24 host=shop.example"),
        ("two", "ip=192.0.2.1 host=a/b"),
        ("net", "foo"),
        ("net", "010.0.0.1"),
        ("net", "11.0.0.1"),
        ("net", "10.0.0.1/32"),
        ("net", ""),
        ("lst", "bob"),
        ("lst", "11.0.0.1"),
        ("pre", "11.0.0.1"),
        ("pre", "foo"),
        ("*", "path=/login?x=1"),
        ("*", "path=https://shop.example/login"),
        ("*", "host=https://shop.example"),
        ("*", "host="),
        ("*", "method=GET,POST"),
        ("*", "method=10.0.0.0/8"),
        ("*", "ip="),
        ("*", "ip=192.0.2.1, 10.0.0.1"),
        ("*", "ip=192.0.2"),
        ("*", "ip=10.0.0.0/255.0.0.0"),
    ] {
        for kind in [Block, Allow] {
            let of = ExceptionTarget { kind, rule, actor };
            let set = run(limiter.set_exception(of, ExceptionTerms::default(), &all));
            assert!(set.is_err(), "{kind:?} {rule} {actor}");
        }
        let limit = ExceptionTarget::limit(rule, actor);
        assert!(rule == "*" || run(limiter.set_exception(limit, with_credits(3), &all)).is_err(), "{rule} {actor}");
    }
    let scope = Scope::new(["user"], []);
    let of = ExceptionTarget { kind: Block, rule: "*", actor: "ip=192.0.2" };
    let refused = run(limiter.set_exception(of, ExceptionTerms::default(), &scope)).unwrap_err();
    assert_eq!(refused.to_string(), Refusal::OutOfScope.to_string());
}
