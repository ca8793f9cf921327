//! The part of RocksDB's write-ahead log that a recovery discards, for a log message.
//!
//! The layout is that of RocksDB's `db/log_format.h`: blocks of records, each
//! with a checksum, a length and a type; the first record of a write begins with the write's sequence number.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

const BLOCK: usize = 32 << 10;
/// Size of the checksum, the length and the type (bytes).
const HEADER: usize = 7;

/// Returns the bytes of the logs in the data directory `path` that come after the change with the sequence number
/// `recovered`.
///
/// # Errors
/// The directory or a log cannot be read.
pub fn bytes_after(path: &Path, recovered: u64) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            bytes += log_bytes_after(File::open(&path)?, recovered)?;
        }
    }
    Ok(bytes)
}

/// Returns the bytes of a log from the first later write, or from the first bytes that are not a record.
fn log_bytes_after(log: File, recovered: u64) -> io::Result<u64> {
    let length = log.metadata()?.len();
    let mut log = BufReader::with_capacity(BLOCK, log);
    let mut block = Vec::with_capacity(BLOCK);
    let mut start = 0;
    loop {
        block.clear();
        log.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(0);
        }
        if let Some(at) = first_after(&block, recovered) {
            return Ok(length.saturating_sub(start + at as u64));
        }
        start += block.len() as u64;
    }
}

/// Returns the offset in a block of the first write after `recovered`, or of the first bytes that are not a record.
fn first_after(block: &[u8], recovered: u64) -> Option<usize> {
    let mut at = 0;
    // The last bytes of a block are empty if no header fits.
    while at + HEADER <= BLOCK && at < block.len() {
        let Some([_, _, _, _, low, high, kind]) = block.get(at..).and_then(<[u8]>::first_chunk::<HEADER>) else {
            return Some(at);
        };
        let payload = at + header_length(*kind);
        let end = at + header_length(*kind) + usize::from(u16::from_le_bytes([*low, *high]));
        let Some(content) = block.get(payload..end).filter(|_| *kind != 0) else { return Some(at) };
        if begins_write(*kind) {
            match content.first_chunk() {
                Some(sequence) if u64::from_le_bytes(*sequence) <= recovered => {}
                _ => return Some(at),
            }
        }
        at = end;
    }
    None
}

/// Returns whether a record of this kind is the first of a write, in a plain or in a recycled log.
fn begins_write(kind: u8) -> bool {
    matches!(kind, 1 | 2 | 5 | 6)
}

/// Returns the length of a record's header, which includes the log's number in a recycled log.
fn header_length(kind: u8) -> usize {
    if matches!(kind, 5..=8 | 11 | 13) { HEADER + size_of::<u32>() } else { HEADER }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    /// Returns a complete write of one record.
    fn record(sequence: u64, length: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + usize::from(length)];
        bytes[4..6].copy_from_slice(&length.to_le_bytes());
        bytes[6] = 1;
        bytes[HEADER..HEADER + 8].copy_from_slice(&sequence.to_le_bytes());
        bytes
    }

    fn given_up(content: &[u8], recovered: u64) -> u64 {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        log_bytes_after(file, recovered).unwrap()
    }

    #[test]
    fn everything_after_the_last_recovered_write_is_discarded() {
        let log: Vec<u8> = (1..=3).flat_map(|sequence| record(sequence, 100)).collect();
        assert_eq!(given_up(&log, 3), 0);
        assert_eq!(given_up(&log, 2), 107);
        assert_eq!(given_up(&log, 0), 321);
    }

    #[test]
    fn torn_writes_and_holes_are_discarded() {
        let log: Vec<u8> = (1..=3).flat_map(|sequence| record(sequence, 100)).collect();
        assert_eq!(given_up(&log[..300], 9), 300 - 214);
        assert_eq!(given_up(&log[..3], 9), 3);
        let mut hole = log.clone();
        hole[107..214].fill(0);
        assert_eq!(given_up(&hole, 1), 214);
    }

    #[test]
    fn blocks_are_padded_at_their_end() {
        let length = BLOCK - HEADER - 3;
        let mut log = record(1, u16::try_from(length).unwrap());
        log.extend([0; 3]);
        log.extend(record(2, 50));
        assert_eq!(given_up(&log, 2), 0);
        assert_eq!(given_up(&log, 1), 57);
    }
}
