//! Requests that wait to be answered later: those between `MULTI` and `EXEC`.

use std::collections::VecDeque;
use std::ops::Range;

use super::Arguments;

/// Requests in order of arrival.
///
/// Each request has its own allocations, of exactly its size. So the memory can be computed before a request is added,
/// and removing a request frees its share.
#[derive(Debug, Default)]
pub struct Queue {
    requests: VecDeque<QueuedRequest>,
    /// Memory that the requests themselves hold (bytes).
    held: usize,
}

/// A request that owns its arguments.
#[derive(Debug)]
pub struct QueuedRequest {
    text: Box<[u8]>,
    /// The arguments' ranges in `text`.
    arguments: Box<[Range<usize>]>,
}

impl Queue {
    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request.
    pub fn push(&mut self, request: Arguments) {
        let mut text = Vec::with_capacity(text_length(request));
        let mut arguments = Vec::with_capacity(request.len());
        for argument in request.iter() {
            let start = text.len();
            text.extend_from_slice(argument);
            arguments.push(start..text.len());
        }
        let request = QueuedRequest { text: text.into(), arguments: arguments.into() };
        self.held += request.memory();
        self.requests.push_back(request);
    }

    /// Removes the oldest request, and returns it.
    pub fn pop(&mut self) -> Option<QueuedRequest> {
        let request = self.requests.pop_front()?;
        self.held -= request.memory();
        Some(request)
    }

    /// Returns the memory that the queue holds (bytes).
    pub fn memory(&self) -> usize {
        self.held + self.requests.capacity() * size_of::<QueuedRequest>()
    }

    /// Returns the memory that the queue would hold with `request` (bytes).
    pub fn memory_with(&self, request: Arguments) -> usize {
        let is_full = self.requests.len() == self.requests.capacity();
        // The list doubles when it grows, and begins with four places.
        let places = if is_full { (2 * self.requests.capacity()).max(4) } else { self.requests.capacity() };
        let added = text_length(request) + request.len() * size_of::<Range<usize>>();
        self.held + added + places * size_of::<QueuedRequest>()
    }
}

impl QueuedRequest {
    /// Returns the arguments in the order of arrival, the command's name first.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments::new(&self.text, &self.arguments)
    }

    fn memory(&self) -> usize {
        self.text.len() + size_of_val::<[Range<usize>]>(&self.arguments)
    }
}

fn text_length(request: Arguments) -> usize {
    request.iter().map(<[u8]>::len).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::resp::Decoder;
    use crate::protocol::resp::client::write_request;

    proptest! {
        #[test]
        fn queued_requests_are_unchanged_and_their_memory_is_known_in_advance(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..5), 0..30),
        ) {
            let mut queue = Queue::default();
            for request in &requests {
                let mut bytes = Vec::new();
                write_request(&mut bytes, request);
                let mut decoder = Decoder::default();
                prop_assert_eq!(decoder.decode(&bytes), Ok(Some(bytes.len())));
                let expected = queue.memory_with(decoder.arguments(&bytes));
                queue.push(decoder.arguments(&bytes));
                prop_assert_eq!(queue.memory(), expected);
            }
            prop_assert_eq!(queue.count(), requests.len());
            let popped: Vec<Vec<Vec<u8>>> = std::iter::from_fn(|| queue.pop())
                .map(|request| request.arguments().iter().map(<[u8]>::to_vec).collect())
                .collect();
            prop_assert_eq!(popped, requests);
            prop_assert_eq!(queue.held, 0);
        }
    }
}
