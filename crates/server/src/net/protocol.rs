//! The protocols of the fronts, and clients on the wrong port. A connection's first bytes show another front's protocol, and the
//! client is answered in that protocol.

use divvy_core::named_values;

named_values! {
    /// A protocol, and the front that serves it. Its text is the name of the front in metrics and logs.
    Protocol {
        Line = "line",
        Resp = "resp",
        Http = "http",
        Grpc = "grpc",
    }
}

/// First bytes of HTTP/2.
pub const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0";
/// Precedes the version in the first line of an HTTP/1 request.
const HTTP_1: &[u8] = b" HTTP/1.";
/// Longest first line that is searched (bytes).
const MAX_LINE: usize = 8 * 1024;

impl Protocol {
    /// Returns the name of the protocol, and where to find it.
    fn name_and_port(self) -> (&'static str, &'static str) {
        match self {
            Self::Line => ("line protocol", "the line protocol has a port of its own (--listen, 8321 by default)"),
            Self::Resp => ("RESP", "RESP has a port of its own (--resp-listen, 9049 by default)"),
            Self::Http => ("HTTP", "HTTP has a port of its own (--http-listen, 8322 by default)"),
            Self::Grpc => ("gRPC", "gRPC has a port of its own (--grpc-listen, 8323 by default)"),
        }
    }

    /// Returns the answer of this protocol's port to a client whose first bytes belong to another protocol; `None` if
    /// the client may have the right port.
    pub fn answer_to_others(self, first: &[u8]) -> Option<Vec<u8>> {
        let spoken = recognize(first)?;
        let is_served = match self {
            Self::Line => spoken == Self::Line,
            // RESP also accepts commands without framing, and has its own answer to an unknown command.
            Self::Resp => matches!(spoken, Self::Resp | Self::Line),
            Self::Http => matches!(spoken, Self::Http | Self::Grpc),
            Self::Grpc => spoken == Self::Grpc,
        };
        if is_served { None } else { Some(spoken.error(&self.describe(spoken))) }
    }

    /// Returns the text for a client of the protocol `spoken` on this protocol's port.
    pub fn describe(self, spoken: Self) -> String {
        format!("this is divvy's {} port: {}", self.name_and_port().0, spoken.name_and_port().1)
    }

    /// Returns whether clients choose HTTP/1.1 or HTTP/2 in a TLS handshake.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Grpc)
    }

    /// Returns the message for a client beyond the maximum number of connections. Empty if the client would take it for the reply
    /// to its first request, or if nothing may be sent before its first bytes.
    pub fn too_many(self) -> &'static [u8] {
        match self {
            Self::Resp => b"-ERR max number of clients reached\r\n",
            Self::Http => b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            Self::Line | Self::Grpc => b"",
        }
    }

    /// Returns the message for a client that uses TLS if the front does not.
    pub fn no_tls(self) -> Vec<u8> {
        let remedy = if self.is_http() { "use http:" } else { "connect without it" };
        self.error(&format!("this port does not speak TLS: {remedy}"))
    }

    /// Returns the message for a client that does not use TLS if the front does.
    pub fn only_tls(self) -> Vec<u8> {
        let remedy = match self {
            Self::Line => "connect with it",
            Self::Resp => "connect with it (redis-cli --tls)",
            Self::Http | Self::Grpc => "use https:",
        };
        self.error(&format!("this port speaks TLS only: {remedy}"))
    }

    /// Returns an error reply in this protocol.
    fn error(self, text: &str) -> Vec<u8> {
        match self {
            Self::Line => format!("ERR unknown \"{text}\"\n"),
            Self::Resp => format!("-ERR {text}\r\n"),
            // HTTP/2 clients say so in their error if the answer is in HTTP/1.
            Self::Http | Self::Grpc => format!(
                "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n\
                 {text}\n",
                text.len() + 1
            ),
        }
        .into_bytes()
    }
}

/// Returns the protocol of a connection, if its first bytes identify it clearly. [`Protocol::Grpc`] stands for HTTP/2.
fn recognize(first: &[u8]) -> Option<Protocol> {
    if let [b'*', digit, ..] = first {
        return digit.is_ascii_digit().then_some(Protocol::Resp);
    }
    if first.starts_with(PREFACE_LINE) {
        return Some(Protocol::Grpc);
    }
    let first = first.get(..MAX_LINE).unwrap_or(first);
    let line = memchr::memchr(b'\n', first).and_then(|end| first.get(..end)).unwrap_or(first);
    if memchr::memmem::find(line, HTTP_1).is_some() {
        return line.first().is_some_and(u8::is_ascii_uppercase).then_some(Protocol::Http);
    }
    let command = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
    command.eq_ignore_ascii_case(b"HIT").then_some(Protocol::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /v1/rules HTTP/1.1\r\nhost: a\r\n\r\n";
    const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const HIT: &[u8] = b"HIT path=/a\n";

    #[test]
    fn client_that_may_have_the_right_port_is_served() {
        for (port, first) in [
            (Protocol::Line, HIT),
            (Protocol::Line, b"HIT path=/a HTTP\n"),
            (Protocol::Line, b"*\n"),
            (Protocol::Line, b""),
            (Protocol::Resp, PING),
            (Protocol::Resp, HIT),
            (Protocol::Resp, b"GET /a\r\n"),
            (Protocol::Resp, b"divvy.hit a=\" HTTP/1.\"\r\n"),
            (Protocol::Http, GET),
            (Protocol::Http, HTTP_2),
            (Protocol::Http, b"GE"),
            (Protocol::Grpc, HTTP_2),
        ] {
            assert_eq!(port.answer_to_others(first), None, "{port:?}: {}", first.escape_ascii());
        }
    }
}
