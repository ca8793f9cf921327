//! Settings of long campaigns in the environment: a seed, and the amount of work.

use std::str::FromStr;
use std::sync::LazyLock;

/// Returns `DIVVY_TEST_SEED`, or else a random seed. Prints it, so that a failure can be reproduced.
pub fn seed() -> u64 {
    // The standard library chooses its hashers' keys at random.
    static DRAWN: LazyLock<u64> =
        LazyLock::new(|| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ()) >> 16);
    let seed = setting("DIVVY_TEST_SEED", *DRAWN);
    println!("DIVVY_TEST_SEED={seed}");
    seed
}

/// Returns the value of a variable, or `otherwise` if it is not set.
pub fn setting<T: FromStr>(variable: &str, otherwise: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, and must be a number")),
        Err(_) => otherwise,
    }
}
