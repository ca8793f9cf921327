//! Reasons why a token is refused.

/// Maximum length of a token, enough for an actor of two thousand bytes (bytes).
pub const MAX_TOKEN_BYTES: usize = 4096;

/// Reason why a token is refused. It is for the log: clients get the same answer for all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token exceeds [`MAX_TOKEN_BYTES`].
    #[error("it is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// The text is not a token of this version and purpose.
    #[error("it is not a v4.local token")]
    Malformed,
    /// The footer does not name a key.
    #[error("its footer is not {{\"kid\":\"k4.lid.…\"}}")]
    NoKeyId,
    /// The key file has no key with the id in the footer.
    #[error("its key is not in the key file")]
    UnknownKey,
    /// The token was changed, or made with another key.
    #[error("it was altered, or made with another key")]
    Altered,
    /// The content does not say what a token must say.
    #[error("its content is not valid: {0}")]
    Content(String),
    /// The token is not valid anymore.
    #[error("it has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("it is not valid yet")]
    NotYetValid,
    /// The token would be valid for longer than is allowed.
    #[error("it expires too late")]
    ExpiresTooLate,
    /// No key could encrypt the token: the system provides no random bytes.
    #[error("it cannot be encrypted")]
    Encryption,
}
