//! Requests for decisions to a CrowdSec server.

use std::sync::Arc;

use bytes::Bytes;
use divvy_core::units::Approximate;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use rustls::ClientConfig;
use url::Url;

use crate::answer_reader::{AnswerError, AnswerReader, DecisionList};
use crate::client::{Client, ClientError, InvalidUrl, next_piece};

/// Header with the key of a bouncer.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Maximum length of an answer (bytes): more than a million decisions.
const MAX_ANSWER: u64 = 256 << 20;

/// A CrowdSec server whose decisions divvy follows.
#[derive(Debug, Clone)]
pub struct Upstream {
    client: Client,
    key: HeaderValue,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no answer.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The server refuses the key.
    #[error("it refuses the key (status {0}): `cscli bouncers add divvy` makes one")]
    Key(StatusCode),
    /// The answer has another status than 200.
    #[error("it answers with status {0}")]
    Status(StatusCode),
    /// The answer is not what CrowdSec sends.
    #[error("{0}")]
    Answer(#[from] AnswerError),
    /// The answer is too long.
    #[error("the answer is longer than {}", Approximate(MAX_ANSWER))]
    TooLong,
}

impl FetchError {
    /// Returns whether the request may have reached the server. If so, the server may believe that the answer was read.
    pub fn may_have_been_answered(&self) -> bool {
        match self {
            Self::Client(error) => error.may_have_been_answered(),
            Self::Key(_) => false,
            Self::Status(_) | Self::Answer(_) | Self::TooLong => true,
        }
    }
}

impl Upstream {
    /// Returns the Local API at this URL. `key` is a bouncer's key. An `https` URL needs a configuration of TLS.
    ///
    /// # Errors
    /// [`InvalidUrl`]
    pub fn new(url: &Url, key: HeaderValue, tls: Option<Arc<ClientConfig>>) -> Result<Self, InvalidUrl> {
        Ok(Self { client: Client::new(url, tls)?, key })
    }

    /// Returns the address, for the log.
    pub fn address(&self) -> &str {
        self.client.address()
    }

    /// Asks for all decisions (`is_startup`), or for those since the last answer, and calls `take` with the text of each.
    /// A request that fails may have called it for some of them.
    ///
    /// # Errors
    /// [`FetchError`]
    pub async fn fetch(&self, is_startup: bool, take: impl FnMut(DecisionList, &[u8])) -> Result<(), FetchError> {
        let request = self.request(is_startup)?;
        self.client
            .send(request, async |response| match response.status() {
                StatusCode::OK => read(response.into_body(), take).await,
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(FetchError::Key(status)),
                status => Err(FetchError::Status(status)),
            })
            .await
    }

    fn request(&self, is_startup: bool) -> Result<Request<Full<Bytes>>, ClientError> {
        let path = format!("/v1/decisions/stream?startup={is_startup}&scopes=ip,range");
        let mut request = self.client.request(Method::GET, &path, Bytes::new())?;
        request.headers_mut().insert(API_KEY, self.key.clone());
        Ok(request)
    }
}

async fn read(mut body: Incoming, mut take: impl FnMut(DecisionList, &[u8])) -> Result<(), FetchError> {
    if body.size_hint().lower() > MAX_ANSWER {
        return Err(FetchError::TooLong);
    }
    let (mut reader, mut length) = (AnswerReader::default(), 0_u64);
    while let Some(piece) = next_piece(&mut body).await? {
        length = length.saturating_add(piece.len() as u64);
        if length > MAX_ANSWER {
            return Err(FetchError::TooLong);
        }
        reader.read(&piece, &mut take)?;
        // A fast sender must leave time for this thread's other tasks.
        tokio::task::yield_now().await;
    }
    Ok(reader.finish()?)
}

#[cfg(test)]
mod tests;
