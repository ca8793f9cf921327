//! Turns ratelimit's names into valid, unique labels.

use std::collections::HashSet;

use crate::config::validate::{MAX_LABEL_LENGTH, to_label};

#[derive(Debug, Default)]
pub struct Labels(HashSet<String>);

impl Labels {
    /// Turns `name` into a label: invalid characters become `-`, and a label that is in use gets a number.
    pub fn make(&mut self, name: &str) -> String {
        let base = to_label(name);
        let numbered = (2..).map(|number: u64| shortened(&base, &format!("-{number}")));
        let mut candidates = std::iter::once(shortened(&base, "")).chain(numbered);
        let unused = candidates.find(|label| !self.0.contains(label)).unwrap_or_default();
        self.0.insert(unused.clone());
        unused
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
}
