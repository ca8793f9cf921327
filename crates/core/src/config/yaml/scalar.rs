//! Scalars of YAML as yaml.v2 types them, the parser of ratelimit. It follows YAML 1.1: `yes` is a boolean, `010` is 8.

use std::borrow::Cow;

use granit_parser::{ScalarStyle, Tag};

/// A scalar: its text, and what its notation says about its type.
#[derive(Debug)]
pub struct Scalar<'a> {
    pub text: Cow<'a, str>,
    notation: Notation,
}

/// The type that the notation of a scalar asks for.
#[derive(Debug, Clone, Copy)]
enum Notation {
    /// Plain text without a tag: the spelling decides.
    Plain,
    /// A text in quotes or in a block, or one whose tag is unknown to yaml.v2.
    Text,
    Null,
    Bool,
    Int,
    Float,
}

/// A scalar's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// A whole number above [`i64::MAX`].
    Large(u64),
    Float(f64),
    Text(&'a str),
}

const YAML_TAGS: &str = "tag:yaml.org,2002:";

impl<'a> Scalar<'a> {
    /// Returns the scalar. `Err` with the tag's name if divvy does not read scalars with this tag.
    pub fn new(text: Cow<'a, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Self, String> {
        let suffix = tag.and_then(|tag| tag.suffix_in_namespace(YAML_TAGS));
        let notation = match (tag, suffix.as_deref()) {
            (None, _) if style == ScalarStyle::Plain => Notation::Plain,
            (_, Some("null")) => Notation::Null,
            (_, Some("bool")) => Notation::Bool,
            (_, Some("int")) => Notation::Int,
            (_, Some("float")) => Notation::Float,
            (_, Some(name @ ("binary" | "timestamp"))) => return Err(format!("!!{name}")),
            _ => Notation::Text,
        };
        Ok(Self { text, notation })
    }

    /// Returns the value. `None` if it does not have the type of its tag.
    pub fn value(&self) -> Option<Value<'_>> {
        let value = || by_spelling(&self.text);
        match self.notation {
            Notation::Plain => Some(value()),
            Notation::Text => Some(Value::Text(&self.text)),
            Notation::Null => Some(value()).filter(|value| *value == Value::Null),
            Notation::Bool => Some(value()).filter(|value| matches!(value, Value::Bool(_))),
            Notation::Int => Some(value()).filter(|value| matches!(value, Value::Int(_) | Value::Large(_))),
            Notation::Float => match value() {
                Value::Int(number) => Some(Value::Float(number as f64)),
                value => Some(value).filter(|value| matches!(value, Value::Float(_))),
            },
        }
    }

    /// Returns whether the scalar is the key that merges its value.
    pub fn is_merge_key(&self) -> bool {
        self.text == "<<" && matches!(self.notation, Notation::Plain)
    }
}

/// Returns the value of a plain scalar.
pub fn by_spelling(text: &str) -> Value<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        _ => number(text).unwrap_or(Value::Text(text)),
    }
}

/// Reads a number. Dates are texts to ratelimit, and no date is a number.
fn number(text: &str) -> Option<Value<'static>> {
    match text.bytes().next()? {
        b'.' => float(text),
        b'0'..=b'9' | b'+' | b'-' => {
            let digits = text.replace('_', "");
            let binary = || i64::from_str_radix(digits.strip_prefix("0b")?, 2).ok().map(Value::Int);
            int(&digits).or_else(|| float(&digits)).or_else(binary)
        }
        _ => None,
    }
}

/// Reads a whole number. A sign excludes [`Value::Large`].
fn int(text: &str) -> Option<Value<'static>> {
    if let Some(digits) = text.strip_prefix('-') {
        return 0_i64.checked_sub_unsigned(magnitude(digits)?).map(Value::Int);
    }
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number = magnitude(digits)?;
    let large = (digits == text).then_some(Value::Large(number));
    i64::try_from(number).ok().map(Value::Int).or(large)
}

const RADIXES: [(&str, u32); 7] = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8), ("0", 8)];

/// Reads digits, whose radix their prefix says.
fn magnitude(digits: &str) -> Option<u64> {
    // `from_str_radix` accepts another sign.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let prefixed = |(prefix, radix)| Some((digits.strip_prefix(prefix).filter(|digits| !digits.is_empty())?, radix));
    let (digits, radix) = RADIXES.into_iter().find_map(prefixed).unwrap_or((digits, 10));
    u64::from_str_radix(digits, radix).ok()
}

