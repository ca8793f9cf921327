//! A model of the protocol of shares, which a model checker explores completely: three servers, a small limit, and every order of
//! requests, answers, delays, losses, deaths and ticks. The decisions are the real ones: [`Limit::decide`] and
//! [`usable_ns`]. A variant of the protocol with a mistake must exceed the limit, or the model proves nothing.

use stateright::{Checker, Model, Property};

use super::usable_ns;
use divvy_core::algorithm::{Ask, FixedWindow, Limit, State as Bucket, WindowState};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

const SERVERS: usize = 3;
const CREDITS: u64 = 3;
/// Requests in all. `DIVVY_TEST_SHARE_REQUESTS` sets another number for the real protocol: 5 take minutes.
const REQUESTS: u8 = 3;
/// The length of a tick. A window has two.
const TICK_NS: u64 = NANOS_PER_SECOND;
/// The clock of the last server is slow: it loses a thousandth.
const SLOWNESS: u64 = 1_000;

/// The protocol, with at most one mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Real,
    /// The clocks of servers are trusted.
    WithoutAllowance,
    /// A share's time counts from the arrival of the answer.
    FromArrival,
    /// Credits come back to whatever window there is.
    ReturnsToAnyWindow,
    /// A share is used although its window may be over.
    CarriesOver,
    /// A server grants what it has returned, until it knows that the credits are back.
    GrantsWhatItReturned,
}

