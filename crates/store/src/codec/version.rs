//! The version of the layout of keys and values.

/// First byte of every key. Another layout gets another number.
pub const VERSION: u8 = 1;
