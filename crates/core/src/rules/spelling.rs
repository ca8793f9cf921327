//! One spelling for what clients can spell in many ways: a request's method, path, host and address.
//!
//! A gateway's check describes a request by these four. An application takes `/login`, `//login` and `/%6Cogin` for the same
//! path, so a limit must, too. [`Spelling::normalize`] gives the spelling that the rules see, and [`Spelling::of_pattern`]
//! gives a rule's pattern the same one, as [`Spelling::read`] does for a value that an operator writes. Hits over other protocols are compared as they come.
//!
//! Sources: RFC 3986, section 6.2.2 (percent-encoding, dot segments), RFC 9110, section 4.2.3 (hosts and ports), and the WHATWG's
//! host parser for names with other letters. Repeated slashes are one, as nginx and most applications read them.
//!
//! [`Spellings`] has the spelling of each key's values in checks, and makes the rules whose patterns have it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use url::Host;

use super::{Address, Condition, List, Operation, Pattern, Rule, network};

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

/// The reason why no check has a value or matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misspelling {
    /// The problem.
    pub what: String,
    /// Advice for correcting it.
    pub fix: String,
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

    /// Returns the one spelling of a value that a person has written.
    ///
    /// # Errors
    /// No check has the value.
    pub fn read(self, text: &str) -> Result<Cow<'_, str>, Misspelling> {
        let value = match self {
            Self::Method | Self::Host | Self::Address if text.contains('*') => None,
            Self::Method => read_method(text).map(Cow::from),
            Self::Path(_) | Self::Uri(_) => self.read_target(text).and_then(|target| self.normalize(target)),
            Self::Host => without_port(text).filter(|name| !name.contains(',')).and_then(host),
            Self::Address => match Address::parse(text) {
                Some(address) => Some(address.to_string().into()),
                None if text.is_empty() || network::is_nearly_address(text) => None,
                None => Some(text.into()),
            },
        };
        value.ok_or_else(|| self.misspelling())
    }

    /// Returns the error for a value that no check has, or a pattern that matches none, or all.
    fn misspelling(self) -> Misspelling {
        let (what, fix) = match self {
            Self::Method => ("it is not a method", "write one method, such as GET"),
            Self::Path(_) => (
                "it is not the path of a request",
                "write the path alone, such as /login or /a/*, without `..`; a pair with the source `uri` has the query, too",
            ),
            Self::Uri(_) => {
                ("it is not a path with a query", "write it as in /login?next=*, without scheme, host and `..`")
            }
            Self::Host => (
                "it is not the name of a host",
                "write one name alone, such as shop.example, without scheme, path and port; in a pattern with *, write other \
                 letters than a to z as xn--",
            ),
            Self::Address => (
                "it is not an address as checks have it, without port and brackets, in the standard notation",
                "write an address, such as 192.0.2.1, or the beginning of addresses, such as 192.0.2.*; for a network, write * \
                 and add the setting `networks`",
            ),
        };
        Misspelling { what: what.to_owned(), fix: fix.to_owned() }
    }

    /// Returns the patterns that match the normalized values of those that `pattern` matches.
    ///
    /// # Errors
    /// No normalized value matches, or all do.
    pub(super) fn of_pattern(self, pattern: &Pattern) -> Result<Vec<Pattern>, Misspelling> {
        let normal = match pattern {
            Pattern::Any => return Ok(vec![Pattern::Any]),
            Pattern::Literal(text) => return Ok(vec![Pattern::Literal(self.read(text)?.into_owned())]),
            Pattern::Glob(_) => self.read_glob(pattern.as_str()).ok_or_else(|| self.misspelling())?,
        };
        let first = Pattern::parse(&normal);
        if first == Pattern::Any {
            return Err(self.misspelling());
        }
        // A path below a directory includes the directory itself, whose slash is dropped.
        let (before, query) = normal.split_at(normal.find('?').unwrap_or(normal.len()));
        let directory = before.strip_suffix("/*").filter(|directory| !directory.is_empty());
        let more = match (self, directory) {
            (Self::Path(FinalSlash::Drop), Some(directory)) => vec![directory.to_owned()],
            (Self::Uri(FinalSlash::Drop), Some(directory)) if query.is_empty() => {
                vec![directory.to_owned(), format!("{directory}?*")]
            }
            (Self::Uri(FinalSlash::Drop), Some(directory)) => vec![format!("{directory}{query}")],
            _ => Vec::new(),
        };
        Ok([first].into_iter().chain(more.iter().map(|text| Pattern::parse(text))).collect())
    }

    fn read_glob(self, text: &str) -> Option<String> {
        match self {
            Self::Method => read_method(text),
            Self::Path(_) | Self::Uri(_) => {
                let target = self.read_target(text).filter(|target| can_be_path(target))?;
                self.normalize(target).map(Cow::into_owned)
            }
            Self::Host => host_glob(without_port(text)?),
            Self::Address => Some(text.to_ascii_lowercase()).filter(|text| is_address_glob(text)),
        }
    }

    /// Returns the path, with the query of a URI, and without a fragment.
    fn read_target(self, text: &str) -> Option<&str> {
        let (host, target) = split_target(text);
        let has_other_query = matches!(self, Self::Path(_)) && target.contains('?');
        (host.is_none() && !has_other_query).then_some(target)
    }
}

