//! Parsers for the arguments of each command. The arity was checked with the table.

use super::error::CommandError;
use super::integer::{client_id, integer};
use super::kinds::{ClientFilter, Command, Credentials, Hello, LibraryInfo, ReplyMode};
use super::pairs::PricedOperation;
use super::question::Question;
use crate::protocol::resp::{Arguments, Version};

type ParseResult<'a> = Result<Command<'a>, CommandError>;

pub(super) fn hit(arguments: Arguments<'_>) -> ParseResult<'_> {
    PricedOperation::read(arguments).map(Command::Hit)
}

pub(super) fn peek(arguments: Arguments<'_>) -> ParseResult<'_> {
    // A peek needs no id, because it may be repeated.
    match PricedOperation::read(arguments)? {
        PricedOperation { id: Some(_), .. } => Err(CommandError::MisplacedId),
        request => Ok(Command::Peek(request)),
    }
}

pub(super) fn charge(arguments: Arguments<'_>) -> ParseResult<'_> {
    PricedOperation::read(arguments).map(Command::Charge)
}

pub(super) fn refund(arguments: Arguments<'_>) -> ParseResult<'_> {
    PricedOperation::read(arguments).map(Command::Refund)
}

pub(super) fn ping(arguments: Arguments<'_>) -> ParseResult<'_> {
    if arguments.len() > 1 {
        return Err(CommandError::WrongArity { name: "ping".to_owned() });
    }
    Ok(Command::Ping(arguments.get(0)))
}

pub(super) fn echo(arguments: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Echo(arguments.get(0).unwrap_or_default()))
}

pub(super) fn hello(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    let mut hello = Hello { version: words.next().map(version).transpose()?, ..Hello::default() };
    while let Some(option) = words.next() {
        // An option without its arguments is treated as unknown.
        let incomplete = || CommandError::hello_option(option);
        if option.eq_ignore_ascii_case(b"AUTH") {
            let user = words.next().ok_or_else(incomplete)?;
            let password = words.next().ok_or_else(incomplete)?;
            hello.credentials = Some(Credentials { user: Some(user), password });
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            hello.name = Some(connection_name(words.next().ok_or_else(incomplete)?)?);
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
        Some(_) => Err(CommandError::UnsupportedVersion),
        None => Err(CommandError::VersionNotAnInteger),
    }
}

pub(super) fn auth(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    match (words.next(), words.next(), words.next()) {
        (Some(password), None, None) => Ok(Command::Auth(Credentials { user: None, password })),
        (user, Some(password), None) => Ok(Command::Auth(Credentials { user, password })),
        _ => Err(CommandError::Syntax),
    }
}

pub(super) fn select(arguments: Arguments<'_>) -> ParseResult<'_> {
    match arguments.get(0).and_then(integer) {
        Some(0) => Ok(Command::Select),
        Some(_) => Err(CommandError::NoSuchDatabase),
        None => Err(CommandError::NotAnInteger),
    }
}

/// Parses `[TYPE type | ID id…]`.
pub(super) fn client_list(arguments: Arguments<'_>) -> ParseResult<'_> {
    let filter = match (arguments.get(0), arguments.len()) {
        (None, _) => ClientFilter::All,
        (Some(word), 2) if word.eq_ignore_ascii_case(b"TYPE") => client_type(arguments.get(1).unwrap_or_default())?,
        (Some(word), 2..) if word.eq_ignore_ascii_case(b"ID") => {
            let ids = arguments.skip(1);
            if ids.iter().any(|id| client_id(id).is_none()) {
                return Err(CommandError::NotAClientId);
            }
            ClientFilter::Ids(ids)
        }
        _ => return Err(CommandError::Syntax),
    };
    Ok(Command::ClientList(filter))
}

fn client_type(name: &[u8]) -> Result<ClientFilter<'_>, CommandError> {
    let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
    if is(b"normal") {
        Ok(ClientFilter::All)
    } else if [&b"master"[..], b"replica", b"slave", b"pubsub"].into_iter().any(is) {
        Ok(ClientFilter::None)
    } else {
        Err(CommandError::unknown_client_type(name))
    }
}

pub(super) fn client_reply(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mode = arguments.get(0).unwrap_or_default();
    let is = |known: &[u8]| mode.eq_ignore_ascii_case(known);
    let mode = if is(b"ON") {
        ReplyMode::On
    } else if is(b"OFF") {
        ReplyMode::Off
    } else if is(b"SKIP") {
        ReplyMode::Skip
    } else {
        return Err(CommandError::Syntax);
    };
    Ok(Command::ClientReply(mode))
}

/// Parses `ON` or `OFF`, for switches that have no effect.
pub(super) fn client_switch(arguments: Arguments<'_>) -> ParseResult<'_> {
    let word = arguments.get(0).unwrap_or_default();
    let is_known = [&b"ON"[..], b"OFF"].into_iter().any(|known| word.eq_ignore_ascii_case(known));
    if is_known { Ok(Command::ClientSwitch) } else { Err(CommandError::Syntax) }
}

pub(super) fn client_set_name(arguments: Arguments<'_>) -> ParseResult<'_> {
    connection_name(arguments.get(0).unwrap_or_default()).map(Command::ClientSetName)
}

fn connection_name(name: &[u8]) -> Result<&[u8], CommandError> {
    plain(name, "Client names")
}

pub(super) fn client_set_info(arguments: Arguments<'_>) -> ParseResult<'_> {
    let attribute = arguments.get(0).unwrap_or_default();
    let value = arguments.get(1).unwrap_or_default();
    let info = if attribute.eq_ignore_ascii_case(b"lib-name") {
        LibraryInfo::Name(plain(value, "lib-name")?)
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        LibraryInfo::Version(plain(value, "lib-ver")?)
    } else {
        return Err(CommandError::unknown_option(attribute));
    };
    Ok(Command::ClientSetInfo(info))
}

pub(super) fn command(_: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Describe(Question::All))
}

pub(super) fn command_count(_: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Describe(Question::Count))
}

pub(super) fn command_docs(names: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Describe(Question::Docs(names)))
}

pub(super) fn command_info(names: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Describe(if names.is_empty() { Question::All } else { Question::Info(names) }))
}

pub(super) fn command_list(filter: Arguments<'_>) -> ParseResult<'_> {
    if filter.is_empty() { Ok(Command::Describe(Question::List)) } else { Err(CommandError::Syntax) }
}

pub(super) fn info(sections: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::Info(sections))
}

pub(super) fn config_get(patterns: Arguments<'_>) -> ParseResult<'_> {
    Ok(Command::ConfigGet(patterns))
}

/// Returns `text` if it contains nothing that could break a line of `CLIENT INFO`.
fn plain<'a>(text: &'a [u8], what: &'static str) -> Result<&'a [u8], CommandError> {
    if text.iter().all(u8::is_ascii_graphic) { Ok(text) } else { Err(CommandError::SpecialCharacters { what }) }
}
