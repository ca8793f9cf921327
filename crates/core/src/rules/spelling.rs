//! One spelling for what clients can spell in many ways: a request's method, path, host and address.
//!
//! A gateway's check describes a request by these four. An application takes `/login`, `//login` and `/%6Cogin` for the same
//! path, so a limit must, too. [`Spelling::normalize`] gives the spelling that the rules see, and [`Spelling::of_pattern`]
//! gives a rule's pattern the same one. Hits over other protocols are compared as they come.
//!
//! Sources: RFC 3986, section 6.2.2 (percent-encoding, dot segments), RFC 9110, section 4.2.3 (hosts and ports), and the WHATWG's
//! host parser for names with other letters. Repeated slashes are one, as nginx and most applications read them.

use std::borrow::Cow;
use std::net::IpAddr;

use url::Host;

use super::{Address, Network, Pattern};

/// The treatment of the slash at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FinalSlash {
    /// `/login/` and `/login` are two paths.
    #[default]
    Keep,
    /// `/login/` is `/login`.
    Drop,
}

/// A kind of value. It decides which spellings are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spelling {
    /// Capitals, as in `POST`.
    Method,
    /// A path: unreserved characters are not encoded and others are, by capitals. No dot segments, no repeated slashes.
    Path(FinalSlash),
    /// A path and a query. The query stays as it is.
    Uri(FinalSlash),
    /// A host: small letters, no port, no final dot.
    Host,
    /// An address in the standard notation (RFC 5952), without port and zone. Other text stays as it is.
    Address,
}

impl Spelling {
    /// Returns the value in the one spelling; `None` if it is a host that no server can have.
    pub fn normalize(self, value: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Method if value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                Some(value.to_ascii_uppercase().into())
            }
            Self::Method => Some(value.into()),
            Self::Path(slash) => Some(path(value, slash)),
            Self::Uri(slash) => {
                let (before, query) = value.split_at(value.find('?').unwrap_or(value.len()));
                Some(match path(before, slash) {
                    Cow::Borrowed(_) => value.into(),
                    Cow::Owned(path) => (path + query).into(),
                })
            }
            Self::Host => host(value),
            Self::Address => Some(Address::parse(value).map_or(value.into(), |address| address.to_string().into())),
        }
    }

    /// Returns the patterns that match the normalized values of those that `pattern` matches.
    ///
    /// # Errors
    /// No normalized value matches: what is wrong, and what to write instead.
    pub(super) fn of_pattern(self, pattern: &Pattern) -> Result<Vec<Pattern>, (String, String)> {
        let text = pattern.as_str();
        if *pattern == Pattern::Any {
            return Ok(vec![Pattern::Any]);
        }
        if self == Self::Address {
            if Address::parse(text).is_none() && Network::parse(text).is_ok() {
                let what = "it is a network, and a check has the address of one client".to_owned();
                return Err((what, format!("write * in its place, and add the setting `networks = FIELD: {text}`")));
            }
            let is_glob = matches!(pattern, Pattern::Glob(_));
            let normal = if is_glob { Some(text.to_ascii_lowercase().into()) } else { self.normalize(text) };
            return Ok(normal.iter().map(|text| Pattern::parse(text)).collect());
        }
        let normal = match self {
            // The port may be part of the glob.
            Self::Host => {
                let name = text.split_once(":*").filter(|(name, _)| !name.contains('[')).map_or(text, |(name, _)| name);
                host(name)
            }
            _ => self.normalize(text),
        };
        let Some(normal) = normal else {
            let fix = "write the name alone, such as shop.example, without scheme and path".to_owned();
            return Err(("it is not the name of a host".to_owned(), fix));
        };
        let mut patterns = vec![Pattern::parse(&normal)];
        // A path below a directory includes the directory itself, whose slash is dropped.
        if let (Self::Path(FinalSlash::Drop), Some(directory)) = (self, normal.strip_suffix("/*"))
            && !directory.is_empty()
        {
            patterns.push(Pattern::parse(directory));
        }
        Ok(patterns)
    }
}

/// Returns the one spelling of a path. A `*` at the start of a pattern stays the first character.
fn path(text: &str, slash: FinalSlash) -> Cow<'_, str> {
    if is_normal_path(text.as_bytes(), slash) {
        return text.into();
    }
    let encoded = encode(text.as_bytes());
    let (mut segments, mut is_directory) = (Vec::new(), true);
    for segment in encoded.split('/') {
        is_directory = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let start = if encoded.starts_with('*') && !segments.is_empty() { "" } else { "/" };
    let end = if is_directory && !segments.is_empty() && slash == FinalSlash::Keep { "/" } else { "" };
    format!("{start}{}{end}", segments.join("/")).into()
}

