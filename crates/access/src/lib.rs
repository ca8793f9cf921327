//! Users, their credentials and their rights.
//!
//! A front logs clients in with the [`Authority`], and gets an [`ClientIdentity`]. Before each request it brings the identity
//! up to date, and asks it whether it [may](ClientIdentity::may) send a request of this category. A change that
//! has waited asks again. Scopes are checked later, where the rules of a request are known.
//!
//! | module | purpose |
//! |---|---|
//! | [`user`] | a user, its rights by categories of requests, its scope, and its hashes |
//! | [`access_file`] | the access file, and the mistakes in it |
//! | [`users`] | the users in force, and the credentials that they have shown |
//! | [`tokens`] | tokens for one actor, and the keys that make them |
//! | [`authority`] | logins, the queue of those that wait for argon2id, reloads, identities, and the check of rights |
//! | [`audit`] | the audit log: a line for each change by an operator; its file, queue and writer |

#![cfg_attr(test, allow(clippy::string_slice, reason = "a test may panic"))]

mod access_file;
pub mod audit;
mod authority;
mod tokens;
mod user;
mod users;

pub use self::access_file::{AccessFile, load, parse};
pub use self::authority::{Authority, ClientIdentity, Forbidden, LoginError};
pub use self::tokens::{MAX_TOKEN_BYTES, MAX_TOKEN_TTL, TokenError, TokenGrant, TokenKeys};
pub use self::user::{
    BadPassword, Categories, Category, DEFAULT_USER, Digest, Grants, MAX_PASSWORD_BYTES, ScopeText, SlowHash, User,
    check_password,
};
pub use self::users::{Credential, Given, Users};
