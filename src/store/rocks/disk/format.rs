//! The format of data directories and backups: its number, and which numbers this divvy reads.

/// The format that this divvy writes:
/// 1. Journal records are staged changes, and are written back within seconds.
/// 2. Journal records are packed, and stay until the journal is long.
pub const FORMAT: u8 = 2;
/// The formats that it reads. A directory of an earlier one becomes one of [`FORMAT`] when it is opened.
const READABLE: [u8; 2] = [1, FORMAT];
/// Whether this divvy reads what has this format.
pub fn is_readable(format: &str) -> bool {
    READABLE.iter().any(|readable| format.trim() == readable.to_string())
}
