//! Requests that are kept to be answered later: what `MULTI` queues.

use std::ops::Range;

use super::Arguments;

/// Requests in the order in which they came.
#[derive(Debug, Default)]
pub struct Queue {
    text: Vec<u8>,
    /// Every argument's place in `text`, one request after the other.
    arguments: Vec<Range<usize>>,
    /// Where each request's arguments are.
    requests: Vec<Range<usize>>,
}

impl Queue {
    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    pub fn push(&mut self, request: Arguments) {
        let first = self.arguments.len();
        for argument in request.iter() {
            let start = self.text.len();
            self.text.extend_from_slice(argument);
            self.arguments.push(start..self.text.len());
        }
        self.requests.push(first..self.arguments.len());
    }

    /// The arguments of request `index`; `None` past the last.
    pub fn get(&self, index: usize) -> Option<Arguments<'_>> {
        let arguments = self.requests.get(index)?;
        Some(Arguments::new(&self.text, self.arguments.get(arguments.clone())?))
    }

    /// What its buffers hold (bytes), the room that growing leaves in them included, once `request` is in it, too.
    pub fn memory_with(&self, request: Arguments) -> usize {
        let text: usize = request.iter().map(<[u8]>::len).sum();
        let places = self.arguments.len() + request.len() + self.requests.len() + 1;
        2 * (self.text.len() + text + places * size_of::<Range<usize>>())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::resp::Decoder;
    use crate::protocol::resp::client::write_request;

    proptest! {
        #[test]
        fn what_is_taken_out_is_what_was_put_in(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..5), 0..9),
        ) {
            let mut queue = Queue::default();
            for request in &requests {
                let mut bytes = Vec::new();
                write_request(&mut bytes, request);
                let mut decoder = Decoder::default();
                prop_assert_eq!(decoder.decode(&bytes), Ok(Some(bytes.len())));
                let expected = queue.memory_with(decoder.arguments(&bytes));
                queue.push(decoder.arguments(&bytes));
                let held = queue.text.capacity()
                    + (queue.arguments.capacity() + queue.requests.capacity()) * size_of::<Range<usize>>();
                // Vectors begin with room for a few.
                prop_assert!(held <= expected + 256, "{} > {}", held, expected);
            }
            let queued: Vec<Vec<Vec<u8>>> = (0..queue.count())
                .map(|index| queue.get(index).unwrap().iter().map(<[u8]>::to_vec).collect())
                .collect();
            prop_assert_eq!(queued, requests);
            prop_assert!(queue.get(queue.count()).is_none());
        }
    }
}
