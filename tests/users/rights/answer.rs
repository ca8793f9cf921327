//! Answers about rights on each front.

use divvy::access::Category;

use crate::support::http::Response;
use crate::support::http2::Http2Response;
use crate::users::scopes::REFUSED;

/// The expected answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Anything but a refusal. The request may fail for other reasons.
    Served,
    /// The request needs a user.
    NoUser,
    /// The user lacks the category.
    NoCategory,
    /// The request is about rules or actors out of the user's scope.
    OutOfScope,
}

impl Expected {
    pub fn of(is_granted: bool) -> Self {
        if is_granted { Self::Served } else { Self::NoCategory }
    }

    /// Checks a reply over RESP to this user's command.
    pub fn check_resp(self, user: &str, command: &str, reply: &str) {
        let is_right = match self {
            Self::Served => !reply.starts_with("-NOPERM") && !reply.starts_with("-NOAUTH"),
            Self::NoUser => reply.starts_with("-NOAUTH"),
            Self::NoCategory => {
                let start = format!("-NOPERM User {user} has no permissions to run the '");
                let named = reply.strip_prefix(&start).and_then(|rest| rest.strip_suffix("' command"));
                let words = command.to_lowercase().replace(' ', "|");
                named.is_some_and(|name| format!("{words}|").starts_with(&format!("{name}|")))
            }
            Self::OutOfScope => reply == format!("-NOPERM {REFUSED}"),
        };
        assert!(is_right, "{user}: {command}: {self:?}, but {reply}");
    }

    /// Checks a response over HTTP to this user's request. The hits of the user `nothing` are all out of scope, those of
    /// others from the second one.
    pub fn check_http(self, category: Option<Category>, user: &str, request: &str, response: &Response) {
        let is_head = request.starts_with("HEAD ");
        let category = category.map_or("", Category::name);
        let is_right = match self {
            Self::Served => ![401, 403].contains(&response.status),
            Self::NoUser => response.status == 401,
            Self::NoCategory => {
                let is_problem = response.header("content-type") == Some("application/problem+json");
                let told = [r#""title":"Forbidden""#, &format!("requests of the category {category}\"")];
                response.status == 403
                    && (is_head || is_problem && told.iter().all(|part| response.body.contains(part)))
            }
            Self::OutOfScope => {
                let hit = if user == "nothing" { 0 } else { 1 };
                let pointer = format!(",\"pointer\":\"#/hits/{hit}\"");
                let pointer = if request.starts_with("POST /v1/hits ") { &pointer } else { "" };
                let start = r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":""#;
                response.status == 403 && (is_head || response.body == format!("{start}{REFUSED}\"{pointer}}}\n"))
            }
        };
        assert!(is_right, "{user}: {request}: {self:?}, but {response:?}");
    }

    /// Checks a response over gRPC. `what` is in the message of a failure.
    pub fn check_grpc(self, what: &str, response: &Http2Response) {
        let is_denied = response.grpc_status.as_deref() == Some("7");
        let is_about_scope = response.grpc_message.as_deref().unwrap_or("").replace("%20", " ") == REFUSED;
        let is_right = match self {
            Self::Served => response.status == 200 && !is_denied,
            Self::NoUser => response.status == 401,
            Self::NoCategory => response.status == 200 && is_denied && !is_about_scope,
            Self::OutOfScope => response.status == 200 && is_denied && is_about_scope,
        };
        assert!(is_right, "{what}: {self:?}, but {response:?}");
    }
}
