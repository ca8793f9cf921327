//! IP addresses as gateways write them, compared by their bits.
//!
//! A gateway may add a port (`192.0.2.1:443`, `[2001:db8::1]:443`), brackets or a zone (`fe80::1%eth0`), and may write an
//! IPv4 address as IPv6: mapped (`::ffff:192.0.2.1`) or translated by NAT64 (`64:ff9b::192.0.2.1`). All of these are the
//! same address here. Ports and zones are checked, and then ignored.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// The prefix of addresses that NAT64 translates (RFC 6052), as its upper 96 bits.
const NAT64: u128 = 0x0064_ff9b << 64;
/// The prefix of IPv4 addresses that are written as IPv6, as its upper 96 bits.
const MAPPED: u128 = 0xffff;

/// An IP address, without port and zone. IPv4 addresses are IPv4, however they were written. Displays as the standard text
/// (RFC 5952).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(IpAddr);

impl Address {
    /// Parses an address as gateways write it; `None` if the text is not an address.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_bytes(text.as_bytes())
    }

    /// Like [`Address::parse`], for a value of a request.
    // The standard library's parser takes several times as many instructions.
    pub(crate) fn parse_bytes(value: &[u8]) -> Option<Self> {
        // No IPv6 address begins with an IPv4 address.
        if let Some((bits, after)) = split_v4(value) {
            return (after.is_empty() || is_port(after)).then_some(Self(IpAddr::V4(bits.into())));
        }
        let Some(bracketed) = value.strip_prefix(b"[") else { return parse_v6_with_zone(value) };
        let (address, after) = split_once(bracketed, b']');
        let after = after?;
        (after.is_empty() || is_port(after)).then(|| parse_v6_with_zone(address))?
    }

    /// Returns an IPv6 address as it is, even if it contains an IPv4 address: the first address of a network.
    pub(super) fn from_v6(address: Ipv6Addr) -> Self {
        Self(IpAddr::V6(address))
    }

    /// Returns whether it is an IPv4 address.
    pub fn is_v4(self) -> bool {
        self.0.is_ipv4()
    }

    /// Returns its number of bits: 32 or 128.
    pub fn length(self) -> u8 {
        if self.is_v4() { 32 } else { 128 }
    }

    /// Returns its bits as a number, an IPv4 address in the lower 32.
    pub fn bits(self) -> u128 {
        match self.0 {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        }
    }

    /// Returns the address of the same family with other bits. Bits beyond the family's length are ignored.
    pub(super) fn with_bits(self, bits: u128) -> Self {
        match self.0 {
            IpAddr::V4(_) => Self(IpAddr::V4(Ipv4Addr::from_bits(bits as u32))),
            IpAddr::V6(_) => Self(IpAddr::V6(Ipv6Addr::from_bits(bits))),
        }
    }

    /// Appends the text that [`Display`](fmt::Display) shows.
    // Formatting takes three times as many instructions: 1,376 and not 405 for 2001:db8:1:200::.
    pub fn write(self, out: &mut Vec<u8>) {
        match self.0 {
            IpAddr::V4(v4) => write_v4(v4, out),
            IpAddr::V6(v6) => write_v6(v6, out),
        }
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self(address),
            IpAddr::V6(v6) => match v6.to_bits() >> 32 {
                MAPPED | NAT64 => Self(IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32))),
                _ => Self(address),
            },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses an IPv6 address, perhaps with a zone.
fn parse_v6_with_zone(value: &[u8]) -> Option<Address> {
    let (address, zone) = split_once(value, b'%');
    let bits = zone.is_none_or(is_zone).then(|| parse_v6(address))??;
    Some(Address::from(IpAddr::V6(bits.into())))
}

/// Parses four decimal numbers without leading zeros.
fn parse_v4(text: &[u8]) -> Option<u32> {
    split_v4(text).filter(|(_, after)| after.is_empty()).map(|(bits, _)| bits)
}

/// Parses the four decimal numbers at the start of a text. Returns the text after them, too.
fn split_v4(text: &[u8]) -> Option<(u32, &[u8])> {
    let (first, rest) = split_octet(text)?;
    let (second, rest) = split_octet(rest.strip_prefix(b".")?)?;
    let (third, rest) = split_octet(rest.strip_prefix(b".")?)?;
    let (fourth, rest) = split_octet(rest.strip_prefix(b".")?)?;
    Some((u32::from_be_bytes([first, second, third, fourth]), rest))
}

