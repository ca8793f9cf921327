//! Parsers for the arguments of each command. The arity was checked with the table.

use super::{AclAsk, Command, CommandError, Credentials, Hello, LibraryInfo, ReplyMode, echo};
use crate::protocol::resp::{Arguments, Version};
use divvy_access::Category;

pub(super) type ParseResult<'a> = Result<Command<'a>, CommandError>;

/// Parses an integer as Redis does: without a plus sign or leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(number).as_bytes() == text).then_some(number)
}

pub(super) fn ping(arguments: Arguments<'_>) -> ParseResult<'_> {
    if arguments.len() > 1 {
        return Err(CommandError::wrong_arity("ping"));
    }
    Ok(Command::Ping(arguments.get(0)))
}

pub(super) fn hello(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    let mut hello = Hello { version: words.next().map(version).transpose()?, ..Hello::default() };
    while let Some(option) = words.next() {
        // An option without its arguments is treated as unknown.
        let text = || format!("ERR Syntax error in HELLO option '{}'", echo(option));
        let incomplete = || CommandError::argument(text());
        if option.eq_ignore_ascii_case(b"AUTH") {
            let user = words.next().ok_or_else(incomplete)?;
            let password = words.next().ok_or_else(incomplete)?;
            hello.credentials = Some(Credentials { user: Some(user), password });
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            hello.name = Some(plain(words.next().ok_or_else(incomplete)?, CLIENT_NAMES)?);
        } else {
            return Err(incomplete());
        }
    }
    Ok(Command::Hello(hello))
}

fn version(number: &[u8]) -> Result<Version, CommandError> {
    match integer(number) {
        Some(2) => Ok(Version::Resp2),
        Some(3) => Ok(Version::Resp3),
        Some(_) => Err(CommandError::fixed("NOPROTO unsupported protocol version")),
        None => Err(CommandError::fixed("ERR Protocol version is not an integer or out of range")),
    }
}

pub(super) fn auth(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    match (words.next(), words.next(), words.next()) {
        (Some(password), None, None) => Ok(Command::Auth(Credentials { user: None, password })),
        (user, Some(password), None) => Ok(Command::Auth(Credentials { user, password })),
        _ => Err(CommandError::SYNTAX),
    }
}

pub(super) fn select(arguments: Arguments<'_>) -> ParseResult<'_> {
    match arguments.get(0).and_then(integer) {
        Some(0) => Ok(Command::Okay),
        Some(_) => Err(CommandError::fixed("ERR DB index is out of range")),
        None => Err(CommandError::NOT_AN_INTEGER),
    }
}

pub(super) fn client_reply(arguments: Arguments<'_>) -> ParseResult<'_> {
    let modes = [("ON", ReplyMode::On), ("OFF", ReplyMode::Off), ("SKIP", ReplyMode::Skip)];
    let word = arguments.word(0);
    let mode = modes.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    mode.map(|(_, mode)| Command::ClientReply(mode)).ok_or(CommandError::SYNTAX)
}

/// Parses `ON` or `OFF`, for switches that have no effect.
pub(super) fn client_switch(arguments: Arguments<'_>) -> ParseResult<'_> {
    match client_reply(arguments)? {
        Command::ClientReply(ReplyMode::On | ReplyMode::Off) => Ok(Command::Okay),
        _ => Err(CommandError::SYNTAX),
    }
}

pub(super) fn client_set_name(arguments: Arguments<'_>) -> ParseResult<'_> {
    plain(arguments.word(0), CLIENT_NAMES).map(Command::ClientSetName)
}

/// Maximum length of the names that a client gives itself and its library (bytes). Each connection keeps them.
const MAX_NAME: usize = 256;
const CLIENT_NAMES: &str = "Client names";

pub(super) fn client_set_info(arguments: Arguments<'_>) -> ParseResult<'_> {
    let attribute = arguments.word(0);
    let value = arguments.word(1);
    let info = if attribute.eq_ignore_ascii_case(b"lib-name") {
        LibraryInfo::Name(plain(value, "lib-name")?)
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        LibraryInfo::Version(plain(value, "lib-ver")?)
    } else {
        return Err(CommandError::argument(format!("ERR Unrecognized option '{}'", echo(attribute))));
    };
    Ok(Command::ClientSetInfo(info))
}

pub(super) fn acl_categories(arguments: Arguments<'_>) -> ParseResult<'_> {
    if arguments.len() > 1 {
        return Err(CommandError::SYNTAX);
    }
    let Some(name) = arguments.get(0) else { return Ok(Command::Acl(AclAsk::Categories)) };
    let category = std::str::from_utf8(name).ok().and_then(Category::parse);
    let unknown = || CommandError::argument(format!("ERR Unknown category '{}'", echo(name)));
    Ok(Command::Acl(AclAsk::Commands(category.ok_or_else(unknown)?)))
}

/// Returns `text` if it contains nothing that could break a line of `CLIENT INFO`.
fn plain<'a>(text: &'a [u8], what: &str) -> Result<&'a [u8], CommandError> {
    if text.len() > MAX_NAME {
        return Err(CommandError::argument(format!("ERR {what} cannot have more than {MAX_NAME} bytes.")));
    }
    if text.iter().all(u8::is_ascii_graphic) {
        return Ok(text);
    }
    let what = format!("ERR {what} cannot contain spaces, newlines or special characters.");
    Err(CommandError::argument(what))
}
