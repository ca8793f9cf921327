//! Whole numbers, written in digits.

use bytes::{BufMut, BytesMut};

/// As `Display` would, without its machinery.
pub fn write_number(number: u64, out: &mut BytesMut) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}
