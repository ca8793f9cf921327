//! Keys and values as bytes, and the numbers in them.

pub mod key;
pub mod record_key;
pub mod value;

/// First byte of every key. Another layout gets another number.
pub const VERSION: u8 = 1;

/// Appends a number.
#[inline]
pub fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number at the front of `from`, and removes it.
#[inline]
pub fn read_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads bytes at the front of `from`, preceded by their number, and removes them.
#[inline]
pub fn read_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(read_number(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}