fn read_method(text: &str) -> Option<String> {
    // A method may have others, but none in use has, and `|` or a comma was meant to separate two.
    let is_method = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
    (!text.is_empty() && text.bytes().all(is_method)).then(|| text.to_ascii_uppercase())
}

/// Splits a target into the host of a URL, if it is one, and path and query. A fragment does not belong to a request.
pub fn split_target(target: &str) -> (Option<&str>, &str) {
    let target = target.split_once('#').map_or(target, |(before, _)| before);
    let is_scheme = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    };
    let Some((_, rest)) = target.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return (None, target);
    };
    let (authority, path) = rest.find(['/', '?']).and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (Some(host), path)
}

/// Returns whether paths of checks can match a path with `*`: it has no `..`, and no `*` in an encoded character, which leaves
/// a `%` that is encoded itself.
fn can_be_path(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let encoded = encode(path.as_bytes());
    encoded.contains("%25") == path.contains("%25") && encoded.split('/').all(|segment| segment != "..")
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
        let number = |[high, low]: [u8; 2]| u8::try_from(digit(high)? * 16 + digit(low)?).ok();
        let escaped = escaped.and_then(|(digits, after)| Some((number(*digits)?, after)));
        let (byte, stays, after) = match escaped {
            Some((byte, after)) => (byte, is_unreserved(byte), after),
            None => (*first, is_plain(*first) || *first == b'/', after),
        };
        match stays {
            true => encoded.push(byte.into()),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
        rest = after;
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
    let name = split_port(text).filter(|(_, port)| *port != "*").map_or(text, |(name, _)| name);
    match Host::parse(name.trim_end_matches('.')).ok()? {
        // An encoded dot may have been the last one.
        Host::Domain(name) => {
            Some(name.trim_end_matches('.').to_owned().into()).filter(|name: &Cow<str>| !name.is_empty())
        }
        Host::Ipv4(address) => Some(address.to_string().into()),
        Host::Ipv6(address) => Some(bracketed(Address::from(IpAddr::V6(address))).into()),
    }
}

/// Splits a host from its port, which may be `*` in a pattern.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let (name, port) = text.rsplit_once(':')?;
    let is_port = port == "*" || port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && (name.ends_with(']') || !name.contains(':'))).then_some((name, port))
}

/// Returns the host that a person has written, without a usual port. A check has none, so one port cannot have a rule.
fn without_port(text: &str) -> Option<&str> {
    match split_port(text) {
        None => Some(text),
        Some((name, port)) => matches!(port, "" | "*" | "80" | "443").then_some(name),
    }
}

/// Returns the one spelling of a pattern of hosts.
fn host_glob(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some(address) = lower.strip_prefix('[') {
        return is_address_glob(address.trim_end_matches(']')).then_some(lower);
    }
    let name = lower.trim_end_matches('.');
    let is_label_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_label_byte);
    name.split('.').all(is_label).then(|| name.to_owned())
}

