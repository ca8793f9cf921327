//! Header compression of HTTP/2 (RFC 7541): decodes the header blocks of requests, and encodes those of responses.
//!
//! The encoder uses no table, so it has no state. The decoder has the table that the client fills.

use std::collections::VecDeque;
use std::sync::LazyLock;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, StatusCode};

/// Maximum size of a table, which is the protocol's default (bytes).
pub const MAX_TABLE: u32 = 4096;
/// Size of an entry, beyond its name and value (bytes).
const ENTRY: usize = 32;

/// The name of a field of a request.
#[derive(Debug, Clone)]
enum Name {
    Method,
    Scheme,
    Authority,
    Path,
    Header(HeaderName),
    Invalid,
}

/// A field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    Method(Method),
    Scheme(Scheme),
    Authority(Authority),
    Path(PathAndQuery),
    Header(HeaderName, HeaderValue),
    /// The name is not valid, or the value.
    Invalid,
}

/// A field as it stands in a table: it is parsed once.
#[derive(Debug, Clone)]
struct Entry {
    name: Name,
    field: Field,
    name_length: usize,
    /// Size in the table, and in a list of headers (bytes; section 4.1).
    size: usize,
}

impl Entry {
    fn new(name: Name, name_length: usize, value: Bytes) -> Self {
        let size = name_length + value.len() + ENTRY;
        let field = match &name {
            Name::Method => Method::from_bytes(&value).map_or(Field::Invalid, Field::Method),
            Name::Scheme => Scheme::try_from(&*value).map_or(Field::Invalid, Field::Scheme),
            Name::Authority => Authority::from_maybe_shared(value).map_or(Field::Invalid, Field::Authority),
            Name::Path if value.is_empty() => Field::Invalid,
            Name::Path => PathAndQuery::from_maybe_shared(value).map_or(Field::Invalid, Field::Path),
            Name::Header(name) => {
                let value = HeaderValue::from_maybe_shared(value);
                value.map_or(Field::Invalid, |value| Field::Header(name.clone(), value))
            }
            Name::Invalid => Field::Invalid,
        };
        Self { name, field, name_length, size }
    }
}

/// A header block that cannot be decoded. The connection must end, because both sides' tables may differ now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionError;

/// The decoder of a connection.
#[derive(Debug)]
pub struct Decoder {
    /// The newest entry is the first.
    table: VecDeque<Entry>,
    /// Size of all entries (bytes).
    size: usize,
    /// Maximum size, as the client has set it (bytes).
    max_size: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: VecDeque::new(), size: 0, max_size: MAX_TABLE as usize }
    }
}

impl Decoder {
    /// Decodes a header block. Calls `take` with each field and its size (bytes). Returns whether the table is the same as before.
    ///
    /// # Errors
    /// The block is malformed.
    pub fn decode(&mut self, mut block: &[u8], mut take: impl FnMut(&Field, usize)) -> Result<bool, CompressionError> {
        let (mut has_begun, mut keeps_table) = (false, true);
        while let Some(first) = block.first().copied() {
            if first & 0x80 != 0 {
                let known = self.find(integer(&mut block, 7)?)?;
                take(&known.field, known.size);
            } else if first & 0xc0 == 0x40 {
                let entry = self.literal(&mut block, 6)?;
                take(&entry.field, entry.size);
                self.insert(entry);
                keeps_table = false;
            } else if first & 0xe0 == 0x20 {
                let size = integer(&mut block, 5)?;
                // It may change at the beginning of a block only.
                if size > MAX_TABLE as usize || has_begun {
                    return Err(CompressionError);
                }
                self.max_size = size;
                self.evict(0);
                keeps_table = false;
                continue;
            } else {
                let entry = self.literal(&mut block, 4)?;
                take(&entry.field, entry.size);
            }
            has_begun = true;
        }
        Ok(keeps_table)
    }

    fn find(&self, index: usize) -> Result<&Entry, CompressionError> {
        let place = index.checked_sub(1).ok_or(CompressionError)?;
        let entry = STATIC.get(place).or_else(|| self.table.get(place - STATIC.len()));
        entry.ok_or(CompressionError)
    }

    /// Decodes a field whose value is not in a table. Its name may be.
    fn literal(&self, block: &mut &[u8], prefix: u32) -> Result<Entry, CompressionError> {
        let (name, name_length) = match integer(block, prefix)? {
            0 => {
                let name = string(block)?;
                (name_of(&name), name.len())
            }
            index => {
                let known = self.find(index)?;
                (known.name.clone(), known.name_length)
            }
        };
        Ok(Entry::new(name, name_length, string(block)?))
    }

    fn insert(&mut self, entry: Entry) {
        self.evict(entry.size);
        if self.size + entry.size <= self.max_size {
            self.size += entry.size;
            self.table.push_front(entry);
        }
    }

    /// Makes room for an entry of this size.
    fn evict(&mut self, size: usize) {
        while self.size + size > self.max_size {
            let Some(oldest) = self.table.pop_back() else { return };
            self.size -= oldest.size;
        }
    }
}

fn name_of(name: &[u8]) -> Name {
    match name {
        b":method" => Name::Method,
        b":scheme" => Name::Scheme,
        b":authority" => Name::Authority,
        b":path" => Name::Path,
        // Names must be in lower case.
        _ => HeaderName::from_lowercase(name).map_or(Name::Invalid, Name::Header),
    }
}

