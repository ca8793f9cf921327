//! The errors of a connection that this side has given up.

use std::io;

use redis::RedisError;

/// Returns the error of a connection that this side has closed.
pub fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// Returns the error of a connection that took too long to make.
pub fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
