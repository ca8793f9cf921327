//! What is said of a connection that this side has given up.

use std::io;

use redis::RedisError;

/// Its own side ended it.
pub fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// It took too long to be made.
pub fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
