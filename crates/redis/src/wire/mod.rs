//! Bytes to and from one Redis: calls, which are the commands that divvy sends, and replies. [`connection`] exchanges them over
//! a [`stream`], and a [`Failure`] is the reason why a call has no result.
//!
//! The replies of scripts that decide are lists of texts, and are read in place. The client library reads all others.

pub mod connection;
pub mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use redis::cluster_routing::Slot;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};

use self::connection::{Unconfirmed, Wait};
use divvy_store::{StoreError, invalid_cursor};

/// A call of a script, or any other command.
pub struct Call {
    /// The script. `None` if the arguments are the whole command.
    pub script: Option<&'static Script>,
    /// Whether the script is sent with its text, so that Redis cannot have forgotten it.
    pub brings_text: bool,
    /// The first key determines the node of a cluster. A call without keys can go to any node.
    pub keys: Vec<Vec<u8>>,
    pub arguments: Vec<Vec<u8>>,
    /// The number of a batch's actions that the call applies.
    pub actions: usize,
}

impl Call {
    pub fn script(script: &'static Script, keys: Vec<Vec<u8>>, arguments: Vec<Vec<u8>>, actions: usize) -> Self {
        Self { script: Some(script), brings_text: false, keys, arguments, actions }
    }

    /// Creates a command without a key, or one for a node that the caller chooses.
    pub fn command(words: &[&[u8]]) -> Self {
        let arguments = words.iter().map(|word| word.to_vec()).collect();
        Self { script: None, brings_text: false, keys: Vec::new(), arguments, actions: 0 }
    }

    /// Creates a command whose second word is its key.
    pub fn command_on_key(words: &[&[u8]]) -> Self {
        let keys = words.get(1).map(|key| key.to_vec()).into_iter().collect();
        Self { keys, ..Self::command(words) }
    }

    /// Returns whether the call may change something. Scripts may.
    pub fn may_write(&self) -> bool {
        self.script.is_some() || self.arguments.first().is_some_and(|word| word == b"SET")
    }

    pub fn slot(&self) -> Slot {
        Slot::for_key(self.keys.first().map_or(&[][..], Vec::as_slice))
    }

    /// Writes the command. `with_text` includes the script's text, because Redis may have forgotten it (after a
    /// restart, a failover, SCRIPT FLUSH).
    pub fn write(&self, with_text: bool, out: &mut Vec<u8>) {
        let mut command = Cmd::new();
        if let Some(script) = self.script {
            let brings_text = with_text || self.brings_text;
            let start = if brings_text { ("EVAL", &script.text) } else { ("EVALSHA", &script.hash) };
            command.arg(start).arg(self.keys.len()).arg(&self.keys);
        }
        command.arg(&self.arguments).write_packed_command(out);
    }
}

/// A Lua script.
pub struct Script {
    /// The name under which the script of groups calls it.
    pub name: &'static str,
    pub text: String,
    /// The hash of the text. Redis finds the script by it, unless it has forgotten the script.
    pub hash: String,
}

impl Script {
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { name, hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}

/// One reply of RESP 2, unparsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply(Vec<u8>);

/// The error for bytes that no Redis sends.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Reply {
    /// Removes the first reply from `bytes`, and returns it. Returns `None` if it is incomplete.
    pub fn take(bytes: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        Ok(end_of(bytes)?.map(|end| Self(bytes.split_to(end).to_vec())))
    }

    /// Returns the error, if the reply is an error.
    pub fn error(&self) -> Option<RedisError> {
        (self.0.first() == Some(&b'-')).then(|| self.value().err()).flatten()
    }

    /// Returns the value of any reply but an error.
    pub fn value(&self) -> Result<Value, RedisError> {
        redis::parse_redis_value(&self.0)?.extract_error()
    }

    /// Returns the value as a `T`. If it is not a `T`, the failure has the text `wrong`.
    pub fn decode<T: FromRedisValue>(&self, wrong: &'static str) -> Result<T, Failure> {
        redis::from_redis_value(self.value()?).map_err(|_| Failure::Foreign(wrong))
    }

