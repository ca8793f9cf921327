//! Whole numbers as text.

/// Appends a number in decimal, faster than `Display`.
pub fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
