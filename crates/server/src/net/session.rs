//! The interface between a protocol and the connection's loop.

use std::future::Future;
use std::time::Duration;

use bytes::BytesMut;

use super::memory::{BudgetExceeded, Share, counted};
use super::stream::Stream;
use divvy_telemetry::metrics::Bound;

/// A protocol's side of a connection.
pub trait Session: Send {
    /// Answers the complete requests at the front of `input`, in order: removes them and appends their replies to `output`.
    /// To bound memory and time, it may stop early with [`NextStep::Continue`].
    fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> impl Future<Output = NextStep> + Send;

    /// Returns whether the client has given the password or needs none. Until then, a shorter timeout applies.
    fn is_admitted(&self) -> bool;

    /// Appends the error for an unfinished request, before the connection is closed.
    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>);
}

/// The connection's next step after its session has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Write, then wait for more input.
    Read,
    /// Write, then go on: the input may contain complete requests.
    Continue,
    /// Write, then close.
    Close,
}

/// The reason why a connection is closed in the middle of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("the request was not finished within {} seconds", .0.as_secs())]
    TooSlow(Duration),
    #[error("the server has no memory left for requests of this size: try again later")]
    NoMemory,
}

impl Cut {
    /// Returns the limit whose metric counts the event. The budget for buffers counts its own.
    pub fn limit(self) -> Option<Bound> {
        match self {
            Self::TooSlow(_) => Some(Bound::RequestTimeout),
            Self::NoMemory => None,
        }
    }
}

/// The replies of a session.
pub struct Output<'a> {
    pub bytes: &'a mut Vec<u8>,
    input_capacity: usize,
    memory: &'a mut Share,
    stream: &'a Stream,
}

impl<'a> Output<'a> {
    pub fn new(bytes: &'a mut Vec<u8>, input_capacity: usize, memory: &'a mut Share, stream: &'a Stream) -> Self {
        Self { bytes, input_capacity, memory, stream }
    }

    /// Counts the connection's buffers toward the budget. Call it before waiting, or before appending more, while they
    /// contain much.
    ///
    /// # Errors
    /// The budget does not suffice.
    pub fn account(&mut self) -> Result<(), BudgetExceeded> {
        self.memory.resize(counted(self.input_capacity) + counted(self.bytes.capacity()))
    }

    /// Ends when the client has closed the connection, or its sending side.
    pub async fn client_left(&self) {
        self.stream.left().await;
    }
}
