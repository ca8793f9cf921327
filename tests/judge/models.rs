//! Models of one counter, one request at a time, as divvy's documentation describes it. They were written from docs/rules.md,
//! docs/reservations.md and docs/resp.md alone, and independent of divvy's code.

use super::history::{Operation, Reply, Request, ReservationId, Status};

/// Difference between a window's end and the clocks of clients, processes and Redis that is tolerated, in nanoseconds.
pub const TOLERANCE: u64 = 100_000_000;

/// The changes that a crash of the store may undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Nothing that was acknowledged.
    Nothing,
    /// Changes that no client has an answer to.
    Unacknowledged,
    /// Any number of the last changes.
    Latest,
}

/// A counter that gives no credit back during a history unless a client does, or a fixed window.
#[derive(Debug, Clone, Copy)]
pub struct Credits {
    pub limit: u64,
    /// Length of a window that may end during the history, in nanoseconds.
    pub window: Option<u64>,
    /// `overrun = debt`: a hit passes while anything is left.
    pub debt: bool,
    /// `algorithm = concurrency`: a commit counts nothing.
    pub leases: bool,
    pub loss: Loss,
}

/// The bucket of `RL.REDUCE`, at times that its clients send, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Refills {
    pub max: u64,
    pub every: u64,
    pub tokens: u64,
    pub loss: Loss,
}

/// A counter that gives credits back all the time: only sums over times are judged, and no order of operations.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    /// In a span of any length, hits take at most `burst`, and `credits` for each interval of `every` nanoseconds begun.
    pub burst: u64,
    pub credits: u64,
    pub every: u64,
    /// Without a hit, `limit` credits are left after this time, in nanoseconds.
    pub limit: u64,
    pub full_after: u64,
}

/// A model of a counter.
#[derive(Debug, Clone, Copy)]
pub enum Model {
    Credits(Credits),
    Refills(Refills),
    Flow(Flow),
}

