//! Labels for rules whose names come from other programs.

use std::collections::{HashMap, HashSet};

use super::checker::{MAX_LABEL_LENGTH, to_label};

/// The labels in use.
#[derive(Debug, Default)]
pub struct Labels {
    used: HashSet<String>,
    /// The number to try next for a label that is in use. Thousands of limits may have one name.
    next: HashMap<String, u64>,
}

impl Labels {
    /// Notes a label that is in use elsewhere.
    pub fn reserve(&mut self, label: &str) {
        self.used.insert(label.to_owned());
    }

    /// Turns `name` into a label: invalid characters become `-`, and a label that is in use gets a number.
    pub fn make(&mut self, name: &str) -> String {
        let base = shortened(&to_label(name), "");
        if self.used.insert(base.clone()) {
            return base;
        }
        let next = self.next.entry(base.clone()).or_insert(2);
        loop {
            let label = shortened(&base, &format!("-{next}"));
            *next += 1;
            if self.used.insert(label.clone()) {
                return label;
            }
        }
    }
}

/// Joins `base` and `suffix`. Cuts `base` if the result would be too long.
fn shortened(base: &str, suffix: &str) -> String {
    let room = MAX_LABEL_LENGTH.saturating_sub(suffix.len());
    base.chars().take(room).chain(suffix.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_valid_and_unique() {
        let mut labels = Labels::default();
        assert_eq!(labels.make("per_ip-1"), "per_ip-1");
        assert_eq!(labels.make("edge.path_/a*é"), "edge-path_-a--");
        assert_eq!(labels.make("edge.path_/b"), "edge-path_-b");
        assert_eq!(labels.make("edge.path.-b"), "edge-path--b");
        assert_eq!(labels.make("edge.path_.b"), "edge-path_-b-2");
        assert_eq!(labels.make("edge-path_-b"), "edge-path_-b-3");
    }

    #[test]
    fn long_names_are_cut_and_stay_unique() {
        let mut labels = Labels::default();
        let (one, other) = (labels.make(&"x".repeat(300)), labels.make(&"x".repeat(301)));
        assert_eq!((one.len(), other.len()), (MAX_LABEL_LENGTH, MAX_LABEL_LENGTH));
        assert!(one != other && other.ends_with("x-2"), "{other}");
    }

    /// A search from 2 for each of them would take minutes.
    #[test]
    fn thousands_of_labels_may_come_from_one_name() {
        let mut labels = Labels::default();
        labels.reserve("same-7");
        let made: HashSet<_> = (0..50_000).map(|_| labels.make("same")).collect();
        assert_eq!(made.len(), 50_000);
        assert!(made.contains("same-50001") && !made.contains("same-7"));
    }
}
