//! Rules, users with scopes, and counters for the tests of scopes.

use super::{Guarded, line};

/// Rules whose labels begin with `a-` are in scope of most users here. Two rules of a stack, and a canary and the rule
/// below it, are only partly in scope.
pub const RULES: &str = "
[api=a user=*] creditLimit=1000 resetSeconds=86400 actorField=user label=a-user
[api=b user=*] creditLimit=1000 resetSeconds=86400 actorField=user label=b-user
[api=both user=*] creditLimit=1000 resetSeconds=86400 actorField=user matchPolicy=and label=a-first
[api=both user=*] creditLimit=2000 resetSeconds=86400 actorField=user label=b-second
[api=watched user=*] creditLimit=2000 resetSeconds=86400 actorField=user matchPolicy=canary label=c-canary
[api=watched user=*] creditLimit=1000 resetSeconds=86400 actorField=user label=a-watched
[api=tenants tenant=*] creditLimit=1000 resetSeconds=86400 actorField=tenant label=b-tenant
[api=plain user=*] creditLimit=1000 resetSeconds=86400 actorField=user
[default] creditLimit=1000 resetSeconds=86400
";

/// Labels of the rules with counters of actors.
pub const LABELS: [&str; 7] = ["a-user", "b-user", "a-first", "b-second", "c-canary", "a-watched", "b-tenant"];

/// The text of each refusal.
pub const REFUSED: &str = "this is outside the scope of your user";

/// Users, who may send every request about what is in their scope.
pub fn users() -> String {
    [
        ("all", "~*"),
        ("labels", "~label:*"),
        ("a", "~label:a-*"),
        ("ann", "~actor:user=ann"),
        ("nothing", ""),
        ("default", "~label:a-*"),
    ]
    .map(|(name, scope)| line(name, &format!("+@all {scope}")))
    .concat()
}

/// Checks take these pairs from their query.
const CHECK: &str = "+api=query:api user=query:user tenant=query:tenant other=query:other";

pub fn guarded(file: &str) -> Guarded {
    Guarded::with_rules(RULES, file, &["--open", "none", "--check-operation", CHECK])
}

/// Returns the counters and the limits of actors, as an unrestricted user sees them. Times are left out.
pub fn state(guarded: &Guarded) -> Vec<String> {
    let get = |path: &str| guarded.http("GET", path, Some("all")).json();
    let mut lines = Vec::new();
    for label in LABELS.into_iter().chain(["default"]) {
        let listed = get(&format!("/v1/counters?rule={label}&count=1000"));
        let counters = listed["counters"].as_array().unwrap_or_else(|| panic!("{label}: {listed}"));
        lines.extend(counters.iter().map(|counter| format!("{label} {} {}", counter["actor"], counter["balance"])));
    }
    let limits = get("/v1/limits?count=1000");
    lines.extend(
        limits["limits"].as_array().unwrap().iter().map(|limit| format!("{} {}", limit["actor"], limit["credits"])),
    );
    lines.sort();
    lines.push(guarded.resp("all").command("DBSIZE"));
    lines
}

/// Names of an actor with counters and a limit, and of one that no request has named yet.
pub const KNOWN: &str = "bob";
pub const UNKNOWN: &str = "eve";

/// Reservation ids: of an open reservation under `a-first` and `b-second`, and of one under `b-user` that was released.
pub struct Ids {
    pub open: String,
    pub released: String,
}

/// Gives [`KNOWN`] counters, a limit and a reservation.
pub fn fill(guarded: &Guarded) -> Ids {
    let mut all = guarded.resp("all");
    for request in [
        "DIVVY.HIT api=a user=bob",
        "DIVVY.HIT api=b user=bob",
        "DIVVY.HIT api=both user=bob",
        "DIVVY.HIT api=watched user=bob",
        "DIVVY.HIT api=tenants tenant=bob",
        "DIVVY.HIT api=a user=ann",
        "DIVVY.HIT api=b user=ann",
    ] {
        assert!(all.command(request).starts_with("[1 "), "{request}");
    }
    for limit in ["a-user bob", "b-user bob", "b-user ann"] {
        assert_eq!(all.command(&format!("DIVVY.LIMIT SET {limit} 900")), "OK");
    }
    let mut reserve = |api: &str| all.reserve(&format!("api={api} user=bob AMOUNT 5 TTL 60")).1;
    let ids = Ids { open: reserve("both"), released: reserve("b") };
    assert_eq!(all.command(&format!("DIVVY.RELEASE {}", ids.released)), "1");
    ids
}