/// Texts that the first `*` of a pattern of addresses may stand for. One of them completes each address, if any text does.
const COMPLETIONS: [&str; 27] = [
    "", "1", ".", ".1", "1.", ".1.", "1.1", ".1.1", "1.1.", ".1.1.", "1.1.1", ".1.1.1", "1.1.1.", ":", "::", ":1",
    "1:", "::1", "1::", "1::1", "1:1", "1:1:1", ":1:1", "1:1:", ":1:", ":1::", ":1:1:",
];

/// Returns whether an address in the standard notation, or another text that stands in its place, can match a pattern in small
/// letters.
fn is_address_glob(text: &str) -> bool {
    if text.contains(|c: char| !c.is_ascii_hexdigit() && !matches!(c, '.' | ':' | '*')) {
        return !network::is_nearly_address(&text.replace('*', "a"));
    }
    COMPLETIONS.iter().any(|part| {
        let text = text.replacen('*', part, 1).replace('*', "1");
        Address::parse(&text).is_some_and(|address| address.to_string() == text)
    })
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

/// The keys whose values checks normalize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spellings(Vec<(String, Spelling)>);

/// A pattern or an entry of a list that no normalized value matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSpelling {
    /// Line of the rule.
    pub line: usize,
    /// The rule's header.
    pub rule: String,
    /// The name of the list and the entry's line there, if it is in one.
    pub entry: Option<(String, u32)>,
    /// The problem.
    pub what: String,
    /// Advice for correcting it.
    pub fix: String,
}

impl Spellings {
    /// Returns the spelling of the key's values; `None` if they are compared as they come.
    pub fn of(&self, key: &str) -> Option<Spelling> {
        self.0.iter().rev().find(|(candidate, _)| candidate == key).map(|(_, spelling)| *spelling)
    }

    /// Returns the operation as a check has it.
    ///
    /// # Errors
    /// No check has one of the values.
    pub fn read(&self, operation: &Operation) -> Result<Operation, Misspelling> {
        let mut normalized = Operation::new();
        normalized.set_normalized();
        for (key, value) in operation.iter() {
            let value = self.of(key).map_or(Ok(Cow::Borrowed(value)), |spelling| spelling.read(value))?;
            normalized.set(key, &value);
        }
        Ok(normalized)
    }

    /// Returns the rules with the patterns that normalized values match; `None` if no pattern differs. A key may have several
    /// patterns then, and a value matches any of them.
    ///
    /// # Errors
    /// Patterns and entries that no normalized value matches.
    pub(super) fn normalize_rules(&self, rules: &[Rule]) -> Result<Option<Vec<Rule>>, Vec<UnknownSpelling>> {
        let (mut unknown, mut has_changed) = (Vec::new(), false);
        // Rules may share a list.
        let mut lists: HashMap<(*const List, Spelling), Option<Arc<List>>> = HashMap::new();
        let mut normalized = rules.to_vec();
        for rule in &mut normalized {
            let (line, header) = (rule.line, rule.to_string());
            let mut note = |entry, text: String, Misspelling { what, fix }| {
                let what = format!("{text} matches no check: {what}");
                unknown.push(UnknownSpelling { line, rule: header.clone(), entry, what, fix });
            };
            let mut operation = Vec::with_capacity(rule.operation.len());
            for (key, pattern) in &rule.operation {
                match self.of(key).map(|spelling| spelling.of_pattern(pattern)) {
                    None => operation.push((key.clone(), pattern.clone())),
                    Some(Ok(patterns)) => operation.extend(patterns.into_iter().map(|pattern| (key.clone(), pattern))),
                    Some(Err(misspelling)) => note(None, format!("{key}={pattern}"), misspelling),
                }
            }
            has_changed |= operation != rule.operation;
            rule.operation = operation;
            if let Some(Condition { field, members: list, .. }) = &mut rule.list
                && let Some(spelling) = self.of(field)
            {
                let known = lists.entry((Arc::as_ptr(list), spelling)).or_insert_with(|| {
                    list.normalize(spelling).unwrap_or_else(|wrong| {
                        for (line, entry, misspelling) in wrong {
                            note(
                                Some((list.name().unwrap_or_default().to_owned(), line)),
                                format!("{field}={entry}"),
                                misspelling,
                            );
                        }
                        None
                    })
                });
                if let Some(normalized) = known {
                    *list = Arc::clone(normalized);
                    has_changed = true;
                }
            }
        }
        if unknown.is_empty() { Ok(has_changed.then_some(normalized)) } else { Err(unknown) }
    }
}

