//! Address of a server's HTTP listener: `HOST:PORT`, or a URL.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use super::secret::Secret;

/// The address of an HTTP listener, with TLS, user and password if its URL has them. Displays as `HOST:PORT`.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    host_and_port: String,
    /// Whether the URL was `https://`.
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
            None => Err("must be HOST:PORT, http://HOST:PORT or https://HOST:PORT (TLS)".to_owned()),
        }
    }
}

fn parse_url(text: &str) -> Result<ServerAddress, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    let is_tls = match url.scheme() {
        "http" => false,
        "https" => true,
        "redis" | "rediss" => {
            return Err(
                "is an address of RESP, but this speaks HTTP: write http://HOST:8322 or https://HOST:8322 (TLS)"
                    .to_owned(),
            );
        }
        other => return Err(format!("has the unknown scheme {other}: http:// or https:// (TLS) is expected")),
    };
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or("has no host")?;
    let port = url.port_or_known_default().ok_or("has no port")?;
    if !["", "/"].contains(&url.path()) || url.query().is_some() {
        return Err("has more than a host and a port".to_owned());
    }
    let password = url.password().map(|password| percent_decode_str(password).decode_utf8());
    let password = password.transpose().map_err(|_| "has a password that is not UTF-8")?;
    let user = percent_decode_str(url.username()).decode_utf8().map_err(|_| "has a user that is not UTF-8")?;
    Ok(ServerAddress {
        user: Some(user.into_owned()).filter(|user| !user.is_empty()),
        host_and_port: format!("{host}:{port}"),
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
            ("localhost:8322", "localhost:8322", false, None),
            ("[::1]:8322", "[::1]:8322", false, None),
            ("http://10.0.0.1", "10.0.0.1:80", false, None),
            ("http://10.0.0.1:8322/", "10.0.0.1:8322", false, None),
            ("http://[::1]:9050/", "[::1]:9050", false, None),
            ("https://divvy.example", "divvy.example:443", true, None),
            ("https://default:a%40b@divvy.example:1", "divvy.example:1", true, Some("default:a@b")),
            ("http://ann%40x:secret@localhost:8322", "localhost:8322", false, Some("ann@x:secret")),
            ("http://:secret@localhost:8322", "localhost:8322", false, Some(":secret")),
        ] {
            assert_eq!(read(text), Ok((address.into(), is_tls, login.map(Into::into))), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_rejected_with_the_reason() {
        for (text, expected) in [
            ("", "HOST:PORT"),
            ("localhost", "HOST:PORT"),
            ("localhost:http", "HOST:PORT"),
            ("localhost:65536", "HOST:PORT"),
            ("ftp://localhost", "scheme ftp"),
            ("redis://localhost:9049", "write http://HOST:8322"),
            ("http://", "host"),
            ("http://localhost/v1", "more than a host and a port"),
            ("http://localhost?a=1", "more than a host and a port"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