/// Returns whether a path is in its one spelling. Most are, and need no copy.
fn is_normal_path(path: &[u8], slash: FinalSlash) -> bool {
    let mut last = 0;
    for byte in path {
        let is_segment_start = last == b'/';
        if !is_plain(*byte) && *byte != b'/' || is_segment_start && matches!(byte, b'/' | b'.') {
            return false;
        }
        last = *byte;
    }
    path == b"*" || path.first() == Some(&b'/') && (last != b'/' || path.len() == 1 || slash == FinalSlash::Keep)
}

/// Decodes the unreserved characters of a path, and encodes those that a path cannot have.
fn encode(path: &[u8]) -> String {
    let mut encoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.split_first_chunk::<2>()).flatten();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let escaped = escaped.and_then(|([high, low], after)| Some((digit(*high)? * 16 + digit(*low)?, after)));
        match escaped {
            Some((byte, after)) => {
                match u8::try_from(byte).ok().filter(|byte| is_unreserved(*byte)) {
                    Some(byte) => encoded.push(byte.into()),
                    None => encoded.push_str(&format!("%{byte:02X}")),
                }
                rest = after;
            }
            None => {
                if is_plain(*first) || *first == b'/' {
                    encoded.push(char::from(*first));
                } else {
                    encoded.push_str(&format!("%{first:02X}"));
                }
                rest = after;
            }
        }
    }
    encoded
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Returns whether a segment of a path has this byte as it is.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@')
}

/// Returns the one spelling of a host; `None` if the text is not the name of a host.
fn host(text: &str) -> Option<Cow<'_, str>> {
    if is_normal_host(text.as_bytes()) {
        return Some(text.into());
    }
    let text = text.trim();
    // An address without brackets has colons, but no port.
    if let Some(address) = Address::parse(text).filter(|_| !text.starts_with('[')) {
        return Some(bracketed(address).into());
    }
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = text.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(text, |(name, _)| name);
    match Host::parse(name.trim_end_matches('.')).ok()? {
        // An encoded dot may have been the last one.
        Host::Domain(name) => {
            Some(name.trim_end_matches('.').to_owned().into()).filter(|name: &Cow<str>| !name.is_empty())
        }
        Host::Ipv4(address) => Some(address.to_string().into()),
        Host::Ipv6(address) => Some(bracketed(Address::from(IpAddr::V6(address))).into()),
    }
}

fn bracketed(address: Address) -> String {
    if address.is_v4() { address.to_string() } else { format!("[{address}]") }
}

