//! A plain implementation of `RL.*` and `CL.THROTTLE`, for comparison with the replies of stores and servers.
//!
//! It is written from the commands' descriptions, independently of divvy's algorithms: a token bucket that refills step
//! by step, and GCRA as a theoretical arrival time.

const NANOS: i128 = 1_000_000_000;

/// A token bucket. Times are in the commands' unit.
#[derive(Debug, Clone)]
pub struct Tokens {
    pub max: i128,
    pub refill: i128,
    pub interval: i128,
    /// The refill mark, the tokens and the session's start, once there was a take.
    known: Option<(i128, i128, i128)>,
}

impl Tokens {
    pub fn new(max: i128, refill: i128, interval: i128) -> Self {
        Self { max, refill, interval, known: None }
    }

    /// Takes `take` tokens at `at`. Returns the tokens before, and the session's start after that.
    pub fn reduce(&mut self, take: i128, at: i128, strict: bool) -> (i128, i128) {
        let (mut mark, mut tokens, mut session) = self.known.unwrap_or((at, self.max, at));
        while at - mark >= self.interval {
            mark += self.interval;
            tokens = (tokens + self.refill).min(self.max);
        }
        let before = tokens;
        if take == 0 {
            return (before, session);
        }
        if take <= tokens {
            session = at;
        }
        tokens = (tokens - take).max(0);
        if strict && tokens == 0 {
            mark = at;
        }
        self.known = Some((mark, tokens, session));
        (before, session)
    }
}

/// GCRA as in redis-cell. Times are in nanoseconds multiplied by `count`, so that all are whole numbers.
#[derive(Debug, Clone)]
pub struct Throttle {
    pub max_burst: i128,
    pub count: i128,
    pub seconds: i128,
    theoretical_arrival: i128,
}

impl Throttle {
    pub fn new(max_burst: i128, count: i128, seconds: i128) -> Self {
        Self { max_burst, count, seconds, theoretical_arrival: 0 }
    }

    /// Returns the five numbers of the reply to `quantity` at `nanos`.
    pub fn throttle(&mut self, quantity: i128, nanos: i128) -> [i128; 5] {
        let now = nanos * self.count;
        let increment = self.seconds * NANOS;
        let capacity = self.max_burst + 1;
        let arrival = self.theoretical_arrival.max(now);
        let earliest = arrival + (quantity - capacity) * increment;
        let limited = quantity > 0 && earliest > now;
        if !limited {
            self.theoretical_arrival = arrival + quantity * increment;
        }
        let ahead = self.theoretical_arrival.max(now) - now;
        let retry = if limited && quantity <= capacity { self.whole_seconds(earliest - now) } else { -1 };
        let remaining = (capacity * increment - ahead) / increment;
        [i128::from(limited), capacity, remaining, retry, self.whole_seconds(ahead)]
    }

    fn whole_seconds(&self, span: i128) -> i128 {
        let second = NANOS * self.count;
        (span + second - 1) / second
    }
}
