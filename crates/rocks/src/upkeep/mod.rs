//! Upkeep: the threads that write back, fsync, recover, load and count, and the state of the store's health.

pub mod counter_survey;
pub mod damage;
pub mod health;
pub mod housekeeping;
pub mod loading;
pub mod metrics;
pub mod timings;
