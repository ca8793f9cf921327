//! Finds what many networks say about an address, with one binary search, and about a value that is a network itself.
//!
//! Two networks are apart, or one contains the other. So their ends divide the addresses into ranges. All addresses
//! of a range are in the same networks. The table holds a value for each range, and a look-up does not depend on how many networks
//! contain an address. A search tree of prefixes needs more memory and visits a node per level of nesting.

use std::collections::BTreeSet;

use super::{Address, Network};

/// Values of ranges of addresses. `T` is small: a line number, or a number of a set of rules.
#[derive(Debug, Default)]
pub struct NetworkTable<T> {
    v4: Family<u32, T>,
    v6: Family<u128, T>,
}

/// The networks of one family, and the ranges of its addresses, which follow one another from the lowest address on.
#[derive(Debug, Default)]
struct Family<B, T> {
    /// The first address of each range, ascending. Starts with 0 if there are any.
    starts: Box<[B]>,
    /// The value of each range; `None` if it is in no network.
    values: Box<[Option<T>]>,
    /// The first address of each network, its prefix, and the value of all networks that contain it. Ascending.
    networks: Box<[(B, u8, T)]>,
    /// The prefixes that networks have, descending.
    prefixes: Box<[u8]>,
}

impl<T: Copy + PartialEq> NetworkTable<T> {
    /// Creates a table. `combine` returns the value of a range from the numbers of the networks that contain it, in no
    /// particular order.
    pub fn new(networks: impl IntoIterator<Item = (Network, u32)>, mut combine: impl FnMut(&[u32]) -> T) -> Self {
        let (v4, v6) = networks.into_iter().partition(|(network, _)| network.first().is_v4());
        Self { v4: Family::new(v4, &mut combine, |bits| bits as u32), v6: Family::new(v6, &mut combine, |bits| bits) }
    }

    /// Returns the value of the networks that contain the address or the whole network which a request's value names.
    #[inline]
    pub fn find(&self, value: &[u8]) -> Option<T> {
        match Address::parse_bytes(value) {
            Some(address) => self.get(address),
            None => self.find_network(value),
        }
    }

    #[inline(never)]
    fn find_network(&self, value: &[u8]) -> Option<T> {
        self.get_network(Network::of_value(value)?)
    }

    /// Returns the value of the networks that contain the address; `None` if none does.
    #[inline]
    pub fn get(&self, address: Address) -> Option<T> {
        if address.is_v4() { self.v4.get(address.bits() as u32) } else { self.v6.get(address.bits()) }
    }

    /// Returns whether there are no networks.
    pub fn is_empty(&self) -> bool {
        self.v4.starts.is_empty() && self.v6.starts.is_empty()
    }

    /// Returns the value of the networks that contain the whole network; `None` if none does, even if several do together.
    fn get_network(&self, network: Network) -> Option<T> {
        let first = |prefix| Network::of(network.first(), prefix).first().bits();
        if network.first().is_v4() {
            self.v4.find_network(network.prefix(), |prefix| first(prefix) as u32)
        } else {
            self.v6.find_network(network.prefix(), first)
        }
    }

    /// Returns whether each address of the network has a value.
    pub fn covers(&self, network: Network) -> bool {
        let values = self.values_in(network);
        !values.is_empty() && values.iter().all(Option::is_some)
    }

    /// Returns whether an address of the network has a value.
    pub fn overlaps(&self, network: Network) -> bool {
        self.values_in(network).iter().any(Option::is_some)
    }

    /// Returns the values of the ranges that have addresses of the network.
    fn values_in(&self, network: Network) -> &[Option<T>] {
        let (first, last) = (network.first().bits(), network.last().bits());
        if network.first().is_v4() { self.v4.between(first as u32, last as u32) } else { self.v6.between(first, last) }
    }
}

