//! What the long campaigns are told by the environment: a seed, and how much to do.

use std::str::FromStr;
use std::sync::LazyLock;

/// `DIVVY_TEST_SEED`, or another one at every run. It is printed, so that a failure can be had again.
pub fn seed() -> u64 {
    // The standard library draws its hashers' keys at random.
    static DRAWN: LazyLock<u64> =
        LazyLock::new(|| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ()) >> 16);
    let seed = setting("DIVVY_TEST_SEED", *DRAWN);
    println!("DIVVY_TEST_SEED={seed}");
    seed
}

/// Returns the variable's value, or `otherwise` where it is not set.
pub fn setting<T: FromStr>(variable: &str, otherwise: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, and must be a number")),
        Err(_) => otherwise,
    }
}
