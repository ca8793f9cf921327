//! Bytes to and from one Redis: connections, TLS, commands, replies, and the reasons why a call has no answer.

mod call;
mod connection;
mod driver;
mod failure;
mod in_flight;
mod io_error;
mod last_reply;
mod queue;
mod reply;
mod script;
mod stream;
mod tls;

pub use self::call::Call;
pub use self::connection::Connection;
pub use self::failure::Failure;
pub use self::in_flight::InFlight;
pub use self::io_error::{closed, timed_out};
pub use self::last_reply::LastReply;
pub use self::queue::{Answer, Unanswered};
pub use self::reply::Reply;
pub use self::script::Script;
pub use self::stream::{Stream, connect};
pub use self::tls::RedisTls;