impl<B: Ord + Copy, T: Copy + PartialEq> Family<B, T> {
    fn new(mut networks: Vec<(Network, u32)>, combine: &mut impl FnMut(&[u32]) -> T, bits: impl Fn(u128) -> B) -> Self {
        let (ranges, networks) = divide(&mut networks, combine);
        let (starts, values): (Vec<_>, Vec<_>) = ranges.into_iter().map(|(start, value)| (bits(start), value)).unzip();
        let prefixes: BTreeSet<_> = networks.iter().map(|(network, _)| network.prefix()).collect();
        let networks = networks.iter().map(|(network, value)| (bits(network.first().bits()), network.prefix(), *value));
        Self {
            starts: starts.into(),
            values: values.into(),
            networks: networks.collect(),
            prefixes: prefixes.into_iter().rev().collect(),
        }
    }

    #[inline]
    fn get(&self, bits: B) -> Option<T> {
        let after = self.starts.partition_point(|start| *start <= bits);
        *self.values.get(after.checked_sub(1)?)?
    }

    /// Returns the values of the ranges that have addresses from `first` to `last`.
    fn between(&self, first: B, last: B) -> &[Option<T>] {
        let begin = self.starts.partition_point(|start| *start <= first).saturating_sub(1);
        let end = self.starts.partition_point(|start| *start <= last);
        self.values.get(begin..end).unwrap_or_default()
    }

    /// Finds the innermost of the networks that contain one. `first` returns the first address of its network with a prefix.
    fn find_network(&self, prefix: u8, first: impl Fn(u8) -> B) -> Option<T> {
        let prefixes = self.prefixes.iter().filter(|shorter| **shorter <= prefix);
        prefixes.map(|prefix| (first(*prefix), *prefix)).find_map(|sought| {
            let place = self.networks.binary_search_by_key(&sought, |(first, prefix, _)| (*first, *prefix)).ok()?;
            self.networks.get(place).map(|(_, _, value)| *value)
        })
    }
}

/// The first addresses of ranges, and their values.
type Starts<T> = Vec<(u128, Option<T>)>;