impl FromIterator<(String, Spelling)> for Spellings {
    fn from_iter<I: IntoIterator<Item = (String, Spelling)>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spelling::FinalSlash;
    use super::super::testing::rule;
    use super::*;
    use crate::rules::testing::cases;
    use proptest::prelude::*;

    const PATH: Spelling = Spelling::Path(FinalSlash::Keep);

    fn normal(spelling: Spelling, value: &str) -> String {
        spelling.normalize(value).map_or("none".to_owned(), Cow::into_owned)
    }

    #[test]
    fn path_has_one_spelling() {
        let texts = "/login|//login|///login|/%6cogin|/%6Cogin|/./login|/x/../login|/../login|/x/%2e%2E/login|\
            /x//../login|/%2e/login|login|/a/b/../../login|/.//login|/lo%67in";
        for text in texts.split('|') {
            assert_eq!(normal(PATH, text), "/login", "{text}");
            assert_eq!(normal(Spelling::Path(FinalSlash::Drop), &format!("{text}/")), "/login", "{text}/");
            assert_eq!(normal(PATH, &format!("{text}/")), "/login/", "{text}/");
            assert_eq!(normal(PATH, &format!("{text}/.")), "/login/", "{text}/.");
        }
        let rows = " => /|/ => /|/.. => /|// => /|* => *|/a%2fb%3F => /a%2Fb%3F|/caf\u{e9} => /caf%C3%A9|\
            /caf%c3%a9 => /caf%C3%A9|/a b^c => /a%20b%5Ec|/100% => /100%25|/%zz%4 => /%25zz%254|/%%36f => /%256f|\
            /%256c => /%256c|/... => /...|/.well-known/x => /.well-known/x|/a;b=1,2 => /a;b=1,2";
        for (text, expected) in cases(rows) {
            assert_eq!(normal(PATH, text), expected, "{text}");
        }
        assert_eq!(normal(Spelling::Uri(FinalSlash::Keep), "//a/./b?c=/../d"), "/a/b?c=/../d");
    }

