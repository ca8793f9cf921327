//! Parsers of `ACL` and its subcommands.

use super::ask::AclAsk;
use super::error::CommandError;
use super::kinds::Command;
use crate::protocol::resp::Arguments;
use divvy_access::Category;

pub(super) fn get_user(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    Ok(Command::Acl(AclAsk::GetUser(arguments.get(0).unwrap_or_default())))
}

pub(super) fn categories(arguments: Arguments<'_>) -> Result<Command<'_>, CommandError> {
    if arguments.len() > 1 {
        return Err(CommandError::Syntax);
    }
    let Some(name) = arguments.get(0) else { return Ok(Command::Acl(AclAsk::Categories)) };
    let category = std::str::from_utf8(name).ok().and_then(Category::parse);
    let category = category.ok_or_else(|| CommandError::unknown_category(name))?;
    Ok(Command::Acl(AclAsk::Commands(category)))
}