    /// Returns the elements of a list of texts. An element may be an error instead.
    pub fn texts(&self) -> Option<Vec<Result<&str, RedisError>>> {
        let mut rest = &*self.0;
        let (b'*', len) = take_head(&mut rest)? else { return None };
        let texts: Option<_> = (0..len).map(|_| take_text(&mut rest)).collect();
        texts.filter(|_| rest.is_empty())
    }
}

/// Returns the end of the first reply in `bytes`, or `None` if the reply is incomplete.
fn end_of(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut rest = bytes;
    let mut elements = 1_u64;
    while elements > 0 {
        let Some((line, after)) = line(rest) else { return Ok(None) };
        rest = after;
        elements -= 1;
        let (kind, digits) = line.split_first().ok_or(Malformed)?;
        let count = || number(digits).ok_or(Malformed);
        match kind {
            b'+' | b'-' | b':' => {}
            b'$' => {
                // A negative length stands for nil. No text and no end of line follow.
                if let Ok(len) = usize::try_from(count()?) {
                    let end = len.checked_add(2).ok_or(Malformed)?;
                    let Some(after) = rest.get(end..) else { return Ok(None) };
                    rest = after;
                }
            }
            b'*' => elements = elements.saturating_add(u64::try_from(count()?).unwrap_or(0)),
            _ => return Err(Malformed),
        }
    }
    Ok(Some(bytes.len() - rest.len()))
}

/// Removes a line with a number from the front of `rest`. Returns its first byte and the number.
fn take_head(rest: &mut &[u8]) -> Option<(u8, i64)> {
    let (line, after) = line(rest)?;
    *rest = after;
    let (kind, digits) = line.split_first()?;
    Some((*kind, number(digits)?))
}

/// Removes a text or an error from the front of `rest`.
fn take_text<'a>(rest: &mut &'a [u8]) -> Option<Result<&'a str, RedisError>> {
    if rest.starts_with(b"-") {
        let (error, after) = line(rest)?;
        *rest = after;
        return Reply([error, b"\r\n"].concat()).error().map(Err);
    }
    let (b'$', len) = take_head(rest)? else { return None };
    let (text, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = after.strip_prefix(b"\r\n")?;
    std::str::from_utf8(text).ok().map(Ok)
}

/// Returns the first line without its end, and the bytes after it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // Most lines have only a few bytes, so this is faster than a search that is optimized for long ones.
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, after) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    Some((line.strip_suffix(b"\r").unwrap_or(line), after))
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The errors that concern one call. Any other one means that all hits are refused, for example because Redis is a replica, is
/// starting, or has no memory.
const OF_ONE_CALL: [&str; 4] = ["ERR", "WRONGTYPE", "NOSCRIPT", "CROSSSLOT"];

/// See [`Failure::ManySlots`].
const MANY_SLOTS: &str = "a Redis Cluster cannot take from these counters together, because they are in different slots: \
                          nothing was taken; send the hits one by one, or let their rules be stacks of one tenant";

/// The reason why a call has no result.
#[derive(Debug, Clone)]
pub enum Failure {
    /// No reply came in time. The call may have been carried out.
    Timeout(Duration),
    /// The batch waited for others, which Redis answered, until almost no time was left. The call may have been carried
    /// out.
    Overloaded,
    /// There was no connection to send the call on.
    Unreachable(Arc<RedisError>),
    /// An earlier call failed like this a moment ago, so this one was not sent.
    Suspended(Arc<Failure>),
    /// Redis refused the call, or the connection broke. In the second case, the call may have been carried out.
    Redis(Arc<RedisError>),
    /// Redis carried the call out, but too few replicas confirmed it in time. A failover may lose it.
    Unconfirmed(Unconfirmed),
    /// A failure at this node of a cluster.
    AtNode(Arc<str>, Arc<Failure>),
    /// No node of the cluster has the key's slot.
    NoNode,
    /// The call was not sent: no node of the cluster has all of its keys.
    ManySlots,
    /// Redis sent a reply that divvy does not understand.
    Foreign(&'static str),
    /// A listing was to continue at a cursor that Redis never issued, or issued before the cluster changed.
    Cursor(String),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error.into())
    }
}

