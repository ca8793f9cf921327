//! The last change that each bouncer has got.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of bouncers that are known. Others get all decisions with each answer.
const MAX_BOUNCERS: usize = 1_024;
/// Maximum length of a program's name that distinguishes bouncers (bytes).
const MAX_AGENT: usize = 128;

/// A bouncer. Bouncers with the same key are different if they are on different machines, or are different programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bouncer {
    /// The name of the user whose key it has; `None` without users.
    user: Option<Arc<str>>,
    address: Option<IpAddr>,
    agent: Box<[u8]>,
}

impl Bouncer {
    /// Returns the bouncer of this user at this address, whose program is called `agent`.
    pub fn new(user: Option<Arc<str>>, address: Option<IpAddr>, agent: &[u8]) -> Self {
        Self { user, address, agent: agent.get(..MAX_AGENT).unwrap_or(agent).into() }
    }

    /// Returns the name of its user.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// The positions of all bouncers. The one that has not asked for the longest time is forgotten first.
#[derive(Debug, Default)]
pub struct Bouncers {
    positions: HashMap<Bouncer, Position>,
    uses: u64,
}

#[derive(Debug)]
struct Position {
    change: u64,
    last_use: u64,
}

impl Bouncers {
    /// Returns the last change that the bouncer has got; 0 if it is not known.
    pub fn position(&self, bouncer: &Bouncer) -> u64 {
        self.positions.get(bouncer).map_or(0, |position| position.change)
    }

    /// Records that the bouncer has got all changes up to this one.
    pub fn advance(&mut self, bouncer: Bouncer, change: u64) {
        self.uses += 1;
        if !self.positions.contains_key(&bouncer) && self.positions.len() >= MAX_BOUNCERS {
            let oldest = self.positions.iter().min_by_key(|(_, position)| position.last_use);
            if let Some(oldest) = oldest.map(|(bouncer, _)| bouncer.clone()) {
                self.positions.remove(&oldest);
            }
        }
        self.positions.insert(bouncer, Position { change, last_use: self.uses });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn bouncer(user: &str, address: u128, agent: &str) -> Bouncer {
        Bouncer::new(Some(user.into()), Some(Ipv6Addr::from_bits(address).into()), agent.as_bytes())
    }

    #[test]
    fn bouncers_differ_by_user_address_and_program() {
        let mut bouncers = Bouncers::default();
        bouncers.advance(bouncer("a", 1, "x"), 7);
        assert_eq!(bouncers.position(&bouncer("a", 1, "x")), 7);
        for other in [bouncer("b", 1, "x"), bouncer("a", 2, "x"), bouncer("a", 1, "y")] {
            assert_eq!(bouncers.position(&other), 0);
        }
        let long = "x".repeat(MAX_AGENT);
        assert_eq!(bouncer("a", 1, &long), bouncer("a", 1, &format!("{long}y")));
    }

    #[test]
    fn number_of_bouncers_is_bounded() {
        let mut bouncers = Bouncers::default();
        for n in 1..=MAX_BOUNCERS as u128 {
            bouncers.advance(bouncer("a", n, ""), 1);
        }
        bouncers.advance(bouncer("a", 1, ""), 2);
        bouncers.advance(bouncer("b", 1, ""), 3);
        assert_eq!(bouncers.positions.len(), MAX_BOUNCERS);
        let position = |address| bouncers.position(&bouncer("a", address, ""));
        assert_eq!((position(1), position(2), position(3)), (2, 0, 1));
        assert_eq!(bouncers.position(&bouncer("b", 1, "")), 3);
    }
}