/// Decodes an integer whose first byte has this many bits for it (section 5.1).
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, CompressionError> {
    let (first, mut rest) = block.split_first().ok_or(CompressionError)?;
    let max = (1 << prefix) - 1;
    let mut value = usize::from(*first) & max;
    if value == max {
        // Three more bytes are enough for all lengths that fit into a block.
        for shift in [0, 7, 14, 21] {
            let (byte, more) = rest.split_first().filter(|_| shift < 21).ok_or(CompressionError)?;
            value += usize::from(byte & 0x7f) << shift;
            rest = more;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

fn string(block: &mut &[u8]) -> Result<Bytes, CompressionError> {
    let is_compressed = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(CompressionError)?;
    *block = rest;
    if is_compressed {
        decompress(text).map(|text| text.into_boxed_slice().into())
    } else {
        Ok(Bytes::copy_from_slice(text))
    }
}

/// Number of bits of each byte's code (appendix B). The codes follow: they ascend with their lengths, and within a length with the
/// bytes.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The codes of one length.
#[derive(Clone, Copy)]
struct Codes {
    bits: u32,
    /// The first code behind them, as the highest bits.
    end: u32,
    first: u32,
    /// Place of the first one's byte in [`Code::bytes`].
    place: usize,
}

/// How texts are decompressed.
struct Code {
    /// The codes of each length.
    lengths: Vec<Codes>,
    /// All bytes in the order of their codes.
    bytes: Vec<u8>,
    /// For each beginning of eight bits, the byte whose code it begins with, and the length of the code; 0 if that is longer.
    /// Nearly all bytes of headers have such codes. A search for each takes 30 % more instructions for a path.
    short: Vec<(u8, u32)>,
}

static CODE: LazyLock<Code> = LazyLock::new(|| {
    let mut bytes: Vec<(u32, u8)> = CODE_LENGTHS.into_iter().map(u32::from).zip(0..=u8::MAX).collect();
    bytes.sort_unstable();
    let (mut codes, mut next): (Vec<Codes>, u32) = (Vec::new(), 0);
    for (place, (bits, _)) in bytes.iter().enumerate() {
        let before = codes.last().map_or(0, |codes| codes.bits);
        if *bits != before {
            next <<= bits - before;
            codes.push(Codes { bits: *bits, end: 0, first: next, place });
        }
        next += 1;
        if let Some(last) = codes.last_mut() {
            last.end = next << (u32::BITS - bits);
        }
    }
    let short = bytes.iter().flat_map(|(bits, byte)| {
        let beginnings = 1_usize.checked_shl(u8::BITS.wrapping_sub(*bits)).unwrap_or(0);
        std::iter::repeat_n((*byte, *bits), beginnings)
    });
    let mut short: Vec<_> = short.collect();
    short.resize(usize::from(u8::MAX) + 1, (0, 0));
    Code { lengths: codes, short, bytes: bytes.into_iter().map(|(_, byte)| byte).collect() }
});

fn decompress(text: &[u8]) -> Result<Vec<u8>, CompressionError> {
    let Code { lengths, bytes, short } = &*CODE;
    // The shortest code has five bits.
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    // The next bits of the text are the highest ones.
    let (mut window, mut filled, mut rest) = (0_u64, 0, text.iter());
    loop {
        while filled <= u64::BITS - u8::BITS {
            let Some(byte) = rest.next() else { break };
            window |= u64::from(*byte) << (u64::BITS - u8::BITS - filled);
            filled += u8::BITS;
        }
        let next = (window >> u32::BITS) as u32;
        let (byte, bits) = match short.get((next >> (u32::BITS - u8::BITS)) as usize) {
            Some((byte, bits @ 1..)) if *bits <= filled => (*byte, *bits),
            _ => {
                let Some(codes) = lengths.iter().find(|codes| next < codes.end && codes.bits <= filled) else {
                    // The rest is padding: fewer than eight bits, all of them set.
                    let is_padding = filled < u8::BITS && window == !(u64::MAX >> filled);
                    return if is_padding { Ok(out) } else { Err(CompressionError) };
                };
                let place = codes.place + ((next >> (u32::BITS - codes.bits)) - codes.first) as usize;
                (*bytes.get(place).ok_or(CompressionError)?, codes.bits)
            }
        };
        out.push(byte);
        window <<= bits;
        filled -= bits;
    }
}

/// The beginning of a block after which the client needs no table. A client with a smaller table than [`MAX_TABLE`] waits for it
/// (section 4.2).
pub const DROP_TABLE: u8 = 0x20;

/// Appends the status of a response.
pub fn write_status(status: StatusCode, out: &mut Vec<u8>) {
    // Places in the static table (appendix A).
    match status.as_u16() {
        200 => out.push(0x88),
        204 => out.push(0x89),
        206 => out.push(0x8a),
        304 => out.push(0x8b),
        400 => out.push(0x8c),
        404 => out.push(0x8d),
        500 => out.push(0x8e),
        _ => {
            out.extend_from_slice(&[0x08, 3]);
            out.extend_from_slice(status.as_str().as_bytes());
        }
    }
}

/// Appends a field of a response.
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(0);
    for text in [name, value] {
        write_integer(text.len(), 7, out);
        out.extend_from_slice(text);
    }
}

/// Appends an integer whose first byte has this many bits for it, and no others.
fn write_integer(mut value: usize, prefix: u32, out: &mut Vec<u8>) {
    let max = (1 << prefix) - 1;
    if value < max {
        out.push(value as u8);
        return;
    }
    out.push(max as u8);
    value -= max;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The static table (appendix A).
static STATIC: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let entry = |text: &'static str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Entry::new(name_of(name.as_bytes()), name.len(), Bytes::from_static(value.as_bytes()))
    };
    STATIC_TEXT.split('|').map(entry).collect()
});

/// A request has no status, so these fields' names are invalid.
const STATIC_TEXT: &str = "\
    :authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|\
    :status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|\
    accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|\
    authorization|cache-control|content-disposition|content-encoding|content-language|content-length|\
    content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|\
    if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|\
    proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|\
    strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate";

#[cfg(test)]
mod tests;
