//! The client that asks sentinels for the master.

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, ConnectionInfo, TlsCertificates, TlsMode};

use crate::invalid_target::InvalidRedisTarget;
use crate::options::RedisSentinel;

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Creates the client. User, password, database and TLS of the first URL are the master's.
pub fn sentinel_client(
    infos: &[ConnectionInfo],
    first: &ConnectionInfo,
    sentinel: &RedisSentinel,
    certificates: Option<TlsCertificates>,
) -> Result<SentinelClient, InvalidRedisTarget> {
    let addresses = infos.iter().map(|info| info.addr().clone());
    let builder = SentinelClientBuilder::new(addresses, &sentinel.master, SentinelServerType::Master);
    let mut builder = builder.map_err(InvalidRedisTarget::Sentinel)?;
    let master = first.redis_settings();
    builder = builder.set_client_to_redis_db(master.db()).set_client_to_redis_protocol(master.protocol());
    if let Some(user) = master.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = master.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(auth) = &sentinel.auth {
        let (user, password) = auth.split_once(':').map_or((None, auth.as_str()), |(user, rest)| (Some(user), rest));
        builder = builder.set_client_to_sentinel_password(password);
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if is_tls(first) {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder.set_client_to_redis_certificates(certificates);
        }
    }
    builder.build().map_err(InvalidRedisTarget::Sentinel)
}
