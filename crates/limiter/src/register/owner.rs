//! The owners of exceptions, which are rules or fields of requests, and the actors of each as stores keep them.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::store::ExceptionKind;
use divvy_core::rules::{Network, NetworkError};

/// The name that stands for all rules.
pub const ALL_RULES: &str = "*";

/// Where an exception is kept. Its text in stores is `limit:LABEL`, `block:LABEL`, `block:*/FIELD/`, `block:*/FIELD/PREFIX`,
/// or the same with `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExceptionOwner<'a> {
    pub kind: ExceptionKind,
    pub of: OwnerName<'a>,
}

/// The rule of an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerName<'a> {
    /// One rule, by its label.
    Rule(&'a str),
    /// All rules. The block or the allow is about this field of requests, and about networks with this length of prefix,
    /// or other values.
    Field(&'a str, Option<u8>),
}

/// A class of exceptions with a bound of its own on their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Limits,
    /// Blocks and allows.
    Overrides,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limits => "limits of actors",
            Self::Overrides => "blocks and allows",
        })
    }
}

impl Class {
    /// Returns the class of an owner, by its text.
    pub fn of(owner: &str) -> Self {
        match ExceptionKind::split_owner(owner) {
            Some((ExceptionKind::Limit, _)) => Self::Limits,
            _ => Self::Overrides,
        }
    }
}

impl fmt::Display for ExceptionOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name();
        match self.of {
            OwnerName::Rule(label) => write!(f, "{kind}:{label}"),
            OwnerName::Field(field, None) => write!(f, "{kind}:{ALL_RULES}/{field}/"),
            OwnerName::Field(field, Some(prefix)) => write!(f, "{kind}:{ALL_RULES}/{field}/{prefix}"),
        }
    }
}

impl<'a> ExceptionOwner<'a> {
    /// Returns the owner of one rule's exceptions.
    pub fn of_rule(kind: ExceptionKind, label: &'a str) -> Self {
        Self { kind, of: OwnerName::Rule(label) }
    }

    /// Reads the text of an owner.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (kind, of) = ExceptionKind::split_owner(text)?;
        let field = of.strip_prefix(ALL_RULES).filter(|_| kind != ExceptionKind::Limit);
        let Some(field) = field else { return Some(Self::of_rule(kind, of)) };
        let (field, prefix) = field.strip_prefix('/')?.rsplit_once('/')?;
        let prefix = if prefix.is_empty() { None } else { Some(prefix.parse().ok()?) };
        Some(Self { kind, of: OwnerName::Field(field, prefix) })
    }

    /// Returns the value or the network for people, for an actor that is stored under this owner.
    pub fn shown<'b>(&self, actor: &'b str) -> Option<Cow<'b, str>> {
        let OwnerName::Field(_, Some(prefix)) = self.of else { return Some(Cow::Borrowed(actor)) };
        Some(Network::of(first_address(actor)?.into(), prefix).to_string().into())
    }
}

/// Returns the owner and the actor of a block or an allow of all rules for `field=value`, as stores keep them. The actor is the
/// first address of a network in hexadecimal digits, which is quick to write, or any other value as it is.
///
/// # Errors
/// The value is a network that is not in canonical form.
pub fn place_of<'a>(
    kind: ExceptionKind,
    field: &'a str,
    value: &str,
) -> Result<(ExceptionOwner<'a>, String), NetworkError> {
    let (prefix, value) = match Network::parse(value) {
        Ok(network) => {
            let (bits, digits) = (network.first().bits(), usize::from(network.first().length()) / 4);
            (Some(network.prefix()), format!("{bits:0digits$x}"))
        }
        Err(NetworkError::NoAddress) => (None, value.to_owned()),
        Err(error) => return Err(error),
    };
    Ok((ExceptionOwner { kind, of: OwnerName::Field(field, prefix) }, value))
}

/// The prefix of a single IPv4 address. Networks of IPv6 can have the same one.
pub const IPV4: u8 = 32;

/// Turns the text of an actor in stores into the bytes for look-ups by requests.
pub type Sought = fn(&str) -> Cow<'_, [u8]>;

/// Returns how requests look up the actors of an owner: single IPv4 addresses by their usual text, networks by their bits, and
/// others as they are stored.
pub fn sought(owner: &str) -> Sought {
    match ExceptionOwner::parse(owner).map(|owner| owner.of) {
        Some(OwnerName::Field(_, Some(IPV4))) => |actor| match first_address(actor) {
            Some(IpAddr::V4(address)) => address.to_string().into_bytes().into(),
            _ => address_bits(actor),
        },
        Some(OwnerName::Field(_, Some(_))) => address_bits,
        _ => |actor| actor.as_bytes().into(),
    }
}

fn address_bits(actor: &str) -> Cow<'_, [u8]> {
    match first_address(actor) {
        Some(IpAddr::V4(address)) => address.octets().to_vec().into(),
        Some(IpAddr::V6(address)) => address.octets().to_vec().into(),
        None => actor.as_bytes().into(),
    }
}

/// Returns the first address of a network, from its digits.
fn first_address(digits: &str) -> Option<IpAddr> {
    match digits.len() {
        8 => Some(Ipv4Addr::from_bits(u32::from_str_radix(digits, 16).ok()?).into()),
        32 => Some(Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_read_as_it_was_written() {
        for of in [OwnerName::Rule("api"), OwnerName::Field("ip", Some(24)), OwnerName::Field("a/b:c", None)] {
            for kind in [ExceptionKind::Block, ExceptionKind::Allow] {
                let owner = ExceptionOwner { kind, of };
                assert_eq!(ExceptionOwner::parse(&owner.to_string()), Some(owner));
            }
        }
        // No limit is of all rules.
        for label in ["api", "*/ip/24"] {
            let owner = ExceptionOwner::of_rule(ExceptionKind::Limit, label);
            assert_eq!(ExceptionOwner::parse(&owner.to_string()), Some(owner));
        }
        for text in ["", "api", "deny:api", "block:*", "block:*/ip", "block:*/ip/x", "block:*/ip/256"] {
            assert_eq!(ExceptionOwner::parse(text), None, "{text}");
        }
    }

    #[test]
    fn network_must_be_canonical_and_other_values_stay() {
        for (value, stored, shown) in [
            ("10.0.0.0/8", "block:*/ip/8 0a000000", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "block:*/ip/32 0a000001", "10.0.0.1"),
            ("2001:db8::/32", "block:*/ip/32 20010db8000000000000000000000000", "2001:db8::/32"),
            ("::1", "block:*/ip/128 00000000000000000000000000000001", "::1"),
            ("a/b", "block:*/ip/ a/b", "a/b"),
        ] {
            let (owner, actor) = place_of(ExceptionKind::Block, "ip", value).unwrap();
            assert_eq!(format!("{owner} {actor}"), stored);
            assert_eq!(owner.shown(&actor).as_deref(), Some(shown));
        }
        assert!(place_of(ExceptionKind::Block, "ip", "10.0.0.1/8").is_err());
    }
}
