//! The errors of a connection that this side has given up.

use std::io;

use redis::RedisError;

/// This side ended the connection.
pub fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// Connecting took too long.
pub fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
