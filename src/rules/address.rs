//! IP addresses as gateways write them, compared by their bits.
//!
//! A gateway may add a port (`192.0.2.1:443`, `[2001:db8::1]:443`), brackets or a zone (`fe80::1%eth0`), and may write an
//! IPv4 address as IPv6: mapped (`::ffff:192.0.2.1`) or translated by NAT64 (`64:ff9b::192.0.2.1`). All of these are the
//! same address here. Ports and zones are checked, and then ignored.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix of addresses that NAT64 translates (RFC 6052), as its upper 96 bits.
const NAT64: u128 = 0x0064_ff9b << 64;
/// The prefix of IPv4 addresses that are written as IPv6, as its upper 96 bits.
const MAPPED: u128 = 0xffff;

/// An IP address, without port and zone. IPv4 addresses are IPv4, however they were written. Displays as the standard text
/// (RFC 5952).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(IpAddr);

impl Address {
    /// Parses an address as gateways write it; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        // An IPv4 address has no colon, and contains a dot among its first four bytes.
        if text.bytes().take(4).any(|byte| byte == b'.') {
            let (address, port) = text.split_once(':').map_or((text, None), |(address, port)| (address, Some(port)));
            return (port.is_none_or(is_port)).then(|| address.parse().ok().map(|v4| Self(IpAddr::V4(v4))))?;
        }
        let Some(bracketed) = text.strip_prefix('[') else { return parse_v6(text) };
        let (address, after) = bracketed.split_once(']')?;
        let is_valid_end = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        is_valid_end.then(|| parse_v6(address))?
    }

    /// Like [`Address::parse`], for a value of a request.
    pub fn parse_bytes(value: &[u8]) -> Option<Self> {
        // Most values are no addresses, and the length or the first byte shows it.
        const MAX_LENGTH: usize = 128;
        let is_possible = |first: &u8| first.is_ascii_hexdigit() || matches!(first, b':' | b'[');
        (value.len() <= MAX_LENGTH && value.first().is_some_and(is_possible))
            .then(|| str::from_utf8(value).ok().and_then(Self::parse))?
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
fn parse_v6(text: &str) -> Option<Address> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse().ok().map(|v6: Ipv6Addr| Address::from(IpAddr::V6(v6)))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Returns whether the text is the name or the number of a network interface.
fn is_zone(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'%'))
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
        for text in [
            "192.0.2.1",
            "192.0.2.1:443",
            "::ffff:192.0.2.1",
            "::FFFF:c000:201",
            "0:0:0:0:0:ffff:192.0.2.1",
            "[::ffff:192.0.2.1]:0",
            "64:ff9b::192.0.2.1",
            "[64:ff9b::c000:201]",
            "::ffff:192.0.2.1%eth0",
        ] {
            assert_eq!(address(text).as_deref(), Some("192.0.2.1"), "{text}");
        }
        for text in [
            "2001:db8::1",
            "2001:DB8:0:0::1",
            "[2001:db8::1]",
            "[2001:db8::1]:65535",
            "2001:db8::1%eth0.100",
            "[2001:db8::1%25eth-0_a]:80",
        ] {
            assert_eq!(address(text).as_deref(), Some("2001:db8::1"), "{text}");
        }
        assert_eq!(address("::").as_deref(), Some("::"));
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
    }
}
