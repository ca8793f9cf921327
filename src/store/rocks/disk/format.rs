//! The format of data directories and backups.

/// The format that this version writes:
/// 1. Journal records are staged changes, and are written back within seconds.
/// 2. Journal records are packed, and stay until the journal is long.
pub const FORMAT: u8 = 2;
/// The formats that this version reads. Opening a directory converts it to [`FORMAT`].
const READABLE: [u8; 2] = [1, FORMAT];

/// Returns whether this version reads the format.
pub fn is_readable(format: &str) -> bool {
    READABLE.iter().any(|readable| format.trim() == readable.to_string())
}
