//! Tokens for one actor: a product's customers read their own status with them.
//!
//! A token is a PASETO of the kind `v4.local`: encrypted and authenticated with a key of the key file. It says which actor
//! it is for, and until when. So the server keeps nothing about tokens, and any program with a key can make them.
//!
//! | file | purpose |
//! |---|---|
//! | `keys` | the key file; makes tokens, and opens them |
//! | `grant` | the content of a token: actor, rules and times |
//! | `error` | reasons why a token is refused |

mod error;
mod grant;
mod keys;

pub use self::error::{MAX_TOKEN_BYTES, TokenError};
pub use self::grant::{MAX_TOKEN_TTL, TokenGrant};
pub use self::keys::TokenKeys;
