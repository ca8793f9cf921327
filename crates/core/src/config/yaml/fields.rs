//! Mappings with known keys only, so that nothing with a meaning is overlooked.

use super::scalar::Value;
use super::{Content, Node, pairs};
use crate::suggestion::{list, nearest};

/// A part of a file that is left out, and why.
#[derive(Debug)]
pub struct LeftOut {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub what: String,
    /// The advice for correcting it.
    pub fix: String,
}

impl LeftOut {
    /// Returns the reason to leave out what is on this line.
    pub fn new(line: usize, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { line, what: what.into(), fix: fix.into() }
    }
}

/// Returns the values of these keys in a mapping, each unless it is missing or null.
///
/// # Errors
/// The node is no mapping, or has another key or one twice.
pub fn fields<'n, 'a, const N: usize>(
    node: &'n Node<'a>,
    keys: [&str; N],
) -> Result<[Option<&'n Node<'a>>; N], LeftOut> {
    let expected = || list(&keys.map(|key| format!("`{key}`")), "and");
    let Content::Mapping(items) = node.content() else {
        return Err(LeftOut::new(node.line, "this is not a mapping", format!("its keys are {}", expected())));
    };
    let mut values = [None; N];
    for [key, value] in pairs(items) {
        let name = key.scalar().map_or("", |scalar| &*scalar.text);
        let Some((_, field)) = keys.iter().zip(&mut values).find(|(known, _)| **known == name) else {
            let fix = nearest(name, &keys).map_or_else(
                || format!("remove it: the keys are {}", expected()),
                |known| format!("write `{known}`, or remove it"),
            );
            return Err(LeftOut::new(key.line, format!("`{name}` is an unknown key"), fix));
        };
        if field.replace(value).is_some() {
            return Err(LeftOut::new(key.line, format!("`{name}` is there twice"), "remove one of them"));
        }
    }
    Ok(values.map(|value| value.filter(|value| !value.is_null())))
}

/// Returns the value of a key that `node` must have.
///
/// # Errors
/// It is missing.
pub fn required<'n, 'a>(node: &Node<'_>, key: &str, value: Option<&'n Node<'a>>) -> Result<&'n Node<'a>, LeftOut> {
    value.ok_or_else(|| LeftOut::new(node.line, format!("`{key}` is missing"), "add it"))
}

/// Returns a text as it is written.
///
/// # Errors
/// The node is no scalar.
pub fn text<'n>(node: &'n Node<'_>) -> Result<&'n str, LeftOut> {
    let text = node.scalar().map(|scalar| &*scalar.text);
    text.ok_or_else(|| LeftOut::new(node.line, "this is not a text", "write one"))
}

/// Returns a whole number that is not negative.
///
/// # Errors
/// The node is something else, or parsers of YAML disagree about its value.
pub fn number(node: &Node<'_>) -> Result<u64, LeftOut> {
    let scalar = node.scalar();
    let number = match scalar.and_then(super::scalar::Scalar::value) {
        Some(Value::Int(number)) => u64::try_from(number).ok(),
        Some(Value::Large(number)) => Some(number),
        _ => None,
    };
    let is_plain = |number: &u64| scalar.is_some_and(|scalar| scalar.text == number.to_string());
    let no_number = || LeftOut::new(node.line, "this is not a whole number", "write one in digits, without quotes");
    number.filter(is_plain).ok_or_else(no_number)
}

/// Returns the items of a list. A missing list has no items.
///
/// # Errors
/// The node is no list.
pub fn items<'n, 'a>(node: Option<&'n Node<'a>>) -> Result<&'n [Node<'a>], LeftOut> {
    match node {
        Some(node) if !matches!(node.content(), Content::Sequence(_)) => {
            Err(LeftOut::new(node.line, "this is not a list", "write one"))
        }
        node => Ok(node.map(Node::items).unwrap_or_default()),
    }
}