impl Failure {
    /// Returns the failure without its node.
    fn cause(&self) -> &Self {
        if let Self::AtNode(_, failure) = self { failure.cause() } else { self }
    }

    /// Returns whether the call was certainly not carried out.
    pub fn was_not_done(&self) -> bool {
        match self.cause() {
            Self::Unreachable(_) | Self::Suspended(_) | Self::NoNode | Self::ManySlots => true,
            Self::Redis(error) => matches!(error.code(), Some("READONLY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN")),
            _ => false,
        }
    }

    /// Returns whether the connection broke before the reply came.
    pub fn is_broken_connection(&self) -> bool {
        matches!(self.cause(), Self::Redis(error)
            if error.code().is_none() && (error.is_io_error() || error.is_connection_dropped()))
    }

    /// Returns the `host:port` that a node of a cluster names for the call, if it does, and whether only this call goes there,
    /// after ASKING, because the slot is moving. An empty host stands for the host of the node that answered.
    pub fn redirection(&self) -> Option<(&str, bool)> {
        let Self::Redis(error) = self else { return None };
        let (node, _) = error.redirect_node()?;
        Some((node, error.kind() == ErrorKind::Server(ServerErrorKind::Ask)))
    }

    /// Returns whether Redis could not be reached, or refuses every hit. Otherwise, only this call failed.
    fn is_outage(&self) -> bool {
        match self.cause() {
            Self::Timeout(_) | Self::Unreachable(_) | Self::Unconfirmed(_) | Self::Suspended(_) | Self::NoNode => true,
            Self::Redis(_) => {
                self.is_broken_connection() || self.code().is_some_and(|code| !OF_ONE_CALL.contains(&code))
            }
            _ => false,
        }
    }

    /// Returns the first word of the error, or of the inner error if a script failed: before version 7, Redis sends `ERR Error
    /// running script (call to f_…): @user_script:12: -READONLY You can't write…`. If the user may not run a command in a
    /// script, all versions send an `ERR`.
    pub fn code(&self) -> Option<&str> {
        let Self::Redis(error) = self.cause() else { return None };
        let detail = error.detail().filter(|_| error.code() == Some("ERR")).unwrap_or_default();
        if detail.starts_with("The user executing the script") {
            return Some("NOPERM");
        }
        let (_, inner) = detail.split_once(": -").unwrap_or_default();
        inner.split(' ').next().filter(|code| !code.is_empty()).or(error.code())
    }

    /// Describes the failure for the operator. `name` is this Redis.
    pub fn describe(&self, name: &str) -> StoreError {
        match self.cause() {
            Self::Cursor(cursor) => invalid_cursor(cursor),
            Self::ManySlots => StoreError::Impossible(MANY_SLOTS),
            Self::Overloaded => StoreError::Overloaded(self.text(name).into()),
            _ if self.is_outage() => StoreError::Unreachable(self.text(name).into()),
            _ => StoreError::new(self.text(name)),
        }
    }

