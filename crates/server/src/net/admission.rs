//! Admission: bounds on open connections, in total and per address.
//!
//! A connection counts once, from its beginning to its end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Bits of an IPv6 address that identify a network. A customer can choose the other bits freely.
const NETWORK_BITS: u32 = 64;

/// The open connections, and the bounds on them.
#[derive(Debug)]
pub struct Admission {
    max_open: usize,
    /// Maximum number from one address; `None` if only the total is bounded.
    max_per_address: Option<usize>,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    /// Connections by address. Empty if addresses are not bounded.
    addresses: HashMap<IpAddr, usize>,
}

/// The bound that a refused connection would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionBound {
    /// The maximum number of open connections.
    Total,
    /// The maximum number from one address.
    Address,
}

impl Admission {
    pub fn new(max_open: usize, max_per_address: Option<usize>) -> Arc<Self> {
        Arc::new(Self { max_open, max_per_address, open: Mutex::default() })
    }

    /// Admits a connection from `peer`.
    ///
    /// # Errors
    /// The connection would exceed a bound.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<ConnectionPermit, ConnectionBound> {
        let mut open = self.open.lock();
        if open.all >= self.max_open {
            return Err(ConnectionBound::Total);
        }
        let address = match self.max_per_address {
            None => None,
            Some(most) => {
                let address = network(peer);
                let present = open.addresses.get(&address).copied().unwrap_or_default();
                if present >= most {
                    return Err(ConnectionBound::Address);
                }
                open.addresses.insert(address, present + 1);
                Some(address)
            }
        };
        open.all += 1;
        Ok(ConnectionPermit { admission: Arc::clone(self), address })
    }

    fn leave(&self, address: Option<IpAddr>) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(address) = address
            && let Some(count) = open.addresses.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                open.addresses.remove(&address);
            }
        }
    }
}

/// Permission for a connection to be open, until this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    admission: Arc<Admission>,
    address: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admission.leave(self.address);
    }
}

/// Returns the address, or the network that counts as one address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << (Ipv6Addr::BITS - NETWORK_BITS)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_bounded_and_reusable() {
        let admission = Admission::new(2, None);
        let first = admission.admit(ip("192.0.2.1")).unwrap();
        let _second = admission.admit(ip("192.0.2.1")).unwrap();
        assert_eq!(admission.admit(ip("192.0.2.2")).unwrap_err(), ConnectionBound::Total);
        drop(first);
        assert!(admission.admit(ip("192.0.2.2")).is_ok());
    }

    #[test]
    fn each_address_has_its_own_bound() {
        let admission = Admission::new(10, Some(1));
        let first = admission.admit(ip("192.0.2.1")).unwrap();
        assert_eq!(admission.admit(ip("192.0.2.1")).unwrap_err(), ConnectionBound::Address);
        assert_eq!(admission.admit(ip("::ffff:192.0.2.1")).unwrap_err(), ConnectionBound::Address);
        let _other = admission.admit(ip("192.0.2.2")).unwrap();
        drop(first);
        assert!(admission.admit(ip("192.0.2.1")).is_ok());
        assert_eq!(admission.open.lock().addresses.len(), 1, "clients that left are forgotten");
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let admission = Admission::new(10, Some(1));
        let _first = admission.admit(ip("2001:db8:0:1::1")).unwrap();
        assert_eq!(admission.admit(ip("2001:db8:0:1:ffff::2")).unwrap_err(), ConnectionBound::Address);
        assert!(admission.admit(ip("2001:db8:0:2::1")).is_ok());
    }
}