/// Parses the number at the start of a text: up to three digits, at most 255, and no leading zero.
// Written out, because a loop takes one and a half times as many instructions.
#[inline(always)]
fn split_octet(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| Some(u32::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10);
    let (ones, rest) = text.split_first()?;
    let first = digit(*ones)?;
    let Some((second, after)) = rest.split_first().and_then(|(byte, after)| Some((digit(*byte)?, after))) else {
        return Some((first as u8, rest));
    };
    if first == 0 {
        return None;
    }
    let number = first * 10 + second;
    let Some((third, after_third)) = after.split_first().and_then(|(byte, after)| Some((digit(*byte)?, after))) else {
        return Some((number as u8, after));
    };
    u8::try_from(number * 10 + third).ok().map(|number| (number, after_third))
}

/// Parses groups of up to four hexadecimal digits. The last two groups may be an IPv4 address.
fn parse_v6(text: &[u8]) -> Option<u128> {
    const GROUPS: u32 = 8;
    let (mut bits, mut groups, mut rest) = (0_u128, 0_u32, text);
    // The number of groups before `::`.
    let mut gap = None;
    if let Some(after) = rest.strip_prefix(b"::") {
        (gap, rest) = (Some(0), after);
    }
    while !rest.is_empty() && groups < GROUPS {
        let (mut group, mut digits) = (0_u32, 0);
        while let Some(digit) = rest.get(digits).and_then(|byte| char::from(*byte).to_digit(16)) {
            group = group << 4 | digit;
            digits += 1;
            if digits > 4 {
                return None;
            }
        }
        let after = rest.get(digits..).unwrap_or_default();
        if after.first() == Some(&b'.') {
            (bits, groups, rest) = (bits << 32 | u128::from(parse_v4(rest)?), groups + 2, &[]);
            break;
        }
        if digits == 0 {
            return None;
        }
        (bits, groups) = (bits << 16 | u128::from(group), groups + 1);
        rest = match after {
            [b':', b':', more @ ..] if gap.is_none() => {
                gap = Some(groups);
                more
            }
            [] => &[],
            [b':', more @ ..] if !more.is_empty() => more,
            _ => return None,
        };
    }
    let Some(before) = gap else { return (groups == GROUPS && rest.is_empty()).then_some(bits) };
    // `::` stands for one group or more.
    let after = groups - before;
    let low = bits & ((1 << (16 * after.min(GROUPS - 1))) - 1);
    let high = (bits >> (16 * after.min(GROUPS - 1))).checked_shl(16 * (GROUPS - before)).unwrap_or(0);
    (groups < GROUPS && rest.is_empty()).then_some(high | low)
}

/// Appends four decimal numbers.
fn write_v4(address: Ipv4Addr, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    for (index, octet) in address.octets().into_iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(digits.format(octet).as_bytes());
    }
}

/// Appends groups of hexadecimal digits, with `::` in place of the first of the longest runs of zeros (RFC 5952).
fn write_v6(address: Ipv6Addr, out: &mut Vec<u8>) {
    let groups = address.segments();
    let gap = longest_zeros(&groups);
    for (index, group) in groups.into_iter().enumerate() {
        if gap.contains(&index) {
            if index == gap.start {
                out.extend_from_slice(b"::");
            }
            continue;
        }
        if index > 0 && index != gap.end {
            out.push(b':');
        }
        let digits = (u16::BITS - group.leading_zeros()).div_ceil(4).max(1);
        let digit = |place: u32| char::from_digit(u32::from(group) >> (4 * place) & 0xf, 16);
        out.extend((0..digits).rev().filter_map(digit).map(|digit| digit as u8));
    }
}

/// Returns the first of the longest runs of at least two groups that are zero.
fn longest_zeros(groups: &[u16]) -> Range<usize> {
    let (mut longest, mut run) = (0..0, 0..0);
    for (index, group) in groups.iter().enumerate() {
        run = if *group > 0 { index + 1..index + 1 } else { run.start..index + 1 };
        if run.len() > longest.len().max(1) {
            longest = run.clone();
        }
    }
    longest
}

/// Splits at the first `separator`. The second part is `None` if there is no separator.
fn split_once(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(separator, text) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    }
}

/// Returns whether a text is a colon and a port.
fn is_port(text: &[u8]) -> bool {
    let Some(port) = text.strip_prefix(b":") else { return false };
    let number = port.iter().try_fold(0_u32, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0')).filter(|number| *number <= 65_535)
    });
    !port.is_empty() && number.is_some()
}

