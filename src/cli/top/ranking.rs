//! The answer to `DIVVY.TOP`, and its text.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::cli::resp::{number, parts, text};
use crate::cli::text::printable;
use divvy_server::protocol::resp::client::Frame;

/// The actors of one rule, or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// `None` for all rules.
    rule: Option<String>,
    order: String,
    last: u64,
    canary: bool,
    sampled: bool,
    has_room: bool,
    total: Option<u64>,
    top: Vec<Actor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Actor {
    /// Its rule, in a ranking of all rules.
    rule: Option<String>,
    actor: String,
    count: u64,
    error: u64,
    cut: bool,
}

impl Ranking {
    /// Reads a reply; `None` if it is not a ranking.
    pub fn read(reply: &Frame) -> Option<Self> {
        let words = parts(reply)?;
        let value = |name: &str| {
            let mut pairs = words.chunks_exact(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
            pairs.find(|(key, _)| text(key).as_deref() == Some(name)).map(|(_, value)| value)
        };
        let flag = |name| Some(number(value(name)?)? == 1);
        let actor = |frame: &Frame| {
            let [actor, count, error, cut] = parts(frame)? else { return None };
            let (actor, count, error) = (text(actor)?, number(count)?, number(error)?);
            Some(Actor { rule: None, actor, count, error, cut: number(cut)? == 1 })
        };
        Some(Self {
            rule: Some(text(value("rule")?)?),
            order: text(value("order")?)?,
            last: number(value("last")?)?,
            canary: flag("canary")?,
            sampled: flag("sampled")?,
            has_room: flag("hasRoom")?,
            total: number(value("total")?),
            top: parts(value("top")?)?.iter().map(actor).collect::<Option<_>>()?,
        })
    }

    /// Joins the rankings of several rules into one of the first `count` actors; `None` without any. The total is known if each
    /// is, and there is room if each rule has some.
    pub fn of_all(rankings: Vec<Self>, count: usize) -> Option<Self> {
        let first = rankings.first()?.clone();
        let total = rankings.iter().map(|ranking| ranking.total).sum();
        let (sampled, has_room) = (rankings.iter().any(|one| one.sampled), rankings.iter().all(|one| one.has_room));
        let named =
            |ranking: Self| ranking.top.into_iter().map(move |actor| Actor { rule: ranking.rule.clone(), ..actor });
        let mut top: Vec<_> = rankings.into_iter().flat_map(named).collect();
        top.sort_by_key(|actor| Reverse(actor.count));
        top.truncate(count);
        Some(Self { rule: None, total, sampled, has_room, top, ..first })
    }

    /// Returns the object that `GET /v1/top` would return. In a ranking of all rules, each actor has its rule.
    pub fn to_json(&self) -> Value {
        let Self { rule, order, last, canary, sampled, has_room, total, top } = self;
        let actor = |Actor { rule, actor, count, error, cut }: &Actor| {
            let mut object = json!({ "actor": actor, "cut": cut, "count": count, "error": error });
            if let (Some(rule), Some(object)) = (rule, object.as_object_mut()) {
                object.insert("rule".to_owned(), rule.as_str().into());
            }
            object
        };
        let top: Vec<_> = top.iter().map(actor).collect();
        json!({ "rule": rule, "order": order, "last": last, "canary": canary, "sampled": sampled, "hasRoom": has_room,
                "total": total, "top": top })
    }

    /// Returns a title, a header, and a line for each actor, without control characters.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.title()];
        if !self.has_room {
            let whose = if self.rule.is_some() { "this rule" } else { "some rules" };
            lines.push(format!("the server has no memory left for the actors of {whose}: raise its --top-memory"));
            if self.rule.is_some() {
                return lines;
            }
        }
        let rule = if self.rule.is_some() { "" } else { "rule: " };
        lines.push(format!("{:>12} {:>12} {:>7}  {rule}actor", "count", "error", "share"));
        lines.extend(self.top.iter().map(|actor| self.line(actor)));
        lines
    }

