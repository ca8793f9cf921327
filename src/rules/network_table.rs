//! Finds what many networks say about an address, with one binary search.
//!
//! Two networks are apart, or one contains the other. So their ends divide the addresses into ranges. All addresses
//! of a range are in the same networks. The table holds a value for each range, and a look-up does not depend on how many networks
//! contain an address. A search tree of prefixes needs more memory and visits a node per level of nesting.

use super::{Address, Network};

/// Values of ranges of addresses. `T` is small: a line number, or a number of a set of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkTable<T> {
    v4: Ranges<u32, T>,
    v6: Ranges<u128, T>,
}

/// Ranges of addresses that follow one another, from the lowest address on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges<B, T> {
    /// The first address of each range, ascending. Starts with 0 if there are any.
    starts: Box<[B]>,
    /// The value of each range; `None` if it is in no network.
    values: Box<[Option<T>]>,
}

impl<B, T> Default for Ranges<B, T> {
    fn default() -> Self {
        Self { starts: Box::default(), values: Box::default() }
    }
}

impl<T> Default for NetworkTable<T> {
    fn default() -> Self {
        Self { v4: Ranges::default(), v6: Ranges::default() }
    }
}

impl<T: Copy + PartialEq> NetworkTable<T> {
    /// Creates a table. `combine` returns the value of a range from the numbers of the networks that contain it, in no
    /// particular order.
    pub fn new(networks: impl IntoIterator<Item = (Network, u32)>, mut combine: impl FnMut(&[u32]) -> T) -> Self {
        let (mut v4, v6): (Vec<_>, Vec<_>) = networks.into_iter().partition(|(network, _)| network.first().is_v4());
        let mut ranges = |networks: &mut Vec<(Network, u32)>| divide(networks, &mut combine);
        let (v4, v6) = (ranges(&mut v4), ranges(&mut { v6 }));
        let (v4_starts, v4_values): (Vec<_>, Vec<_>) =
            v4.into_iter().map(|(start, value)| (start as u32, value)).unzip();
        let (v6_starts, v6_values): (Vec<_>, Vec<_>) = v6.into_iter().unzip();
        Self {
            v4: Ranges { starts: v4_starts.into(), values: v4_values.into() },
            v6: Ranges { starts: v6_starts.into(), values: v6_values.into() },
        }
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

    /// Returns whether each address of the network has a value.
    pub fn covers(&self, network: Network) -> bool {
        let (first, last) = (network.first().bits(), network.last().bits());
        if network.first().is_v4() { self.v4.cover(first as u32, last as u32) } else { self.v6.cover(first, last) }
    }

    /// Returns whether an address of the network has a value.
    pub fn overlaps(&self, network: Network) -> bool {
        let (first, last) = (network.first().bits(), network.last().bits());
        if network.first().is_v4() { self.v4.overlap(first as u32, last as u32) } else { self.v6.overlap(first, last) }
    }
}

impl<B: Ord + Copy, T: Copy> Ranges<B, T> {
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

    fn cover(&self, first: B, last: B) -> bool {
        let values = self.between(first, last);
        !values.is_empty() && values.iter().all(Option::is_some)
    }

    fn overlap(&self, first: B, last: B) -> bool {
        self.between(first, last).iter().any(Option::is_some)
    }
}

/// Divides the addresses of one family into ranges with different values. Each begins where the one before ends.
fn divide<T: Copy + PartialEq>(
    networks: &mut [(Network, u32)],
    combine: &mut impl FnMut(&[u32]) -> T,
) -> Vec<(u128, Option<T>)> {
    // A network comes before those that it contains.
    networks.sort_unstable_by_key(|(network, _)| (network.first().bits(), network.prefix()));
    let mut ranges: Vec<(u128, Option<T>)> = Vec::new();
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
        begin(network.first().bits(), &numbers);
    }
    end_before(highest, &mut ends, &mut numbers, &mut begin);
    ranges
}

/// Ends the innermost networks that end before `address`.
fn end_before(address: u128, ends: &mut Vec<u128>, numbers: &mut Vec<u32>, begin: &mut impl FnMut(u128, &[u32])) {
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
                if networks.iter().any(|network| network.covers(other)) {
                    prop_assert!(table.covers(other));
                }
                prop_assert!(!table.covers(other) || overlaps);
            }
        }
    }
}
