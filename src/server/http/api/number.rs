//! Whole numbers, written in digits.

/// As `Display` would, without its machinery.
pub fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