/// The world at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    tick: u64,
    /// The end of the window in the store (ticks), and the credits left in it.
    window: Option<(u64, u64)>,
    /// Credits granted in that window: by the store, and from shares.
    granted: u64,
    is_exceeded: bool,
    servers: [Server; SERVERS],
    /// Messages under way, sorted.
    messages: Vec<Message>,
    /// How many more requests may be sent, and how many more servers may die.
    requests: u8,
    deaths: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Server {
    is_asking: bool,
    /// Credits, when they were asked for, how long they may be used, and the end of their window.
    share: Option<(u64, u64, u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Ask { server: usize, sent: u64 },
    Answer { server: usize, sent: u64, credits: u64, life_ns: u64, ends: u64 },
    Return { credits: u64, ends: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    Ask { server: usize },
    Grant { server: usize },
    Return { server: usize },
    Die { server: usize },
    Deliver { place: usize },
    Lose { place: usize },
}

struct Shares {
    protocol: Protocol,
    limit: FixedWindow,
    requests: u8,
    /// Whether messages are lost and a server dies. Mistakes show without that.
    has_failures: bool,
}

/// Ticks in all: two windows.
const TICKS: u64 = 4;

impl Shares {
    fn new(protocol: Protocol, requests: u8) -> Self {
        Self {
            protocol,
            limit: FixedWindow::new(CREDITS, 2 * TICK_NS).unwrap(),
            requests,
            has_failures: protocol == Protocol::Real,
        }
    }

    /// Asks the store, whose clock is the world's. Returns what the ask took, and the length and the end of its share.
    fn ask(&self, world: &mut World, ask: Ask) -> (u64, Option<u64>, u64) {
        let at = |tick: u64| Timestamp::from_nanos(tick * TICK_NS);
        let bucket = world.window.map(|(ends, count)| Bucket::FixedWindow(WindowState { ends: at(ends), count }));
        let decision = Limit::FixedWindow(self.limit).decide(bucket.as_ref(), ask, at(world.tick));
        if let Some(Bucket::FixedWindow(WindowState { ends, count })) = decision.state {
            let ends = ends.as_nanos() / TICK_NS;
            if world.window.is_none_or(|(before, _)| before != ends) {
                world.granted = 0;
            }
            world.window = Some((ends, count));
        }
        let outcome = decision.outcome;
        (
            outcome.before.saturating_sub(outcome.left),
            outcome.retry_ns.filter(|_| outcome.allowed),
            outcome.session.as_nanos() / TICK_NS,
        )
    }

    fn grant(world: &mut World, credits: u64) {
        world.granted += credits;
        let is_open = world.window.is_some_and(|(ends, _)| world.tick < ends);
        world.is_exceeded |= credits > 0 && (!is_open || world.granted > CREDITS);
    }

    /// Returns whether the share may be granted from, by the server's own clock.
    fn is_usable(&self, server: usize, (_, since, life_ns, _): (u64, u64, u64, u64), tick: u64) -> bool {
        let passed = (tick - since) * TICK_NS;
        let slow = if server == SERVERS - 1 { passed - passed / SLOWNESS } else { passed };
        match self.protocol {
            Protocol::CarriesOver => true,
            Protocol::WithoutAllowance => slow < life_ns,
            _ => slow < usable_ns(life_ns),
        }
    }
}

impl Model for Shares {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            tick: 0,
            window: None,
            granted: 0,
            is_exceeded: false,
            servers: Default::default(),
            messages: Vec::new(),
            requests: self.requests,
            deaths: self.has_failures.into(),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.tick < TICKS {
            actions.push(Action::Tick);
        }
        for (server, state) in world.servers.iter().enumerate() {
            if !state.is_asking && world.requests > 0 {
                actions.push(Action::Ask { server });
            }
            if let Some(share) = state.share {
                if share.0 > 0 && self.is_usable(server, share, world.tick) {
                    actions.push(Action::Grant { server });
                }
                actions.push(Action::Return { server });
            }
            if world.deaths > 0 && *state != Server::default() {
                actions.push(Action::Die { server });
            }
        }
        for place in 0..world.messages.len() {
            actions.push(Action::Deliver { place });
            actions.extend(self.has_failures.then_some(Action::Lose { place }));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Tick => world.tick += 1,
            Action::Ask { server } => {
                world.requests -= 1;
                world.servers[server].is_asking = true;
                world.messages.push(Message::Ask { server, sent: world.tick });
            }
            Action::Grant { server } => {
                if let Some((credits, ..)) = &mut world.servers[server].share {
                    *credits -= 1;
                }
                Self::grant(&mut world, 1);
            }
            Action::Return { server } => {
                let (credits, _, _, ends) = world.servers[server].share?;
                if self.protocol != Protocol::GrantsWhatItReturned {
                    world.servers[server].share = None;
                }
                world.messages.push(Message::Return { credits, ends });
            }
            Action::Die { server } => {
                world.deaths -= 1;
                world.servers[server] = Server::default();
            }
            Action::Lose { place } => {
                let lost = world.messages.remove(place);
                if let Message::Ask { server, .. } | Message::Answer { server, .. } = lost {
                    world.servers[server].is_asking = false;
                }
            }
            Action::Deliver { place } => match world.messages.remove(place) {
                Message::Ask { server, sent } => {
                    let (taken, life_ns, ends) = self.ask(&mut world, Ask::Share { cost: 1, extra: 2, parts: 2 });
                    Self::grant(&mut world, taken.min(1));
                    let (credits, life_ns) = (taken.saturating_sub(1), life_ns.unwrap_or(0));
                    world.messages.push(Message::Answer { server, sent, credits, life_ns, ends });
                }
                Message::Answer { server, sent, credits, life_ns, ends } => {
                    let is_expected = std::mem::take(&mut world.servers[server].is_asking);
                    let since = if self.protocol == Protocol::FromArrival { world.tick } else { sent };
                    if credits > 0 && is_expected {
                        world.servers[server].share = Some((credits, since, life_ns, ends));
                    }
                }
                Message::Return { credits, ends } => {
                    let ends = match (self.protocol, world.window) {
                        (Protocol::ReturnsToAnyWindow, Some((ends, _))) => ends,
                        _ => ends,
                    };
                    let until = Timestamp::from_nanos(ends * TICK_NS);
                    self.ask(&mut world, Ask::Return { credits: credits as u32, until });
                }
            },
        }
        world.messages.sort_unstable();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no window grants more than its limit", |_, world: &World| !world.is_exceeded),
            Property::sometimes("shares are used", |_, world: &World| world.granted == CREDITS),
        ]
    }
}

#[test]
fn limit_holds_in_every_order_of_events() {
    let requests = std::env::var("DIVVY_TEST_SHARE_REQUESTS").map_or(REQUESTS, |text| text.parse().unwrap());
    let checker = Shares::new(Protocol::Real, requests).checker().threads(2).spawn_bfs().join();
    println!("{} transitions, {} states", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn each_mistake_exceeds_the_limit() {
    for (protocol, requests) in [
        (Protocol::WithoutAllowance, 2),
        (Protocol::FromArrival, 2),
        (Protocol::ReturnsToAnyWindow, 4),
        (Protocol::CarriesOver, 2),
        (Protocol::GrantsWhatItReturned, 3),
    ] {
        let checker = Shares::new(protocol, requests).checker().threads(2).spawn_bfs().join();
        println!("{protocol:?}: {} transitions", checker.state_count());
        assert!(checker.discovery("no window grants more than its limit").is_some(), "{protocol:?}");
    }
}
