//! The boards of one rule: one for each order and window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::board::{Board, Ranked};
use super::budget::{Budget, Grant};
use super::event::{Event, Order, Window};
use super::random::Random;
use divvy_core::clock::Timestamp;

/// The boards of one rule. They are created at its first event, and keep their counts when the rules are reloaded.
#[derive(Debug, Default)]
pub struct RuleTop {
    denied: Mutex<Option<Box<Boards>>>,
    taken: Mutex<Option<Box<Boards>>>,
    /// Whether there was no memory for boards when they were needed last.
    is_without_room: AtomicBool,
}

#[derive(Debug)]
struct Boards {
    minute: Board,
    hour: Board,
    /// The memory of this struct.
    _own: Grant,
}

/// The actors with the largest counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Whether there was memory for the rule's actors.
    pub has_room: bool,
    /// Whether some of the counts are estimates, because a busy thread counts only some of its events.
    pub is_sampled: bool,
    /// Sum over all actors, including those that are left out.
    pub total: u64,
    /// The actors, in descending order.
    pub actors: Vec<Ranked>,
}

impl RuleTop {
    /// Counts an event. `hash` is the hash of its actor. Returns false if there is no memory for boards.
    pub(super) fn count(
        &self,
        event: Event<'_>,
        hash: u64,
        now: Timestamp,
        budget: &Arc<Budget>,
        random: &mut Random,
    ) -> bool {
        let mut boards = self.boards(event.order).lock();
        if boards.is_none() {
            *boards = Boards::new(now, budget).map(Box::new);
            self.is_without_room.store(boards.is_none(), Relaxed);
        }
        let Some(boards) = &mut *boards else { return false };
        boards.minute.count(&event, hash, now, random);
        boards.hour.count(&event, hash, now, random);
        true
    }

    /// Returns the actors with the largest counts in the window that ends at `now`, at most `max`. `only` is the hash of the
    /// only actor that is shown; the total is then its own.
    pub(super) fn rank(&self, order: Order, window: Window, now: Timestamp, max: usize, only: Option<u64>) -> Ranking {
        let mut boards = self.boards(order).lock();
        let has_room = boards.is_some() || !self.is_without_room();
        let Some(boards) = &mut *boards else {
            return Ranking { has_room, is_sampled: false, total: 0, actors: Vec::new() };
        };
        let board = match window {
            Window::Minute => &mut boards.minute,
            Window::Hour => &mut boards.hour,
        };
        board.advance(now);
        let is_sampled = board.is_sampled();
        let (total, actors) = match only {
            None => (board.total(), board.highest(max)),
            Some(hash) => {
                let own = board.find_actor(hash);
                (own.as_ref().map_or(0, |own| own.count), own.into_iter().collect())
            }
        };
        Ranking { has_room, is_sampled, total, actors }
    }

    /// Returns whether there was no memory for boards when they were needed last.
    pub fn is_without_room(&self) -> bool {
        self.is_without_room.load(Relaxed)
    }

    /// Drops boards whose counts are all too old at `now`. Boards that another thread uses are not.
    pub fn drop_idle(&self, now: Timestamp) {
        for order in Order::ALL {
            let Some(mut boards) = self.boards(order).try_lock() else { continue };
            if boards.as_ref().is_some_and(|boards| boards.hour.is_over(now)) {
                *boards = None;
            }
        }
    }

    fn boards(&self, order: Order) -> &Mutex<Option<Box<Boards>>> {
        match order {
            Order::Denied => &self.denied,
            Order::Taken => &self.taken,
        }
    }

    /// Returns the memory that the boards really have (bytes).
    #[cfg(test)]
    pub fn measured_memory(&self) -> usize {
        let memory =
            |boards: &Boards| size_of::<Boards>() + boards.minute.measured_memory() + boards.hour.measured_memory();
        Order::ALL.into_iter().map(|order| self.boards(order).lock().as_deref().map_or(0, memory)).sum()
    }
}

impl Boards {
    fn new(now: Timestamp, budget: &Arc<Budget>) -> Option<Self> {
        let own = budget.take(size_of::<Self>())?;
        let [minute, hour] =
            [Window::Minute, Window::Hour].map(|window| Some(Board::new(window, now, budget.take(Board::MIN_MEMORY)?)));
        Some(Self { minute: minute?, hour: hour?, _own: own })
    }
}