/// Returns whether the text is a host name in small letters. Most are, and need no copy.
fn is_normal_host(text: &[u8]) -> bool {
    let last_label = text.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    text.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_'))
        && last_label.first().is_some_and(u8::is_ascii_lowercase)
        // Names with other letters may have another encoding.
        && !text.windows(4).any(|part| part == b"xn--")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: Spelling = Spelling::Path(FinalSlash::Keep);

    fn normal(spelling: Spelling, value: &str) -> String {
        spelling.normalize(value).map_or("none".to_owned(), Cow::into_owned)
    }

    #[test]
    fn path_has_one_spelling() {
        for text in [
            "/login",
            "//login",
            "///login",
            "/%6cogin",
            "/%6Cogin",
            "/./login",
            "/x/../login",
            "/../login",
            "/x/%2e%2E/login",
            "/x//../login",
            "/%2e/login",
            "login",
            "/a/b/../../login",
            "/.//login",
            "/lo%67in",
        ] {
            assert_eq!(normal(PATH, text), "/login", "{text}");
            assert_eq!(normal(Spelling::Path(FinalSlash::Drop), &format!("{text}/")), "/login", "{text}/");
            assert_eq!(normal(PATH, &format!("{text}/")), "/login/", "{text}/");
            assert_eq!(normal(PATH, &format!("{text}/.")), "/login/", "{text}/.");
        }
        for (text, expected) in [
            ("", "/"),
            ("/", "/"),
            ("/..", "/"),
            ("//", "/"),
            ("*", "*"),
            ("/a%2fb%3F", "/a%2Fb%3F"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a b|c", "/a%20b%7Cc"),
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("/%%36f", "/%256f"),
            ("/%256c", "/%256c"),
            ("/...", "/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("/a;b=1,2", "/a;b=1,2"),
        ] {
            assert_eq!(normal(PATH, text), expected, "{text}");
        }
        assert_eq!(normal(Spelling::Uri(FinalSlash::Keep), "//a/./b?c=/../d"), "/a/b?c=/../d");
    }

    #[test]
    fn host_method_and_address_have_one_spelling() {
        for text in [
            "shop.example",
            "SHOP.example",
            "shop.example:443",
            "shop.example:80",
            "shop.example.",
            "Shop.Example.:8443",
            "shop.example:",
        ] {
            assert_eq!(normal(Spelling::Host, text), "shop.example", "{text}");
        }
        for (text, expected) in [
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("2001:DB8::1", "[2001:db8::1]"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("[::ffff:192.0.2.1]", "192.0.2.1"),
            ("b\u{fc}cher.example", "xn--bcher-kva.example"),
            ("XN--Bcher-KVA.example", "xn--bcher-kva.example"),
            ("shop example", "none"),
            ("a, b", "none"),
            ("https://shop.example", "none"),
            ("user@shop.example", "none"),
        ] {
            assert_eq!(normal(Spelling::Host, text), expected, "{text}");
        }
        assert_eq!(normal(Spelling::Method, "post"), "POST");
        for text in ["192.0.2.1", "192.0.2.1:4711", "::FFFF:192.0.2.1", "[::ffff:c000:201%eth0]:80"] {
            assert_eq!(normal(Spelling::Address, text), "192.0.2.1", "{text}");
        }
        assert_eq!(normal(Spelling::Address, "[2001:DB8::0:1%2]:443"), "2001:db8::1");
        assert_eq!(normal(Spelling::Address, "unknown"), "unknown");
    }

    #[test]
    fn pattern_gets_the_spelling_of_the_values() {
        let patterns = |spelling: Spelling, text: &str| {
            let patterns = spelling.of_pattern(&Pattern::parse(text)).unwrap();
            patterns.iter().map(Pattern::to_string).collect::<Vec<_>>().join(" ")
        };
        let drop = Spelling::Path(FinalSlash::Drop);
        for (spelling, text, expected) in [
            (PATH, "//x", "/x"),
            (PATH, "*.php", "*.php"),
            (PATH, "*/login", "*/login"),
            (PATH, "/a/*/b/", "/a/*/b/"),
            (PATH, "/caf\u{e9}/*", "/caf%C3%A9/*"),
            (PATH, "/admin/*", "/admin/*"),
            (drop, "/admin/*", "/admin/* /admin"),
            (drop, "/*", "/*"),
            (drop, "/login/", "/login"),
            (Spelling::Host, "*.Shop.example:443", "*.shop.example"),
            (Spelling::Host, "shop.example:*", "shop.example"),
            (Spelling::Host, "*", "*"),
            (Spelling::Method, "p*", "P*"),
            (Spelling::Address, "2001:DB8::0:1", "2001:db8::1"),
            (Spelling::Address, "2001:DB8:*", "2001:db8:*"),
        ] {
            assert_eq!(patterns(spelling, text), expected, "{text}");
        }
        for (spelling, text) in [(Spelling::Address, "10.0.0.0/8"), (Spelling::Host, "https://shop.example/")] {
            assert!(spelling.of_pattern(&Pattern::parse(text)).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn normal_values_stay(text in "[/.%2eE6cA*?;\u{e9} ]{0,12}", slash in prop_oneof![Just(FinalSlash::Keep), Just(FinalSlash::Drop)]) {
            let once = normal(Spelling::Path(slash), &text);
            prop_assert_eq!(&normal(Spelling::Path(slash), &once), &once);
            prop_assert!(once.starts_with(['/', '*']) && !once.contains("//") && !once.contains("/../"));
        }

        #[test]
        fn any_host_is_read_without_panic(text in "[a-zA-Z0-9.:\\[\\]%*@\u{fc} -]{0,20}") {
            if let Some(once) = Spelling::Host.normalize(&text) {
                prop_assert_eq!(normal(Spelling::Host, &once), once);
            }
        }

        /// A value that matches the pattern matches it in the one spelling, too.
        #[test]
        fn pattern_matches_the_same_values(
            pattern in "/[ab]{0,2}(/[ab*]{1,2}){0,2}", value in "/{1,2}[ab]{0,2}(/{1,2}[ab]{1,2}){0,3}",
            slash in prop_oneof![Just(FinalSlash::Keep), Just(FinalSlash::Drop)],
        ) {
            let plain: String = format!("/{}", value.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"));
            let spelling = Spelling::Path(slash);
            let patterns = spelling.of_pattern(&Pattern::parse(&pattern)).unwrap();
            if Pattern::parse(&pattern).matches(&plain) {
                let normal = normal(spelling, &value);
                prop_assert!(patterns.iter().any(|pattern| pattern.matches(&normal)), "{} {:?}", normal, patterns);
            }
        }
    }
}
