pub mod algorithm;
pub mod cli;
pub mod clock;
pub mod config;
pub mod rules;
pub mod store;
