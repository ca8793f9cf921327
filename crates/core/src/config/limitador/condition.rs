//! Reads the conditions and variables of limits: the part of CEL that compares keys of the first descriptor with texts.
//!
//! A key is `descriptors[0]['key']` or `descriptors[0].key`, or its bare name as in limitador 1. The language is defined in
//! <https://github.com/google/cel-spec>. A parser of all of it is no help, because rules cannot say the rest.

use indexmap::IndexMap;

use crate::rules::Pattern;

/// The advice for a condition that cannot be read.
pub const ADVICE: &str = "a rule compares keys of `descriptors[0]` with texts without `*` or `\\`, by ==, in, startsWith, endsWith \
                          and contains, joined by &&; for != write a rule with `list = KEY: not FILE`";

/// A key, and patterns. Its value must match one of them.
pub type Test = (String, Vec<Pattern>);

/// Maximum number of patterns for one key.
const MAX_PATTERNS: usize = 256;
/// Maximum number of parentheses in each other.
const MAX_DEPTH: usize = 16;

/// Returns the tests that a condition requires; `None` if patterns cannot express it.
pub fn read(source: &str) -> Option<Vec<Test>> {
    Reader::read_all(source, Reader::any)
}

/// Returns the key that an expression consists of.
pub fn read_key(source: &str) -> Option<String> {
    Reader::read_all(source, Reader::key)
}

/// Adds tests to those that must be met already. `None` if patterns cannot express both.
pub fn require(keys: &mut IndexMap<String, Vec<Pattern>>, tests: Vec<Test>) -> Option<()> {
    for (key, patterns) in tests {
        if patterns.len() > MAX_PATTERNS {
            return None;
        }
        let known = keys.entry(key).or_insert_with(|| vec![Pattern::Any]);
        let mut both = Vec::new();
        for one in &*known {
            for other in &patterns {
                if one.contains(other) {
                    both.push(other.clone());
                } else if other.contains(one) {
                    both.push(one.clone());
                } else if one.overlaps(other) {
                    return None;
                }
            }
        }
        *known = without_overlaps(both)?;
    }
    Some(())
}