/// Divides the addresses of one family into ranges with different values. Each begins where the one before ends. Also returns
/// the networks, each with the value of all that contain it.
fn divide<T: Copy + PartialEq>(
    networks: &mut [(Network, u32)],
    combine: &mut impl FnMut(&[u32]) -> T,
) -> (Starts<T>, Vec<(Network, T)>) {
    // A network comes before those that it contains.
    networks.sort_unstable_by_key(|(network, _)| (network.first().bits(), network.prefix()));
    let (mut ranges, mut values) = (Starts::new(), Vec::new());
    // The networks that contain the current address: the last address of each, and their numbers.
    let (mut ends, mut numbers): (Vec<u128>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut begin = |start: u128, numbers: &[u32]| {
        let value = (!numbers.is_empty()).then(|| combine(numbers));
        // Networks may begin or end together. The last one decides.
        if ranges.last().is_some_and(|(last, _)| *last == start) {
            ranges.pop();
        }
        if ranges.last().is_none_or(|(_, last)| *last != value) {
            ranges.push((start, value));
        }
        value
    };
    if !networks.is_empty() {
        begin(0, &[]);
    }
    let highest = networks.first().map_or(0, |(network, _)| Network::of(network.first(), 0).last().bits());
    let groups = networks.chunk_by(|(one, _), (other, _)| one == other);
    for (group, network) in groups.filter_map(|group| Some((group, group.first()?.0))) {
        end_before(network.first().bits(), &mut ends, &mut numbers, &mut begin);
        ends.extend(group.iter().map(|_| network.last().bits()));
        numbers.extend(group.iter().map(|(_, number)| *number));
        let value = begin(network.first().bits(), &numbers);
        values.extend(value.map(|value| (network, value)));
    }
    end_before(highest, &mut ends, &mut numbers, &mut begin);
    (ranges, values)
}

/// Ends the innermost networks that end before `address`.
fn end_before<T>(
    address: u128,
    ends: &mut Vec<u128>,
    numbers: &mut Vec<u32>,
    begin: &mut impl FnMut(u128, &[u32]) -> Option<T>,
) {
    while let Some(end) = ends.last().copied().filter(|end| *end < address) {
        while ends.pop_if(|last| *last == end).is_some() {
            numbers.pop();
        }
        begin(end + 1, numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    /// The value of an address is a set of numbers, as bits.
    fn table(networks: &[Network]) -> NetworkTable<u64> {
        let combine = |numbers: &[u32]| numbers.iter().fold(0, |bits, number| bits | 1 << number);
        NetworkTable::new(networks.iter().copied().zip(0..), combine)
    }

    #[test]
    fn networks_with_one_value_are_one_range() {
        let networks = ["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "10.1.2.3"].map(network);
        let table = NetworkTable::new(networks.into_iter().zip(0..), |_| ());
        assert_eq!((table.v4.starts.len(), table.v6.starts.len()), (3, 0));
        assert!(table.covers(network("10.0.0.0/8")) && !table.covers(network("10.0.0.0/7")));
        assert_eq!(table.get_network(network("10.0.0.0/8")), None, "only both halves together contain it");
        assert!(table.overlaps(network("0.0.0.0/0")) && !table.overlaps(network("11.0.0.0/8")));
        assert!(!table.overlaps(network("::/0")) && !table.covers(network("::/0")));
    }

    #[test]
    fn ends_of_the_address_space_are_found() {
        let networks = ["0.0.0.0/0", "255.255.255.255", "::/0", "ffff::/16", "0.0.0.0/8"].map(network);
        let table = table(&networks);
        let get = |text| table.get(Address::parse(text).unwrap());
        assert_eq!(get("255.255.255.255"), Some(0b11));
        assert_eq!(get("255.255.255.254"), Some(0b1));
        assert_eq!(get("0.0.0.0"), Some(0b10001));
        assert_eq!(get("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Some(0b1100));
        assert_eq!(get("::"), Some(0b100));
        assert_eq!(NetworkTable::<u64>::default().get(Address::parse("::").unwrap()), None);
    }

    /// Returns networks and addresses of few bits, so that networks often contain one another.
    fn networks_strategy() -> impl Strategy<Value = Vec<Network>> {
        let network = (0..32_u128, 0..=6_u8, prop::bool::ANY).prop_map(|(bits, prefix, v4)| {
            if v4 {
                Network::of(
                    Address::from(std::net::IpAddr::from((bits as u32 * 0x0404_0404).to_be_bytes())),
                    prefix + 4,
                )
            } else {
                Network::of(Address::from(std::net::IpAddr::from((bits << 123).to_be_bytes())), prefix)
            }
        });
        prop::collection::vec(network, 0..50)
    }

    proptest! {
        #[test]
        fn table_finds_the_networks_that_a_linear_search_finds(
            networks in networks_strategy(), others in networks_strategy(),
        ) {
            let table = table(&networks);
            let ends = networks.iter().chain(&others).flat_map(|network| [network.first(), network.last()]);
            for address in ends {
                let bits = |(number, network): (usize, &Network)| u64::from(network.contains(address)) << number;
                let expected = networks.iter().enumerate().map(bits).fold(0, |all, bit| all | bit);
                prop_assert_eq!(table.get(address).unwrap_or(0), expected, "{}", address);
            }
            for other in others {
                let overlaps = networks.iter().any(|network| network.covers(other) || other.covers(*network));
                prop_assert_eq!(table.overlaps(other), overlaps);
                let bits = |(number, network): (usize, &Network)| u64::from(network.covers(other)) << number;
                let around = networks.iter().enumerate().map(bits).fold(0, |all, bit| all | bit);
                prop_assert_eq!(table.get_network(other).unwrap_or(0), around);
                prop_assert_eq!(table.find(other.to_string().as_bytes()).unwrap_or(0), around);
                prop_assert!(table.covers(other) || around == 0);
                prop_assert!(!table.covers(other) || overlaps);
            }
        }
    }
}
