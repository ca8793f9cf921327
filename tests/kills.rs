//! Kills of divvy and of Redis while clients work: afterwards, every acknowledged change counts exactly once, and every
//! other one completely or not at all.
//!
//! `DIVVY_TEST_USAGE_KILLS` and `DIVVY_TEST_LEASE_KILLS` set the number of kills of divvy and of Redis each (default 4),
//! and `DIVVY_TEST_SEED` their moments.

mod campaign;
mod leases;
mod usage;