/// A counter, as far as answers depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    now: Counter,
    /// Earlier contents that the failover may bring back. A history has one at most.
    past: Vec<Counter>,
    has_failed_over: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Counter {
    used: u64,
    /// When the window began: between the call and the return of its first operation.
    begun: Option<(u64, u64)>,
    reservations: Vec<Reservation>,
    /// First answers, by request with its idempotency key.
    answers: Vec<(Request, Reply)>,
    /// When the last refill of a bucket was; 0 if it is new.
    refilled: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reservation {
    name: Option<u8>,
    /// `None` if no client has learned it.
    id: Option<ReservationId>,
    amount: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Held,
    /// `is_known` is false if a request with its name makes another one.
    Committed {
        balance: i64,
        is_known: bool,
    },
    Over,
    /// Its name belongs to another one.
    Replaced,
}

impl Model {
    /// Returns the states after the operation, if it takes effect in this state, each with the answer that it has then.
    pub fn apply(&self, state: &State, operation: &Operation) -> Vec<(State, Reply)> {
        let loss = match self {
            Self::Credits(credits) => credits.loss,
            Self::Refills(refills) => refills.loss,
            Self::Flow(_) => return Vec::new(),
        };
        if operation.request == Request::Failover {
            let now = |earlier: &Counter| earlier.after(&state.now);
            let contents = std::iter::once(state.now.clone()).chain(state.past.iter().map(now));
            let after = |now| State { now, past: Vec::new(), has_failed_over: true };
            return contents.map(|now| (after(now), Reply::Done)).collect();
        }
        if let Request::Commit { id, .. } | Request::Release { id } | Request::Renew { id } = operation.request
            && state.now.reservations.iter().all(|one| one.id != Some(id))
        {
            // Its id came with the answer to a reservation.
            return Vec::new();
        }
        let counters = match self {
            Self::Credits(credits) => credits.at(&state.now, operation),
            Self::Refills(refills) => refills.at(&state.now, operation.request),
            Self::Flow(_) => Vec::new(),
        };
        let apply = |mut counter: Counter| {
            let reply = match self {
                Self::Credits(credits) => credits.answer(&mut counter, operation),
                Self::Refills(refills) => refills.answer(&mut counter, operation.request),
                Self::Flow(_) => Reply::Done,
            };
            let mut past = state.past.clone();
            if loss != Loss::Nothing && !state.has_failed_over && counter != state.now {
                past.push(state.now.clone());
                if loss == Loss::Unacknowledged && operation.reply.is_some() {
                    past.clear();
                }
            }
            (State { now: counter, past, ..*state }, reply)
        };
        counters.into_iter().map(apply).collect()
    }

    /// Returns the states after the operation, as far as its answer allows them.
    pub fn step(&self, state: &State, operation: &Operation) -> Vec<State> {
        let states = self.apply(state, operation).into_iter();
        let fits = |(state, answer): (State, Reply)| match operation.reply {
            Some(reply) => agrees(answer, reply).then_some(state),
            None => Some(state),
        };
        states.filter_map(fits).collect()
    }
}

/// Returns whether a client may have got this reply instead of the model's answer.
fn agrees(answer: Reply, reply: Reply) -> bool {
    match (answer, reply) {
        // The model learns the id from the reply. A retry under a name gets what is left now, or what was left first.
        (Reply::Reserved { allowed, left, id }, Reply::Reserved { allowed: was, left: told, id: known }) => {
            allowed == was && (id.is_none() || id == known) && (left == told || left == ANY)
        }
        _ => answer == reply,
    }
}

/// Stands for the credits left in the answer to a retried reservation. The documentation does not say when they were left.
const ANY: u64 = u64::MAX;

impl Credits {
    fn balance(&self, counter: &Counter) -> i64 {
        let held = counter.reservations.iter().filter(|one| one.stage == Stage::Held).map(|one| one.amount);
        self.limit as i64 - counter.used as i64 - held.sum::<u64>() as i64
    }

    /// Returns the contents that the counter may have when the operation reaches it: its window may have ended, and a late commit
    /// under a name that was used again may be remembered or not.
    fn at(&self, counter: &Counter, operation: &Operation) -> Vec<Counter> {
        if let Request::Commit { id, .. } = operation.request {
            let mut contents = vec![counter.clone()];
            let is_replaced = |one: &&mut Reservation| one.id == Some(id) && one.stage == Stage::Replaced;
            let mut other = counter.clone();
            if let Some(replaced) = other.reservations.iter_mut().find(is_replaced) {
                replaced.stage = Stage::Over;
                contents.push(other);
            }
            return contents;
        }
        let (Some(length), Some((earliest, latest))) = (self.window, counter.begun) else {
            return vec![counter.clone()];
        };
        let mut contents = Vec::new();
        if operation.called <= latest.saturating_add(length + TOLERANCE) {
            contents.push(counter.clone());
        }
        if operation.returned.saturating_add(TOLERANCE) >= earliest + length {
            contents.push(Counter { answers: counter.answers.clone(), ..Counter::default() });
        }
        contents
    }

    fn answer(&self, counter: &mut Counter, operation: &Operation) -> Reply {
        let first = counter.answers.iter().find(|(request, _)| *request == operation.request);
        if let Some((_, answer)) = first {
            return *answer;
        }
        let answer = self.decide(counter, operation);
        counter.begun = (counter.used > 0).then(|| counter.begun.unwrap_or((operation.called, operation.returned)));
        if let Request::Hit { key: Some(_), .. }
        | Request::Charge { key: Some(_), .. }
        | Request::Refund { key: Some(_), .. } = operation.request
        {
            counter.answers.push((operation.request, answer));
            counter.answers.sort_unstable();
        }
        answer
    }

    fn decide(&self, counter: &mut Counter, operation: &Operation) -> Reply {
        let balance = self.balance(counter);
        let allows = |cost: u64| balance >= if self.debt { 1 } else { cost.max(1) as i64 };
        let verdict =
            |counter: &Counter, allowed| Reply::Verdict { allowed, left: self.balance(counter).max(0) as u64 };
        match operation.request {
            Request::Hit { cost, .. } => {
                let allowed = allows(cost);
                counter.used += if allowed { cost } else { 0 };
                verdict(counter, allowed)
            }
            Request::Peek { cost } => verdict(counter, allows(cost)),
            Request::Charge { cost, .. } => {
                counter.used += cost;
                Reply::Balance(self.balance(counter))
            }
            Request::Refund { cost, .. } => {
                counter.used = counter.used.saturating_sub(cost);
                Reply::Balance(self.balance(counter))
            }
            Request::Reserve { amount, name } => self.reserve(counter, amount, name, operation.reply),
            Request::Commit { id, cost } => self.commit(counter, id, cost),
            Request::Release { id } => {
                let Some(held) = counter.find_held(id) else { return Reply::WasHeld(false) };
                held.stage = Stage::Over;
                Reply::WasHeld(true)
            }
            Request::Renew { id } => Reply::WasHeld(counter.find_held(id).is_some()),
            Request::Reset => {
                counter.used = 0;
                let held = counter.reservations.iter_mut().filter(|one| one.stage == Stage::Held);
                held.for_each(|held| held.stage = Stage::Over);
                Reply::Done
            }
            Request::Reduce { .. } | Request::Failover => unreachable!("not of this model"),
        }
    }

    fn reserve(&self, counter: &mut Counter, amount: u64, name: Option<u8>, reply: Option<Reply>) -> Reply {
        let id = match reply {
            Some(Reply::Reserved { id, .. }) => id,
            _ => None,
        };
        let exists = |stage| matches!(stage, Stage::Held | Stage::Committed { is_known: true, .. });
        let is_same = |one: &&mut Reservation| name.is_some() && one.name == name && exists(one.stage);
        if let Some(same) = counter.reservations.iter_mut().find(is_same) {
            same.id = same.id.or(id);
            return Reply::Reserved { allowed: true, left: ANY, id: same.id };
        }
        if self.balance(counter) < amount as i64 {
            return Reply::Reserved { allowed: false, left: self.balance(counter).max(0) as u64, id: None };
        }
        let same = counter.reservations.iter_mut().filter(|one| name.is_some() && one.name == name);
        same.for_each(|one| one.stage = Stage::Replaced);
        counter.reservations.push(Reservation { name, id, amount, stage: Stage::Held });
        Reply::Reserved { allowed: true, left: self.balance(counter).max(0) as u64, id }
    }

    fn commit(&self, counter: &mut Counter, id: ReservationId, cost: u64) -> Reply {
        let place = counter.reservations.iter().position(|one| one.id == Some(id));
        let place = place.expect("checked before");
        let stage = std::mem::replace(&mut counter.reservations[place].stage, Stage::Over);
        let status = match stage {
            Stage::Committed { balance, .. } => {
                counter.reservations[place].stage = stage;
                return Reply::Committed { balance, status: Status::Repeated };
            }
            Stage::Held => Status::Settled,
            Stage::Over | Stage::Replaced => Status::Late,
        };
        counter.used += if self.leases { 0 } else { cost };
        let balance = self.balance(counter);
        let is_forgotten = stage == Stage::Replaced;
        let committed = Stage::Committed { balance, is_known: !self.leases };
        counter.reservations[place].stage = if is_forgotten { stage } else { committed };
        Reply::Committed { balance, status }
    }
}

impl Counter {
    /// Returns these contents again. Reservations made since then are over, and clients still have their ids.
    fn after(&self, later: &Self) -> Self {
        let mut again = self.clone();
        let is_lost = |one: &&Reservation| one.id.is_some() && self.reservations.iter().all(|known| known.id != one.id);
        let lost = later.reservations.iter().filter(is_lost).map(|lost| Reservation { stage: Stage::Over, ..*lost });
        again.reservations.extend(lost);
        again
    }

    fn find_held(&mut self, id: ReservationId) -> Option<&mut Reservation> {
        self.reservations.iter_mut().find(|one| one.id == Some(id) && one.stage == Stage::Held)
    }
}

impl Refills {
    /// Returns what the bucket may hold when a take reaches it. Time that runs backward counts as no time passed. The
    /// documentation does not say whether refills keep their rhythm while the bucket is full.
    fn at(&self, counter: &Counter, request: Request) -> Vec<Counter> {
        let Request::Reduce { take: 1.., at } = request else { return vec![counter.clone()] };
        let mut refilled = counter.clone();
        self.refill(&mut refilled, at);
        let afresh = Counter { refilled: at, ..refilled.clone() };
        match refilled.used {
            0 if counter.refilled == 0 => vec![afresh],
            0 => vec![refilled, afresh],
            _ => vec![refilled],
        }
    }

    fn refill(&self, counter: &mut Counter, at: u64) {
        let refills = at.saturating_sub(counter.refilled) / self.every;
        counter.used = counter.used.saturating_sub(refills * self.tokens);
        counter.refilled += refills * self.every;
    }

    /// Takes tokens. More than there are drains the bucket.
    fn answer(&self, counter: &mut Counter, request: Request) -> Reply {
        let Request::Reduce { take, at } = request else { unreachable!("not of this model") };
        if take == 0 {
            let mut refilled = counter.clone();
            self.refill(&mut refilled, at);
            return Reply::Tokens(self.max - refilled.used);
        }
        let tokens = self.max - counter.used;
        counter.used += take.min(tokens);
        Reply::Tokens(tokens)
    }
}
