//! Address of a server's RESP listener: `HOST:PORT`, or a URL as Redis clients accept it.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use super::secret::Secret;

/// The port of divvy's RESP listener, for URLs without a port.
const DEFAULT_PORT: u16 = 9049;

/// The address of a RESP listener, with TLS, user and password if its URL has them. Displays as `HOST:PORT`.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    host_and_port: String,
    /// Whether the URL was `rediss://`.
    pub is_tls: bool,
    /// The user in the URL.
    pub user: Option<String>,
    /// The password in the URL.
    pub password: Option<Secret>,
}

impl ServerAddress {
    pub fn host_and_port(&self) -> &str {
        &self.host_and_port
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host_and_port)
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return parse_url(text);
        }
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(_) => Ok(Self { host_and_port: text.to_owned(), is_tls: false, user: None, password: None }),
            None => Err("must be HOST:PORT, redis://HOST:PORT or rediss://HOST:PORT (TLS)".to_owned()),
        }
    }
}

fn parse_url(text: &str) -> Result<ServerAddress, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    let is_tls = match url.scheme() {
        "redis" => false,
        "rediss" => true,
        other => return Err(format!("has the unknown scheme {other}: redis:// or rediss:// (TLS) is expected")),
    };
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or("has no host")?;
    if !["", "/", "/0"].contains(&url.path()) || url.query().is_some() {
        return Err("has more than a host and a port: divvy has one database, 0, and no parameters".to_owned());
    }
    let password = url.password().map(|password| percent_decode_str(password).decode_utf8());
    let password = password.transpose().map_err(|_| "has a password that is not UTF-8")?;
    let user = percent_decode_str(url.username()).decode_utf8().map_err(|_| "has a user that is not UTF-8")?;
    Ok(ServerAddress {
        user: Some(user.into_owned()).filter(|user| !user.is_empty()),
        host_and_port: format!("{host}:{}", url.port().unwrap_or(DEFAULT_PORT)),
        is_tls,
        password: password.map(|password| Secret::from(password.into_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the address, whether it uses TLS, and the user and the password with a colon between them.
    fn read(text: &str) -> Result<(String, bool, Option<String>), String> {
        let address: ServerAddress = text.parse()?;
        let user = address.user.as_deref().unwrap_or_default();
        let login = address.password.as_ref().map(|password| format!("{user}:{}", password.reveal()));
        Ok((address.to_string(), address.is_tls, login))
    }

    #[test]
    fn addresses_and_urls_are_parsed() {
        for (text, address, is_tls, login) in [
            ("localhost:9049", "localhost:9049", false, None),
            ("[::1]:9049", "[::1]:9049", false, None),
            ("redis://10.0.0.1", "10.0.0.1:9049", false, None),
            ("redis://10.0.0.1:6379/0", "10.0.0.1:6379", false, None),
            ("redis://[::1]:9050/", "[::1]:9050", false, None),
            ("rediss://divvy.example", "divvy.example:9049", true, None),
            ("rediss://default:a%40b@divvy.example:1", "divvy.example:1", true, Some("default:a@b")),
            ("redis://ann%40x:secret@localhost", "localhost:9049", false, Some("ann@x:secret")),
            ("redis://:secret@localhost", "localhost:9049", false, Some(":secret")),
        ] {
            assert_eq!(read(text), Ok((address.into(), is_tls, login.map(Into::into))), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_rejected_with_the_reason() {
        for (text, expected) in [
            ("", "HOST:PORT"),
            ("localhost", "HOST:PORT"),
            ("localhost:resp", "HOST:PORT"),
            ("localhost:65536", "HOST:PORT"),
            ("http://localhost", "scheme http"),
            ("redis://", "host"),
            ("redis://localhost/1", "one database"),
            ("redis://localhost?db=1", "no parameters"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