    #[test]
    fn host_method_and_address_have_one_spelling() {
        let texts = "shop.example|SHOP.example|shop.example:443|shop.example:80|shop.example.|Shop.Example.:8443|\
            shop.example:";
        for text in texts.split('|') {
            assert_eq!(normal(Spelling::Host, text), "shop.example", "{text}");
        }
        let rows = "[2001:DB8::1]:443 => [2001:db8::1]|2001:DB8::1 => [2001:db8::1]|192.0.2.1:80 => 192.0.2.1|\
            [::ffff:192.0.2.1] => 192.0.2.1|b\u{fc}cher.example => xn--bcher-kva.example|\
            XN--Bcher-KVA.example => xn--bcher-kva.example|shop example => none|a, b => none|\
            https://shop.example => none|user@shop.example => none";
        for (text, expected) in cases(rows) {
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
        for (spelling, rows) in [
            (
                PATH,
                "//x => /x|*.php => *.php|*/login => */login|/a/*/b/ => /a/*/b/|/caf\u{e9}/* => /caf%C3%A9/*|\
                /admin/* => /admin/*|/login#a => /login",
            ),
            (drop, "/admin/* => /admin/* /admin|/* => /*|/login/ => /login|/admin/*#a => /admin/* /admin"),
            (
                Spelling::Host,
                "*.Shop.example:443 => *.shop.example|*.1 => *.1|192.*.1 => 192.*.1|XN--* => xn--*|\
                [2001:DB8::* => [2001:db8::*|[2001:db8:*]:443 => [2001:db8:*]|\
                *.xn--bcher-kva.example => *.xn--bcher-kva.example|shop.*. => shop.*|\
                shop.example:* => shop.example|* => *",
            ),
            (Spelling::Uri(FinalSlash::Keep), "/admin/* => /admin/*|/search?q=* => /search?q=*"),
            (
                Spelling::Uri(FinalSlash::Drop),
                "/admin/* => /admin/* /admin /admin?*|/admin/*?x=* => /admin/*?x=* /admin?x=*|\
                /login/?* => /login?*",
            ),
            (Spelling::Method, "p* => P*"),
            (Spelling::Address, "2001:DB8::0:1 => 2001:db8::1|2001:DB8:* => 2001:db8:*"),
        ] {
            for (text, expected) in cases(rows) {
                assert_eq!(patterns(spelling, text), expected, "{text}");
            }
        }
    }

    #[test]
    fn value_or_pattern_that_no_check_has_is_an_error() {
        let others = [
            (Spelling::Method, "GET ;;GET,POST;GET POST;GET|POST;/login;GET, *"),
            (
                PATH,
                "/search?q=*;/search?q=1;https://shop.example/login;*/../x;/a/*/%2e%2e/b;/%2*;/a%*;*?x;*#a;/*/a/../b",
            ),
            (Spelling::Uri(FinalSlash::Drop), "https://shop.example/login;*/../x?y;/%2*?z;*/"),
            (
                Spelling::Host,
                "https://shop.example/;shop.example,b.example;a, b;b\u{fc}*.example;*.b\u{fc}cher.example;*:8443;*:443;*:*;\
                    shop.example:8443;[2001:db8::1]:8443;2001:db8:*;a..*;*/x;*@b;10.0.0.0/8;*,b;[2001:0db8:*;",
            ),
            (
                Spelling::Address,
                "10.0.0.0/8;10.1.2.3/8;10/8;10.0.0.0/255.0.0.0;192.0.2.7x;10.0.0.300;192.0.2;;::ffff:10.*;\
                    10.0.0.1, 10.0.0.2;192.0.2.*:443;2001:0db8:*;[2001:db8:*;64:ff9b::10.*;*/24;010.*;10.0.300.*;\
                    10.0.0.0.*;10.0.0.1-10.0.0.9;fe80::*%eth0;010.0.0.1;192.0.2.*x;not 10.0.0.1",
            ),
        ];
        for (spelling, texts) in others {
            for text in texts.split(';') {
                let found = spelling.of_pattern(&Pattern::parse(text));
                assert!(found.is_err(), "{spelling:?} {text}: {found:?}");
            }
        }
        for text in "unknown|unix:|un*|10.*|*.1|2001:db8:*|*::1|10.0.*.1|fe80:*:1|2001:db8:0:*|_a*|1*|10.*.*|*:*|2001:*:*|fe80*|10.1*1|1:2:3*:5:6:7:8".split('|') {
            assert!(Spelling::Address.of_pattern(&Pattern::parse(text)).is_ok(), "{text}");
        }
    }

    #[test]
    fn target_may_be_a_url() {
        for (target, host, rest) in [
            ("/login", None, "/login"),
            ("/login#1?x", None, "/login"),
            ("https://u:p@shop.example:443/login?next=/#a", Some("shop.example:443"), "/login?next=/"),
            ("http://shop.example", Some("shop.example"), ""),
            ("http://shop.example?a=/b", Some("shop.example"), "?a=/b"),
            ("/go?to=https://other.example/x", None, "/go?to=https://other.example/x"),
            ("*", None, "*"),
        ] {
            assert_eq!(split_target(target), (host, rest), "{target}");
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

    #[test]
    fn rules_change_only_if_a_pattern_does() {
        let spellings: Spellings =
            [("path".to_owned(), Spelling::Path(FinalSlash::Keep)), ("host".to_owned(), Spelling::Host)]
                .into_iter()
                .collect();
        let as_they_are = [rule("path=/a/* host=shop.example user=//x"), rule("")];
        assert_eq!(spellings.normalize_rules(&as_they_are), Ok(None));
        let changed = spellings.normalize_rules(&[rule("path=//a user=//x")]).unwrap().unwrap();
        assert_eq!(changed[0].to_string(), "path=/a user=//x");
        let unknown = spellings.normalize_rules(&[rule("host=a/b")]).unwrap_err();
        assert!(unknown[0].what.contains("host=a/b matches no check"), "{unknown:?}");
        assert!(spellings.read(&[("host", "a/b")].into_iter().collect()).is_err());
        let operation = [("host", "SHOP.example"), ("path", "//a"), ("user", "//b")].into_iter().collect();
        let read = spellings.read(&operation).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), [("host", "shop.example"), ("path", "/a"), ("user", "//b")]);
    }
}
