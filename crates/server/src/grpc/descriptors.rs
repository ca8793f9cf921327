//! Descriptors of Envoy and Kuadrant as operations.

use std::borrow::Cow;
use std::sync::Arc;

use tonic::Status;

use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy_core::rules::Operation;
use divvy_core::rules::operation::DOMAIN;
use divvy_telemetry::metrics::{Bound, Metrics};

/// The error of a request without a domain.
pub(super) const NO_DOMAIN: &str = "domain is empty: name the set of rules that the descriptors belong to";

/// Reads descriptors.
#[derive(Debug)]
pub struct DescriptorReader {
    /// Maximum number of pairs of an operation.
    pub max_pairs: usize,
    /// Counts operations with more pairs.
    pub metrics: Arc<Metrics>,
}

impl DescriptorReader {
    /// Reads the entries of descriptor number `index` into `operation`, and the `domain`. The last of a repeated key wins, and no
    /// entry replaces the domain.
    ///
    /// Invalid UTF-8 is replaced by U+FFFD, so that a client that makes a gateway send it is limited, too.
    ///
    /// # Errors
    /// An entry has no key, or there are too many pairs.
    pub fn read_operation(
        &self,
        domain: &[u8],
        index: usize,
        descriptor: &RateLimitDescriptor,
        operation: &mut Operation,
    ) -> Result<(), Status> {
        self.check_count(index, descriptor)?;
        operation.clear();
        for (place, entry) in descriptor.entries.iter().enumerate() {
            if entry.key.is_empty() {
                let text = format!("descriptors[{index}].entries[{place}].key is empty");
                return Err(Status::invalid_argument(text));
            }
            operation.set(&text(&entry.key), &text(&entry.value));
        }
        operation.set(DOMAIN, &text(domain));
        Ok(())
    }

    /// Reads the entries of a descriptor in one of ratelimit's domains: in their order, even without a key, or with one that is
    /// repeated. An entry may have the key `domain`.
    ///
    /// # Errors
    /// There are too many pairs.
    pub fn read_entries(
        &self,
        domain: &[u8],
        index: usize,
        descriptor: &RateLimitDescriptor,
        operation: &mut Operation,
    ) -> Result<(), Status> {
        self.check_count(index, descriptor)?;
        operation.clear();
        operation.push(DOMAIN, &text(domain));
        descriptor.entries.iter().for_each(|entry| operation.push(&text(&entry.key), &text(&entry.value)));
        Ok(())
    }

    fn check_count(&self, index: usize, descriptor: &RateLimitDescriptor) -> Result<(), Status> {
        // The domain is a pair, too.
        let (entries, max) = (descriptor.entries.len(), self.max_pairs.saturating_sub(1));
        if entries > max {
            self.metrics.limits.reached.count(Bound::Pairs);
            let text = format!("descriptors[{index}] has {entries} entries, but at most {max} are allowed");
            return Err(Status::invalid_argument(text));
        }
        Ok(())
    }
}

/// Returns a text. Nearly all are valid, and this finds that faster than the replacement does.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}
