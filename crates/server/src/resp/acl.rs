//! The replies to `ACL`. They contain no hashes of passwords.

use super::client::Client;
use crate::protocol::command::AclAsk;
use crate::protocol::command::describe::commands_of;
use crate::protocol::resp::ReplyWriter;
use divvy_access::{Category, DEFAULT_USER, Grants, User};

/// Answers a question about users.
pub fn write(client: &Client, ask: AclAsk<'_>, reply: &mut ReplyWriter) {
    match ask {
        AclAsk::WhoAmI => reply.bulk(client.gate.identity().name().unwrap_or(DEFAULT_USER).as_bytes()),
        AclAsk::Categories => {
            reply.array(Category::ALL.len());
            Category::ALL.into_iter().for_each(|category| reply.bulk(category.name().as_bytes()));
        }
        AclAsk::Commands(category) => {
            let names = commands_of(category);
            reply.array(names.len());
            names.iter().for_each(|name| reply.bulk(name.as_bytes()));
        }
        AclAsk::List => match client.gate.guard() {
            Some(guard) => {
                let users = guard.authority().users();
                let users = users.sorted();
                reply.array(users.len());
                users.iter().for_each(|user| reply.bulk(user.to_string().as_bytes()));
            }
            None => {
                reply.array(1);
                reply.bulk(User::unrestricted().to_string().as_bytes());
            }
        },
        AclAsk::GetUser(name) => match client.gate.guard() {
            Some(guard) => write_user(guard.authority().users().user(name).map(|user| &***user), reply),
            None => write_user(Some(&User::unrestricted()).filter(|user| user.name.as_bytes() == name), reply),
        },
    }
}

/// Writes Redis's fields. Channels and selectors do not exist here.
fn write_user(user: Option<&User>, reply: &mut ReplyWriter) {
    let Some(user) = user else { return reply.null() };
    reply.map(6);
    reply.bulk(b"flags");
    reply.array(1);
    reply.bulk(if user.is_on { b"on" } else { b"off" });
    reply.bulk(b"passwords");
    let kinds = [("sha256", user.digests.len()), ("argon2id", user.slow_hashes.len())];
    reply.array(kinds.iter().map(|(_, count)| count).sum());
    for (kind, count) in kinds {
        (0..count).for_each(|_| reply.bulk(kind.as_bytes()));
    }
    for (field, text) in
        [("commands", Grants(user.granted).to_string()), ("keys", user.scope.to_string()), ("channels", String::new())]
    {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    reply.bulk(b"selectors");
    reply.array(0);
}
