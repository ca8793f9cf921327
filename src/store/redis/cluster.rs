//! One call to a cluster: to the node that has its key, and after it when the key has moved.
//!
//! Only what a node said that it did not do is sent again.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind};
use tokio::time::sleep;

use super::call::Reply;

/// The pause before the cluster is asked again; it doubles each time. Every question that misses makes the client look
/// all slots up anew, so while the cluster elects a master, fewer questions get answered sooner.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// Sends the command until a node has carried it out or refused it. Takes as long as it takes: the caller has the
/// deadline.
pub(super) async fn send(mut connection: ClusterConnection, command: &Cmd) -> RedisResult<Reply> {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut result = connection.req_packed_command(command).await.and_then(Reply::extract_error);
        if let Err(error) = &result
            && let Some((redirection, node)) = redirection(error)
        {
            result = send_to(&mut connection, command, redirection, node).await;
        }
        match result {
            Err(error) if was_not_done(&error) => sleep(pause).await,
            result => return result,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Redirection {
    /// The slot is at another node.
    Moved,
    /// The slot is on its way to another node, and the key is there already.
    Ask,
}

/// Where the node that was asked sends the command, if it does.
fn redirection(error: &RedisError) -> Option<(Redirection, SingleNodeRoutingInfo)> {
    let redirection = match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Redirection::Moved,
        ErrorKind::Server(ServerErrorKind::Ask) => Redirection::Ask,
        _ => return None,
    };
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some((redirection, SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? }))
}

/// Sends the command to one node; after ASKING, as the cluster specification has it, where the slot is not its own yet.
async fn send_to(
    connection: &mut ClusterConnection,
    command: &Cmd,
    redirection: Redirection,
    node: SingleNodeRoutingInfo,
) -> RedisResult<Reply> {
    match redirection {
        Redirection::Moved => connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await?,
        Redirection::Ask => {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ASKING").add_command(command.clone());
            let mut replies = connection.route_pipeline(pipeline, 1, 1, node).await?;
            replies.pop().ok_or((ErrorKind::UnexpectedReturnType, "no reply came after ASKING's"))?
        }
    }
    .extract_error()
}

/// Whether the error says that no node has carried the command out: the slot is elsewhere, moving, or without a master
/// at present. The client looks the slots up again by itself.
fn was_not_done(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        ),
        kind => kind == ErrorKind::ClusterConnectionNotFound,
    }
}
