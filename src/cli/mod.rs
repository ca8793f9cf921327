//! The subcommands, one file each: what they print and how they exit. What they do lives in the rooms below.

pub mod bench;