/// Removes patterns that others contain. `None` if a value may still match two.
fn without_overlaps(patterns: Vec<Pattern>) -> Option<Vec<Pattern>> {
    let mut kept: Vec<Pattern> = Vec::new();
    for pattern in patterns {
        if kept.iter().any(|other| other.contains(&pattern)) {
            continue;
        }
        kept.retain(|other| !pattern.contains(other));
        if kept.iter().any(|other| other.overlaps(&pattern)) {
            return None;
        }
        kept.push(pattern);
    }
    Some(kept)
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn read_all<T>(source: &'a str, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut reader = Self { rest: source, depth: 0 };
        let value = read(&mut reader)?;
        reader.rest.trim_start().is_empty().then_some(value)
    }

    fn take(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Reads alternatives, which must be about one key.
    fn any(&mut self) -> Option<Vec<Test>> {
        let mut tests = self.all()?;
        while self.take("||") {
            let more = self.all()?;
            let ([(key, patterns)], [(other, more)]) = (tests.as_mut_slice(), more.as_slice()) else { return None };
            if key != other {
                return None;
            }
            patterns.extend_from_slice(more);
        }
        Some(tests)
    }

    fn all(&mut self) -> Option<Vec<Test>> {
        let mut tests = self.one()?;
        while self.take("&&") {
            tests.extend(self.one()?);
        }
        Some(tests)
    }

    fn one(&mut self) -> Option<Vec<Test>> {
        if !self.take("(") {
            return Some(vec![self.test()?]);
        }
        self.depth += 1;
        let tests = if self.depth <= MAX_DEPTH { self.any()? } else { return None };
        self.depth -= 1;
        self.take(")").then_some(tests)
    }

    fn test(&mut self) -> Option<Test> {
        if let Some(text) = self.text() {
            return if self.take("==") { Some((self.key()?, vec![Pattern::Literal(text)])) } else { None };
        }
        let key = self.key()?;
        if self.take("==") {
            return Some((key, vec![Pattern::Literal(self.text()?)]));
        }
        if self.take("in") {
            let mut patterns = Vec::new();
            let mut is_open = self.take("[");
            while is_open {
                patterns.push(Pattern::Literal(self.text()?));
                is_open = self.take(",");
            }
            return (self.take("]")).then_some((key, patterns));
        }
        let (start, end) = [(".startsWith(", ("", "*")), (".endsWith(", ("*", "")), (".contains(", ("*", "*"))]
            .into_iter()
            .find_map(|(name, around)| self.take(name).then_some(around))?;
        let pattern = Pattern::parse(&format!("{start}{}{end}", self.text()?));
        self.take(")").then_some((key, vec![pattern]))
    }

    fn key(&mut self) -> Option<String> {
        let name = self.name()?;
        if matches!(name, "limit" | "limit.name" | "limit.id" | "true" | "false" | "null") {
            return None;
        }
        if name != "descriptors" {
            return Some(name.to_owned());
        }
        if !(self.take("[") && self.take("0") && self.take("]")) {
            return None;
        }
        if self.take(".") {
            return self.name().filter(|name| !name.contains('.')).map(str::to_owned);
        }
        let key = if self.take("[") { self.text()? } else { return None };
        (self.take("]") && !key.is_empty()).then_some(key)
    }

    /// Reads a name, with dots but without the name of a function at its end.
    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c))).unwrap_or(rest.len());
        let (mut name, after) = rest.split_at_checked(end)?;
        if after.starts_with('(') {
            name = name.rsplit_once('.')?.0;
        }
        self.rest = rest.get(name.len()..)?;
        name.split('.').all(|part| part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')).then_some(name)
    }

    /// Reads a text in quotes that means the same in a rule.
    fn text(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|c| "'\"".contains(*c))?;
        let (text, after) = rest.get(1..)?.split_once(quote)?;
        self.rest = after;
        (!text.contains(['*', '\\', '\n'])).then(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::cases;

    /// Returns the keys with their patterns, or `-`.
    fn read_conditions(conditions: &str) -> String {
        let mut keys = IndexMap::new();
        let mut require_all = || conditions.split(';').try_for_each(|source| require(&mut keys, read(source)?));
        if require_all().is_none() {
            return "-".to_owned();
        }
        let texts = |patterns: &[Pattern]| patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join("/");
        keys.iter().map(|(key, patterns)| format!("{key}={}", texts(patterns))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn conditions_become_pairs() {
        for (conditions, pairs) in [
            ("descriptors[0]['method'] == 'GET'", "method=GET"),
            (r#" descriptors [ 0 ] [ "req.method" ]=="GET" "#, "req.method=GET"),
            ("descriptors[0].method == 'GET'", "method=GET"),
            ("'GET' == descriptors[0].method", "method=GET"),
            ("req.method == \"it's\"", "req.method=it's"),
            ("limit.all__1da6e70a == '1'", "limit.all__1da6e70a=1"),
            ("a == ''", "a="),
            ("a == 'x' && (b == 'y' && c == 'z')", "a=x b=y c=z"),
            ("a == 'x';b == 'y'", "a=x b=y"),
            ("a in ['x', 'y']", "a=x/y"),
            ("a == 'x' || a == 'y' || 'z' == a", "a=x/y/z"),
            ("(a == 'x' || a == 'y') && b in ['z']", "a=x/y b=z"),
            ("a.startsWith('/v1/')", "a=/v1/*"),
            ("descriptors[0].a.endsWith('.png')", "a=*.png"),
            ("descriptors[0]['a'].contains('x')", "a=*x*"),
            ("a.b.contains('x')", "a.b=*x*"),
            ("a in ['/v1/x', '/v2'];a.startsWith('/v1')", "a=/v1/x"),
            ("a == 'x' && a == 'x'", "a=x"),
            ("a == 'x';a == 'y'", "a="),
            ("a in ['x', 'x']", "a=x"),
        ] {
            assert_eq!(read_conditions(conditions), pairs, "{conditions}");
        }
    }

    #[test]
    fn other_conditions_are_not_read() {
        for conditions in [
            "",
            "a != 'x'",
            "a == 1",
            "a == b",
            "!(a == 'x')",
            "true",
            "true == 'x'",
            "a",
            "a ==",
            "a == 'x' &&",
            "a == 'x' b",
            "a == 'x",
            "(a == 'x'",
            "a == 'x')",
            "a > 'x'",
            "'x' in a",
            "a in 'x'",
            "a in ['x'",
            "a in ['x',]",
            "a.matches('x')",
            "a.startsWith('x'",
            "size(a) == 1",
            "a == 'x' ? true : false",
            "a == 'x*'",
            r"a == 'x\n'",
            "a == '''x'''",
            "a == r'x'",
            "a..b == 'x'",
            "1a == 'x'",
            "a-b == 'x'",
            "descriptors[1].a == 'x'",
            "descriptors[0] == 'x'",
            "descriptors == 'x'",
            "descriptors[0].a.b == 'x'",
            "descriptors[0][''] == 'x'",
            "limit.name == 'x'",
            "limit.id == 'x'",
            // Rules cannot say that one of two keys is enough.
            "a == 'x' || b == 'y'",
            "a == 'x' || a == 'y' && b == 'z'",
            // A value may match both, and a rule has one pattern for a key.
            "a.startsWith('x');a.endsWith('y')",
            "a.startsWith('x') || a.endsWith('y')",
        ] {
            assert_eq!(read_conditions(conditions), "-", "{conditions}");
        }
        assert_eq!(read_conditions(&format!("{}a == 'x'", "(".repeat(1_000_000))), "-");
        let texts: Vec<_> = (0..257).map(|number| format!("'{number}'")).collect();
        assert_eq!(read_conditions(&format!("a in [{}]", texts.join(","))), "-");
    }

    #[test]
    fn variables_are_keys() {
        for (source, key) in
            cases("descriptors[0]['user_id'] => user_id|descriptors[0].user => user|user.id => user.id| user  => user")
        {
            assert_eq!(read_key(source).as_deref(), Some(key), "{source}");
        }
        for source in ["", "'a'", "a + b", "descriptors[1].a", "descriptors[0].a.b", "string(a)", "a == 'x'", "1"] {
            assert_eq!(read_key(source), None, "{source}");
        }
    }
}