/// Returns whether the text is the name or the number of a network interface.
fn is_zone(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'%'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Option<String> {
        assert_eq!(Address::parse(text), Address::parse_bytes(text.as_bytes()), "{text}");
        Address::parse(text).map(|address| address.to_string())
    }

    #[test]
    fn address_is_the_same_in_every_notation() {
        let texts = "192.0.2.1|192.0.2.1:443|::ffff:192.0.2.1|::FFFF:c000:201|0:0:0:0:0:ffff:192.0.2.1|\
            [::ffff:192.0.2.1]:0|64:ff9b::192.0.2.1|[64:ff9b::c000:201]|::ffff:192.0.2.1%eth0";
        for text in texts.split('|') {
            assert_eq!(address(text).as_deref(), Some("192.0.2.1"), "{text}");
        }
        let texts = "2001:db8::1|2001:DB8:0:0::1|[2001:db8::1]|[2001:db8::1]:65535|2001:db8::1%eth0.100|\
            [2001:db8::1%25eth-0_a]:80";
        for text in texts.split('|') {
            assert_eq!(address(text).as_deref(), Some("2001:db8::1"), "{text}");
        }
        assert_eq!(address("::").as_deref(), Some("::"));
        assert_eq!(address("::1.2.3.4").as_deref(), Some("::102:304"));
        assert_eq!(address("::1:80").as_deref(), Some("::1:80"), "without brackets it is no port");
        assert_eq!(address("64:ff9b:1::c000:201").as_deref(), Some("64:ff9b:1::c000:201"), "another prefix");
    }

    #[test]
    fn other_text_is_no_address() {
        let others = "|-|unknown|unix:|1|1.2.3|1.2.3.4.5|1.2.3.256|01.2.3.4|0x7f.0.0.1|1.2.3.4:|1.2.3.4:65536|1.2.3.4:+80|\
            1.2.3.4:80:80|1.2.3.4%eth0|[1.2.3.4]|[1.2.3.4]:80|1.2.3.4/32| 1.2.3.4|1.2.3.4 |1.2.3.4, 5.6.7.8|[::1|::1]|[::1]80|\
            [::1]:|[::1]:x|::1%|::1%a b|::1%a/b|:::|1::2::3|12345::|::g|[]|[]:80|::ffff:1.2.3|1:2:3:4:5:6:7:8:9|.1.2.3|é.1.2.3";
        for text in others.split('|') {
            assert_eq!(address(text), None, "{text}");
        }
        assert_eq!(Address::parse_bytes(&[b'1', 0xff]), None);
    }

    proptest! {
        #[test]
        fn display_parses_to_the_same_address(bits: u128, v4: u32) {
            let addresses = [Address::from(IpAddr::V6(bits.into())), Address::from(IpAddr::V4(v4.into()))];
            for address in addresses {
                let text = address.to_string();
                prop_assert_eq!(Address::parse(&text), Some(address));
                let bracketed = if address.is_v4() { format!("{text}:80") } else { format!("[{text}%eth0]:80") };
                prop_assert_eq!(Address::parse_bytes(bracketed.as_bytes()), Some(address));
                prop_assert_eq!(address.with_bits(address.bits()), address);
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in "[0-9a-f:.%\\[\\]é]{0,20}") {
            if let Some(address) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(&address.to_string()), Some(address));
            }
        }

        /// Texts near the border between addresses and others.
        #[test]
        fn addresses_are_those_of_the_standard_library(
            v6 in "(::)?([0-9a-fA-F]{0,5}(:|::)){0,9}([0-9a-f]{0,4}|[0-9.]{0,9}|[0-9]{1,3}(\\.[0-9]{1,3}){3})",
            v4 in "[0-9]{1,3}(\\.[0-9]{1,3}){2,4}|[0-9.]{1,9}",
        ) {
            let expected = v6.parse().ok().map(|address: Ipv6Addr| address.to_bits());
            prop_assert_eq!(parse_v6(v6.as_bytes()), expected, "{}", v6);
            let expected = v4.parse().ok().map(|address: Ipv4Addr| address.to_bits());
            prop_assert_eq!(parse_v4(v4.as_bytes()), expected, "{}", v4);
        }

        #[test]
        fn every_address_is_read_and_written_as_by_the_standard_library(bits: u128, zeros in prop::collection::vec(0..8_u32, 0..7), v4: u32) {
            let bits = zeros.iter().fold(bits, |bits, group| bits & !(0xffff << (16 * group)));
            prop_assert_eq!(parse_v6(Ipv6Addr::from_bits(bits).to_string().as_bytes()), Some(bits));
            prop_assert_eq!(parse_v4(Ipv4Addr::from_bits(v4).to_string().as_bytes()), Some(v4));
            for address in [IpAddr::V6(bits.into()), IpAddr::V4(v4.into())].map(Address::from) {
                let mut written = Vec::new();
                address.write(&mut written);
                prop_assert_eq!(String::from_utf8(written).unwrap(), address.to_string());
            }
        }
    }
}
