use super::*;

/// Returns a hash with this cost: memory in KiB, passes, and one lane.
fn hash((memory, passes): (u32, u32)) -> SlowHash {
    let params = argon2::Params::new(memory, passes, 1, None).unwrap();
    SlowHash::with_params(b"password", params).unwrap()
}

fn user(name: &str, is_on: bool, costs: &[(u32, u32)]) -> User {
    User { is_on, slow_hashes: costs.iter().copied().map(hash).collect(), ..User::new(name) }
}

/// Returns the costs of the hashes that a failing attempt checks, sorted.
fn costs(users: &Users, name: &str) -> Vec<(u32, u32)> {
    let given = Given::User { name: name.as_bytes(), password: b"wrong" };
    let check = users.check_digests(&given).unwrap_err().unwrap();
    let mut costs: Vec<_> = check.hashes.iter().map(|hash| (hash.cost().0, hash.cost().1)).collect();
    costs.sort_unstable();
    costs
}

#[test]
fn failing_attempts_check_hashes_with_the_same_costs() {
    let users = Users::new([
        user("cheap", true, &[(8, 1), (8, 1)]),
        user("slow", true, &[(8, 3)]),
        user("both", false, &[(8, 3), (64, 1)]),
        user("none", true, &[]),
    ])
    .unwrap();
    for name in ["cheap", "slow", "both", "none", "nobody", ""] {
        assert_eq!(costs(&users, name), [(8, 1), (8, 1), (8, 3), (64, 1)], "{name}");
    }
}

#[test]
fn decoys_have_few_costs() {
    let users = Users::new((1..8).map(|passes| user(&format!("u{passes}"), true, &[(8, passes)]))).unwrap();
    let costliest = [(8, 4), (8, 5), (8, 6), (8, 7)];
    assert_eq!(costs(&users, "nobody"), costliest);
    assert_eq!(costs(&users, "u5"), costliest);
    assert_eq!(costs(&users, "u1"), [&[(8, 1)], &costliest[..]].concat());
}
