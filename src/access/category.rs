//! Categories of requests. A user has rights by category.

use std::fmt;

/// A category of requests. Each command, each route over HTTP and each RPC has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Requests of applications: hits, peeks, reservations, charges, refunds, and the gateways' checks.
    Hit,
    /// Reading of rules and counters, and explanations.
    Read,
    /// The status of one actor. Users who may read have this category, too, and tokens for one actor have no other.
    Status,
    /// Changes of limits of single actors.
    Limits,
    /// Blocks and allows of single actors.
    Block,
    /// Forgetting of counters.
    Forget,
    /// Backups.
    Backup,
    /// The metrics.
    Metrics,
    /// Facts about the server and its clients.
    Info,
    /// Facts about the users.
    Admin,
    /// Requests about the connection and the protocol. Every user has this category.
    Connection,
}

impl Category {
    /// All categories, in the order of lists.
    pub const ALL: [Self; 11] = [
        Self::Hit,
        Self::Read,
        Self::Status,
        Self::Limits,
        Self::Block,
        Self::Forget,
        Self::Backup,
        Self::Metrics,
        Self::Info,
        Self::Admin,
        Self::Connection,
    ];

    /// Returns the name in the access file, without `@`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Read => "read",
            Self::Status => "status",
            Self::Limits => "limits",
            Self::Block => "block",
            Self::Forget => "forget",
            Self::Backup => "backup",
            Self::Metrics => "metrics",
            Self::Info => "info",
            Self::Admin => "admin",
            Self::Connection => "connection",
        }
    }

    /// Finds the category with this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name().eq_ignore_ascii_case(name))
    }

    /// Returns the categories that a word of the access file stands for if it names this one.
    pub const fn with_included(self) -> Categories {
        match self {
            Self::Read => Categories::NONE.with(Self::Read).with(Self::Status),
            other => Categories::NONE.with(other),
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of categories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Categories(u16);

impl Categories {
    /// No category.
    pub const NONE: Self = Self(0);
    /// Every category.
    pub const ALL: Self = Self((1 << Category::ALL.len()) - 1);

    /// Returns the set with this category.
    #[must_use]
    pub const fn with(self, category: Category) -> Self {
        Self(self.0 | category.bit())
    }

    /// Returns the set without this category.
    #[must_use]
    pub const fn without(self, category: Category) -> Self {
        Self(self.0 & !category.bit())
    }

    /// Returns the set with all of these categories.
    #[must_use]
    pub const fn with_all(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns the set without any of these categories.
    #[must_use]
    pub const fn without_all(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns whether the category is in the set.
    #[inline]
    pub const fn contains(self, category: Category) -> bool {
        self.0 & category.bit() != 0
    }

    /// Returns whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the categories of the set, in the order of [`Category::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Category> {
        Category::ALL.into_iter().filter(move |category| self.contains(*category))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_what_was_added_and_not_removed() {
        for one in Category::ALL {
            assert_eq!(Category::parse(&one.name().to_uppercase()), Some(one));
            for other in Category::ALL {
                assert_eq!(Categories::NONE.with(one).contains(other), one == other);
                assert_eq!(Categories::ALL.without(one).contains(other), one != other);
            }
        }
        assert!(Categories::NONE.is_empty() && Categories::ALL.iter().eq(Category::ALL));
        assert_eq!(Category::parse("hits"), None);
    }
}
