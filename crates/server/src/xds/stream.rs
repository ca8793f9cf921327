//! A stream of discovery: messages of gRPC over HTTP/2 in both directions, and the pings that notice a dead server.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use h2::client::{Builder, ResponseFuture};
use h2::{Ping, PingPong, RecvStream, SendStream};
use hyper::{Request, StatusCode};
use prost::Message;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::XdsError;
use super::connection::Duplex;
use crate::grpc::messages::{PREFIX, framed};

/// Bytes that the server may send ahead.
const WINDOW: u32 = 1 << 20;

/// When a ping is sent, and how long its answer may take.
#[derive(Debug, Clone, Copy)]
pub struct Pings {
    /// The pause between two pings.
    pub every: Duration,
    /// The maximum time for the answer.
    pub patience: Duration,
}

impl Default for Pings {
    /// Many gRPC servers end connections that send pings more often than every five minutes. The kernel notices sooner if the server's
    /// machine is gone.
    fn default() -> Self {
        Self { every: Duration::from_secs(310), patience: Duration::from_secs(20) }
    }
}

/// An open stream. Dropping this closes its connection.
pub struct XdsStream {
    sender: SendStream<Bytes>,
    response: ResponseFuture,
    /// `None` until the response has begun, which may be as late as its first message.
    body: Option<RecvStream>,
    /// The beginning of a message.
    received: BytesMut,
    max_message: usize,
    /// Ends once the server is dead.
    death: BoxFuture<'static, XdsError>,
    connection: AbortHandle,
}

impl XdsStream {
    /// Opens a stream with this request on a connection. Received messages may have `max_message` bytes.
    ///
    /// # Errors
    /// The server does not speak HTTP/2.
    pub async fn open(
        connection: Box<dyn Duplex>,
        request: Request<()>,
        max_message: usize,
        pings: Pings,
    ) -> Result<Self, XdsError> {
        let mut builder = Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
        let (requests, mut connection) = builder.handshake(connection).await?;
        let ping_pong = connection.ping_pong();
        // Its error ends the stream, too.
        let connection = tokio::spawn(connection).abort_handle();
        let (response, sender) = requests.ready().await?.send_request(request, false)?;
        let death = Box::pin(find_dead(ping_pong, pings));
        Ok(Self { sender, response, body: None, received: BytesMut::new(), max_message, death, connection })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn send(&mut self, message: &impl Message) -> Result<(), XdsError> {
        let mut unsent = Bytes::from(framed(message));
        while !unsent.is_empty() {
            self.sender.reserve_capacity(unsent.len());
            let capacity = poll_fn(|cx| self.sender.poll_capacity(cx));
            let capacity = tokio::select! {
                capacity = capacity => capacity.ok_or(XdsError::Ended)??,
                error = &mut self.death => return Err(error),
            };
            self.sender.send_data(unsent.split_to(capacity.min(unsent.len())), false)?;
        }
        Ok(())
    }

    /// Receives the next message. May be dropped at any time.
    ///
    /// # Errors
    /// The stream has ended, or the message is too long.
    pub async fn receive(&mut self) -> Result<Bytes, XdsError> {
        loop {
            if let Some(message) = take_message(&mut self.received, self.max_message)? {
                return Ok(message);
            }
            let Some(body) = &mut self.body else {
                let response = tokio::select! {
                    response = &mut self.response => response?,
                    error = &mut self.death => return Err(error),
                };
                if response.status() != StatusCode::OK {
                    return Err(XdsError::Http(response.status()));
                }
                // A server that refuses the call says so at once.
                if let Some(status) = Status::from_header_map(response.headers()) {
                    return Err(XdsError::Refused(Box::new(status)));
                }
                self.body = Some(response.into_body());
                continue;
            };
            let data = tokio::select! {
                data = body.data() => data.transpose()?,
                error = &mut self.death => return Err(error),
            };
            let Some(data) = data else {
                let trailers = body.trailers().await?;
                let status = trailers.as_ref().and_then(Status::from_header_map);
                return Err(status.map_or(XdsError::Ended, |status| XdsError::Refused(Box::new(status))));
            };
            body.flow_control().release_capacity(data.len())?;
            self.received.extend_from_slice(&data);
        }
    }
}

impl Drop for XdsStream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Takes a complete message.
fn take_message(received: &mut BytesMut, max: usize) -> Result<Option<Bytes>, XdsError> {
    let Some([flag, length @ ..]) = received.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if *flag != 0 {
        return Err(XdsError::Compressed);
    }
    if length > max {
        return Err(XdsError::TooLong { length, max });
    }
    if received.len() < PREFIX + length {
        return Ok(None);
    }
    received.advance(PREFIX);
    Ok(Some(received.split_to(length).freeze()))
}

/// Sends pings until one is not answered.
async fn find_dead(ping_pong: Option<PingPong>, pings: Pings) -> XdsError {
    let Some(mut ping_pong) = ping_pong else { return std::future::pending().await };
    loop {
        sleep(pings.every).await;
        match timeout(pings.patience, ping_pong.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.into(),
            Err(_) => return XdsError::Silent,
        }
    }
}

#[cfg(test)]
mod tests;