    fn text(&self, name: &str) -> String {
        match self {
            Self::Timeout(time) => format!("Redis at {name} did not answer within {} ms", time.as_millis()),
            Self::Unconfirmed(Unconfirmed { confirmed, required: Wait { replicas, timeout } }) => format!(
                "{confirmed} of {replicas} replicas of Redis at {name} confirmed a change within {} ms",
                timeout.as_millis()
            ),
            Self::Overloaded => format!("Redis at {name} is overloaded: too many hits are waiting for it"),
            Self::Unreachable(error) => format!("cannot connect to Redis at {name}: {error}"),
            Self::Suspended(failure) => failure.text(name),
            Self::AtNode(node, failure) => match &**failure {
                Self::Redis(error) => format!("Redis at {node}: {error}"),
                failure => failure.text(node),
            },
            Self::Redis(error) if self.redirection().is_some() => {
                format!("Redis at {name} belongs to a cluster ({error}): give the URLs of two or more of its nodes")
            }
            Self::Redis(error) => format!("Redis at {name}: {error}"),
            Self::NoNode => format!("no node of the Redis cluster at {name} serves this key's slot"),
            Self::ManySlots => MANY_SLOTS.to_owned(),
            Self::Foreign(wanted) => format!("Redis at {name} sent an unexpected reply: {wanted}"),
            Self::Cursor(cursor) => invalid_cursor(cursor).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::Reply;
    use crate::wire::stream::closed;

    fn written(call: &Call, with_text: bool) -> String {
        let mut out = Vec::new();
        call.write(with_text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn script_runs_by_its_hash_or_its_text() {
        static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("one", "return 1"));
        let call = Call::script(&SCRIPT, vec![b"key".to_vec()], vec![b"take 1 now".to_vec()], 1);
        let rest = "$1\r\n1\r\n$3\r\nkey\r\n$10\r\ntake 1 now\r\n";
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(written(&call, false), format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{hash}\r\n{rest}"));
        let text = format!("*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n{rest}");
        assert_eq!(written(&call, true), text);
        assert_eq!(written(&Call { brings_text: true, ..call }, false), text);
    }

    impl Reply {
        /// Returns a list of these elements, each a line such as `:5`.
        pub fn list(elements: &[String]) -> Self {
            Self(format!("*{}\r\n{}", elements.len(), elements.concat()).into())
        }

        pub fn of_texts(texts: &[&str]) -> Self {
            Self::list(&texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect::<Vec<_>>())
        }

        /// Returns the reply as Redis sends it.
        pub fn to_line(&self) -> String {
            String::from_utf8(self.0.clone()).unwrap()
        }

        pub fn from_line(line: &str) -> Self {
            Self(line.to_owned().into())
        }
    }

    #[test]
    fn end_of_a_reply_is_found_once_it_is_complete() {
        let lines = ["+OK\r\n", "-ERR no\r\n", ":-5\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n"];
        let longer = ["$0\r\n\r\n", "$4\r\na\r\nb\r\n", "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n"];
        for reply in lines.into_iter().chain(longer) {
            let bytes = [reply.as_bytes(), b"+next\r\n"].concat();
            assert_eq!(end_of(&bytes), Ok(Some(reply.len())), "{reply:?}");
            for end in 0..reply.len() {
                assert_eq!(end_of(&bytes[..end]), Ok(None), "{:?}", &reply[..end]);
            }
        }
        for foreign in ["\r\n", "x\r\n", "$x\r\n", "*\r\n", ":\n$5x\r\n", "HTTP/1.1 400 Bad Request\r\n"] {
            let end = end_of(foreign.as_bytes());
            assert!(end == Err(Malformed) || foreign.starts_with(':'), "{foreign:?}: {end:?}");
        }
    }

    #[test]
    fn texts_and_errors_are_read_in_order() {
        let reply = Reply::of_texts(&["a b", "", "é"]);
        let texts: Result<Vec<_>, _> = reply.texts().unwrap().into_iter().collect();
        assert_eq!(texts.unwrap(), ["a b", "", "é"]);
        let reply = Reply::from_line("*2\r\n-ERR no\r\n$1\r\na\r\n");
        let texts = reply.texts().unwrap();
        assert!(matches!(texts.as_slice(), [Err(error), Ok("a")] if error.code() == Some("ERR")), "{texts:?}");
        for foreign in ["+OK\r\n", "*1\r\n:1\r\n", "*1\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n$1\r\na\r\n", "*-1\r\n$"] {
            assert!(Reply::from_line(foreign).texts().is_none(), "{foreign:?}");
        }
    }

    /// Generates arbitrary replies, as bytes.
    fn any_reply() -> impl Strategy<Value = String> {
        let line = |kind: &'static str, text: &'static str| text.prop_map(move |text| format!("{kind}{text}\r\n"));
        let leaf = prop_oneof![
            line("+", "[ -~]{0,9}"),
            line("-", "[A-Z]{1,5}( [a-z]{0,5})?"),
            any::<i64>().prop_map(|number| format!(":{number}\r\n")),
            Just("$-1\r\n".to_owned()),
            Just("*-1\r\n".to_owned()),
            "[ -~\r\n]{0,9}".prop_map(|text| format!("${}\r\n{text}\r\n", text.len())),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(|inner| format!("*{}\r\n{}", inner.len(), inner.concat()))
        })
    }

    proptest! {
        /// Arbitrary bytes are read without a panic.
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(prop::sample::select(b"*$:+-_\r\n0123|>x".to_vec()), 0..60)) {
            if let Ok(Some(end)) = end_of(&bytes) {
                prop_assert!(end <= bytes.len());
                let reply = Reply(bytes[..end].to_vec());
                let _ = (reply.value(), reply.error());
            }
            let _ = Reply(bytes).texts();
        }

        /// Replies are separated correctly, and the client library's parser agrees about each of them.
        #[test]
        fn replies_end_where_the_next_one_begins(replies in prop::collection::vec(any_reply(), 1..5), cut in any::<prop::sample::Index>()) {
            let mut bytes = BytesMut::from(replies.concat().as_bytes());
            for reply in &replies {
                prop_assert_eq!(end_of(&reply.as_bytes()[..cut.index(reply.len())]), Ok(None));
                let split = Reply::take(&mut bytes).unwrap().unwrap();
                prop_assert_eq!(&split, &Reply::from_line(reply));
                let is_error = reply.starts_with('-');
                prop_assert_eq!(split.error().is_some(), is_error);
                let parsed = redis::parse_redis_value(reply.as_bytes());
                prop_assert!(parsed.is_ok(), "{parsed:?}");
                prop_assert!(is_error || split.value().is_ok() || reply.contains('-'));
                prop_assert!(split.texts().is_none() || reply.starts_with('*'));
            }
            prop_assert!(bytes.is_empty());
        }
    }

    fn refusal(line: &str) -> Failure {
        Failure::from(Reply::from_line(line).error().unwrap())
    }

    #[test]
    fn only_an_error_that_refuses_all_hits_is_an_outage() {
        let at_node = |failure: Failure| Failure::AtNode("a:1".into(), failure.into());
        for line in ["-OOM no memory\r\n", "-LOADING wait\r\n", "-READONLY a replica\r\n", "-MISCONF no disk\r\n"] {
            assert!(refusal(line).is_outage() && at_node(refusal(line)).is_outage(), "{line}");
        }
        for line in
            ["-WRONGTYPE no string\r\n", "-ERR the key does not hold a number of credits\r\n", "-NOSCRIPT x\r\n"]
        {
            assert!(!refusal(line).is_outage() && !at_node(refusal(line)).is_outage(), "{line}");
        }
        let in_a_script =
            |error: &str| refusal(&format!("-ERR Error running script (call to f_1): @user_script:12: {error}\r\n"));
        assert!(in_a_script("-OOM no memory").is_outage());
        assert_eq!(in_a_script("-READONLY You can't write").code(), Some("READONLY"));
        assert!(!in_a_script("-WRONGTYPE no string").is_outage());
        assert!(!in_a_script("12: a mistake").is_outage());
        let forbidden =
            "-ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:2.\r\n";
        assert!(refusal(forbidden).is_outage());
        assert!(Failure::Timeout(Duration::ZERO).is_outage());
        assert!(Failure::from(closed()).is_outage());
        assert!(!Failure::Foreign("x").is_outage());
    }
}
