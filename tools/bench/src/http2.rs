//! The part of HTTP/2 that calls of Envoy's rate limit service need: the frames of a call, and the counts of the calls that
//! end in a stream of frames.
//!
//! There is no flow control: servers open their windows as they read, and the calls in flight are few and short.

use anyhow::{Context, anyhow, bail, ensure};
use divvy_server::grpc::Rpc;
use divvy_server::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy_server::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy_server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy_server::grpc::messages::{PREFIX, framed};
use divvy_server::http::frame::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, MAX_FRAME, PING, RST_STREAM, SETTINGS, write_frame,
    write_frame_head,
};

use crate::connection::ReplyCounts;
use crate::plan::pair;

/// The first bytes from a client: the preface, empty settings, and a window of 2 GiB for replies.
pub const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

/// The header blocks of calls. The first call of a connection adds its fields to the server's table. Later calls refer to
/// them, as gRPC's clients do.
#[derive(Debug)]
pub struct CallHeads {
    first: Vec<u8>,
    body_length: usize,
}

impl CallHeads {
    pub fn new(addr: &str, body_length: usize) -> anyhow::Result<Self> {
        ensure!(body_length <= MAX_FRAME, "the message is longer than {MAX_FRAME} bytes");
        // POST and http have numbers.
        let mut first = vec![0x83, 0x86];
        let path = Rpc::EnvoyShouldRateLimit.name();
        let fields = [":path", path, ":authority", addr, "content-type", "application/grpc", "te", "trailers"];
        for [name, value] in fields.as_chunks().0 {
            first.push(0x40);
            for text in [name, value] {
                first.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).context("--addr is too long")?);
                first.extend(text.bytes());
            }
        }
        Ok(Self { first, body_length })
    }

    /// Appends everything but the body of a connection's call number `index`.
    pub fn append(&self, index: u64, output: &mut Vec<u8>) {
        let head = if index == 0 { &self.first[..] } else { &[0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe] };
        let stream = index as u32 * 2 + 1;
        write_frame(HEADERS, END_HEADERS, stream, head, output);
        write_frame_head(DATA, END_STREAM, stream, self.body_length, output);
    }
}

/// Encodes a call's body: a domain, and the pairs of descriptors, with `/` between two of them.
pub fn rate_limit_body(domain: &str, words: &[String]) -> anyhow::Result<Vec<u8>> {
    let entry = |word: &String| {
        let (key, value) = pair(word)?;
        Ok(Entry { key: key.to_owned().into(), value: value.to_owned().into() })
    };
    let descriptor = |words: &[String]| {
        let entries = words.iter().map(entry).collect::<anyhow::Result<_>>()?;
        Ok(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() })
    };
    let descriptors = words.split(|word| word == "/").map(descriptor).collect::<anyhow::Result<_>>()?;
    Ok(framed(&RateLimitRequest { domain: domain.to_owned().into(), descriptors, hits_addend: 0 }))
}

/// Counts the calls that end on one connection.
#[derive(Debug, Default)]
pub struct CallCounter {
    counts: ReplyCounts,
    /// Messages of calls that have not ended, and those of them that deny.
    messages: u64,
    denials: u64,
    /// Frames that the server is waiting for.
    pub answers: Vec<u8>,
}

impl CallCounter {
    /// Counts as [`ReplyCounter::count`](crate::connection::ReplyCounter::count) does. The unused bytes are the start of a
    /// frame.
    pub fn count(&mut self, bytes: &[u8], warm_up: u64) -> anyhow::Result<(ReplyCounts, usize)> {
        self.counts.warm_up = warm_up;
        let mut rest = bytes;
        let wrong = |_| anyhow!("the reply is not HTTP/2 (is this the gRPC port?)");
        while let Some((frame, length)) = Frame::read(rest).map_err(wrong)? {
            self.frame(frame.kind, frame.flags, frame.content)?;
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok((std::mem::take(&mut self.counts), bytes.len() - rest.len()))
    }

    fn frame(&mut self, kind: u8, flags: u8, payload: &[u8]) -> anyhow::Result<()> {
        match kind {
            DATA if payload.len() >= PREFIX => {
                self.messages += 1;
                // The first field is the overall code, and 2 is OVER_LIMIT.
                self.denials += u64::from(payload.get(PREFIX..PREFIX + 2) == Some(&[8, 2]));
            }
            SETTINGS if flags & ACK == 0 => write_frame(SETTINGS, ACK, 0, &[], &mut self.answers),
            PING if flags & ACK == 0 => write_frame(PING, ACK, 0, payload, &mut self.answers),
            // The status 200 is field 0x88. Changes of the table's size may come before it.
            HEADERS if flags & END_STREAM == 0 && payload.iter().find(|byte| **byte & 0xe0 != 0x20) != Some(&0x88) => {
                bail!("the reply to a call has another status than 200 (is this the gRPC port, without a login?)")
            }
            GOAWAY => {
                bail!("the server ends the connection: {}", String::from_utf8_lossy(payload.get(8..).unwrap_or(&[])))
            }
            _ => {}
        }
        let is_reset = kind == RST_STREAM && payload != [0; 4];
        if is_reset || matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let message = self.messages.checked_sub(1);
            self.messages = message.unwrap_or(0);
            self.counts.add(self.denials > 0, message.is_none());
            self.denials = self.denials.saturating_sub(1);
        }
        Ok(())
    }
}