    fn title(&self) -> String {
        let window = if self.last == 3_600 { "hour" } else { "minute" };
        let what = match (self.order.as_str(), self.canary) {
            ("taken", _) => "credits taken",
            (_, true) => "requests that the canary would deny",
            (_, false) => "denied requests",
        };
        let total = self.total.map(|total| format!(", {total} in all")).unwrap_or_default();
        let estimated = if self.sampled { " (estimates)" } else { "" };
        let rule = self.rule.as_deref().unwrap_or("all rules");
        format!("{}: {what}, last {window}{total}{estimated}", on_one_line(rule))
    }

    fn line(&self, Actor { rule, actor, count, error, cut }: &Actor) -> String {
        let share = match self.total {
            Some(total) if total > 0 => format!("{:.1} %", *count as f64 * 100.0 / total as f64),
            _ => String::new(),
        };
        let rule = rule.as_ref().map(|rule| format!("{}: ", on_one_line(rule))).unwrap_or_default();
        format!("{count:>12} {error:>12} {share:>7}  {rule}{}{}", on_one_line(actor), if *cut { "…" } else { "" })
    }
}

fn on_one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_server::protocol::resp::Version;
    use divvy_server::protocol::resp::client::decode_reply;

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn ranking(total: &str, has_room: u8) -> Ranking {
        let reply = format!(
            "*16\r\n{}{}{}{}{}:60\r\n{}:0\r\n{}:1\r\n{}:{has_room}\r\n{}{total}\r\n{}*2\r\n*4\r\n{}:30\r\n:5\r\n:0\r\n*4\r\n{}:10\r\n:5\r\n:1\r\n",
            bulk("rule"),
            bulk("by-ip"),
            bulk("order"),
            bulk("denied"),
            bulk("last"),
            bulk("canary"),
            bulk("sampled"),
            bulk("hasRoom"),
            bulk("total"),
            bulk("top"),
            bulk("a\u{1b}[2J"),
            bulk("b\nc"),
        );
        Ranking::read(&decode_reply(reply.as_bytes(), Version::Resp2).unwrap().unwrap().0).unwrap()
    }

    #[test]
    fn reply_becomes_a_table_without_control_characters() {
        let expected = "by-ip: denied requests, last minute, 60 in all (estimates)
       count        error   share  actor
          30            5  50.0 %  a\\u{1b}[2J
          10            5  16.7 %  b\\nc…";
        assert_eq!(ranking(":60", 1).lines().join("\n"), expected);
        assert!(ranking("$-1", 1).lines()[0].ends_with("last minute (estimates)"));
        assert!(ranking(":0", 0).lines()[1].contains("--top-memory"));
    }

    #[test]
    fn rankings_of_all_rules_are_one_with_the_worst_first() {
        let of = |rule: &str, total, counts: &[u64]| {
            let actor =
                |count: &u64| Actor { rule: None, actor: format!("a{count}"), count: *count, error: 0, cut: false };
            Ranking { rule: Some(rule.to_owned()), total, top: counts.iter().map(actor).collect(), ..ranking(":60", 1) }
        };
        let all =
            Ranking::of_all(vec![of("api", Some(60), &[30, 10]), of("login", Some(40), &[20, 15, 5])], 4).unwrap();
        let lines = all.lines();
        assert_eq!(lines[0], "all rules: denied requests, last minute, 100 in all (estimates)");
        assert_eq!(
            lines[1..],
            [
                "       count        error   share  rule: actor",
                "          30            0  30.0 %  api: a30",
                "          20            0  20.0 %  login: a20",
                "          15            0  15.0 %  login: a15",
                "          10            0  10.0 %  api: a10",
            ]
        );
        assert_eq!(
            all.to_json()["top"][1],
            json!({ "rule": "login", "actor": "a20", "cut": false, "count": 20, "error": 0 })
        );
        let unknown = Ranking::of_all(vec![of("api", None, &[1]), of("login", Some(1), &[])], 9).unwrap();
        assert_eq!((unknown.total, Ranking::of_all(Vec::new(), 9)), (None, None));
    }

    #[test]
    fn reply_becomes_the_object_of_the_http_api() {
        let json = ranking(":60", 1).to_json();
        assert_eq!(
            (json["total"].as_u64(), json["hasRoom"].as_bool(), json["last"].as_u64()),
            (Some(60), Some(true), Some(60))
        );
        assert_eq!(json["top"][1], json!({ "actor": "b\nc", "cut": true, "count": 10, "error": 5 }));
    }
}
