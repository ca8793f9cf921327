//! Users, their credentials and their rights.
//!
//! A front logs clients in with the [`Authority`], and gets an [`Identity`]. Before each request it brings the identity
//! up to date, and asks it whether it [may](Identity::may) send a request of this category. That is the only check of
//! categories. Scopes are checked later, where the rules of a request are known.
//!
//! | module | purpose |
//! |---|---|
//! | [`category`] | categories of requests |
//! | [`mod@file`], [`words`], [`warnings`], [`problem`] | the access file, and the mistakes in it |
//! | [`user`], [`secret`], [`scope_text`] | a user, its hashes, and its scope |
//! | [`active_user`], [`users`], [`verified`], [`credentials`] | the users in force, and the credentials that they have shown |
//! | [`tokens`] | tokens for one actor, and the keys that make them |
//! | [`authority`], [`identity`] | logins, reloads, and the check of rights |
//! | [`check_queue`] | the order of logins that wait for argon2id |

mod active_user;
mod authority;
mod category;
mod check_queue;
mod credentials;
mod file;
mod identity;
mod problem;
mod scope_text;
mod secret;
mod tokens;
mod user;
mod users;
mod verified;
mod warnings;
mod words;

pub use self::authority::{Authority, LoginError};
pub use self::category::{Categories, Category};
pub use self::credentials::{Credential, Given};
pub use self::file::{AccessFile, load, parse};
pub use self::identity::{Forbidden, Identity};
pub use self::problem::{Problem, Report};
pub use self::scope_text::ScopeText;
pub use self::secret::{BadPassword, Digest, MAX_PASSWORD_BYTES, SlowHash, check_password};
pub use self::tokens::{MAX_TOKEN_BYTES, MAX_TOKEN_TTL, TokenError, TokenGrant, TokenKeys};
pub use self::user::{DEFAULT_USER, Grants, User};
pub use self::users::Users;