/// Reads a decimal number with a point, an exponent, neither or both.
fn float(text: &str) -> Option<Value<'static>> {
    // Otherwise `parse` accepts `inf`, too.
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number: f64 = is_decimal.then(|| text.parse().ok())??;
    number.is_finite().then_some(Value::Float(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_have_the_types_of_yaml_v2() {
        let large = Value::Large(9_223_372_036_854_775_808);
        for (texts, expected) in [
            (" ~ null Null NULL", Value::Null),
            ("y Y yes Yes YES true True TRUE on On ON", Value::Bool(true)),
            ("n N no No NO false False FALSE off Off OFF", Value::Bool(false)),
            ("8 +8 010 0o10 0O10 0x8 0X8 0b1000 0B1000 0b+1000 0_1_0 8_", Value::Int(8)),
            ("0 -0 +0 00 0x0", Value::Int(0)),
            ("-8 -010 -0x8 -0b1000 0b-1000", Value::Int(-8)),
            ("9223372036854775807 0x7fffffffffffffff", Value::Int(i64::MAX)),
            ("-9223372036854775808", Value::Int(i64::MIN)),
            ("9223372036854775808 0x8000000000000000", large),
            ("08 +08 8. 8.0 8e0 8E+0 80e-1 0.8e1 008 8_.0", Value::Float(8.0)),
            ("685_230.15 685230.15 6.8523015e+5", Value::Float(685_230.15)),
            (".5 +.5 .5e0 5e-1", Value::Float(0.5)),
            ("+9223372036854775808 9223372036854775808.0", Value::Float(9_223_372_036_854_775_808.0)),
            ("-9223372036854775809", Value::Float(-9_223_372_036_854_775_808.0)),
            (".inf .Inf .INF +.inf +.Inf +.INF", Value::Float(f64::INFINITY)),
            ("-.inf -.Inf -.INF", Value::Float(f64::NEG_INFINITY)),
        ] {
            for text in texts.split(' ') {
                assert_eq!(by_spelling(text), expected, "{text}");
            }
        }
        for text in [".nan", ".NaN", ".NAN"] {
            assert!(matches!(by_spelling(text), Value::Float(number) if number.is_nan()), "{text}");
        }
        let texts = "yEs nULL tRUE oN . - + -- ++5 -+5 0x 0x+5 0b 0o 0b12 0x_ _1 _ 1e 1e400 -.5e999 .5_0 .e5 1.2.3 inf nan NaN \
                     +inf 1:30 190:20:30 2001-01-01 2001-12-14t21:59:43.10-05:00 1,000 5m << = ١";
        for text in texts.split_whitespace() {
            assert_eq!(by_spelling(text), Value::Text(text), "{text}");
        }
    }

    #[test]
    fn tags_and_quotes_decide_before_the_spelling() {
        let value = |text: &'static str, style, tag: Option<&str>| {
            let tag = tag.map(|tag| match tag.strip_prefix("!!") {
                Some(name) => Tag::new(YAML_TAGS, name),
                None => Tag::new("!", tag.trim_start_matches('!')),
            });
            let scalar = Scalar::new(Cow::Borrowed(text), style, tag.as_ref())?;
            Ok::<_, String>(scalar.value().map(|value| format!("{value:?}")))
        };
        let (plain, quoted) = (ScalarStyle::Plain, ScalarStyle::DoubleQuoted);
        for (text, style, tag, expected) in [
            ("5", quoted, None, Some("Text(\"5\")")),
            ("", quoted, None, Some("Text(\"\")")),
            ("yes", ScalarStyle::Literal, None, Some("Text(\"yes\")")),
            ("1.10", plain, Some("!!str"), Some("Text(\"1.10\")")),
            ("5", plain, Some("!own"), Some("Text(\"5\")")),
            ("5", plain, Some("!"), Some("Text(\"5\")")),
            ("5", plain, Some("!!set"), Some("Text(\"5\")")),
            ("5", quoted, Some("!!int"), Some("Int(5)")),
            ("5", plain, Some("!!float"), Some("Float(5.0)")),
            ("yes", quoted, Some("!!bool"), Some("Bool(true)")),
            ("", plain, Some("!!null"), Some("Null")),
            ("5.0", plain, Some("!!int"), None),
            ("five", plain, Some("!!float"), None),
            ("1", plain, Some("!!bool"), None),
            ("0", plain, Some("!!null"), None),
        ] {
            assert_eq!(value(text, style, tag), Ok(expected.map(str::to_owned)), "{tag:?} {text}");
        }
        assert_eq!(value("eA==", plain, Some("!!binary")), Err("!!binary".to_owned()));
        assert_eq!(value("2001-01-01", plain, Some("!!timestamp")), Err("!!timestamp".to_owned()));
    }
}
