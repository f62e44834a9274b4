//! Room for connections.
//!
//! A connection takes a place. When all places are taken, the connection that has been idle for longest goes: one that waits between
//! two requests, or has not yet sent the head of one. When every connection is at work, a few more are let in that may ask for `/health`
//! alone, so that whoever looks after the server can always ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Places for `/health` when all others are at work.
const RESERVED: usize = 4;

/// All connections.
pub struct Connections {
    most: usize,
    state: Mutex<State>,
    /// A connection has gone, or is idle now.
    changed: Notify,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Entry>,
    next: u64,
    /// Counts up whenever a connection becomes idle.
    clock: u64,
}

struct Entry {
    /// Since when it is idle; none while a request is answered.
    idle: Option<u64>,
    is_reserved: bool,
    end: Arc<Notify>,
}

impl State {
    fn count(&self, is_reserved: bool) -> usize {
        self.open.values().filter(|entry| entry.is_reserved == is_reserved).count()
    }

    /// Ends the connection of this kind that has been idle for longest; false if none is idle.
    fn evict(&mut self, is_reserved: bool) -> bool {
        let idle = self.open.iter().filter(|(_, entry)| entry.is_reserved == is_reserved);
        let oldest = idle.filter_map(|(id, entry)| Some((entry.idle?, *id))).min();
        let entry = oldest.and_then(|(_, id)| self.open.remove(&id));
        entry.iter().for_each(|entry| entry.end.notify_one());
        entry.is_some()
    }

    fn add(&mut self, is_reserved: bool) -> (u64, Arc<Notify>) {
        (self.next, self.clock) = (self.next + 1, self.clock + 1);
        let end = Arc::new(Notify::new());
        let entry = Entry { idle: Some(self.clock), is_reserved, end: Arc::clone(&end) };
        self.open.insert(self.next, entry);
        (self.next, end)
    }
}

/// The place of one connection. It is free again when this is dropped.
pub struct ConnectionPlace {
    id: u64,
    end: Arc<Notify>,
    connections: Arc<Connections>,
}

/// A request is being answered on a connection, which is not idle meanwhile.
pub struct Busy(Arc<ConnectionPlace>);

impl Connections {
    /// Room for so many, and at least for one.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), state: Mutex::default(), changed: Notify::new() })
    }

    /// A place, at once or when one is free.
    pub async fn enter(self: &Arc<Self>) -> Arc<ConnectionPlace> {
        loop {
            // Registered before the look, so that no change is missed.
            let changed = self.changed.notified();
            if let Some((id, end)) = self.try_enter() {
                return Arc::new(ConnectionPlace { id, end, connections: Arc::clone(self) });
            }
            changed.await;
        }
    }

    fn try_enter(&self) -> Option<(u64, Arc<Notify>)> {
        let mut state = self.lock();
        if state.count(false) < self.most || state.evict(false) {
            return Some(state.add(false));
        }
        (state.count(true) < RESERVED || state.evict(true)).then(|| state.add(true))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole between statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPlace {
    /// A request has come. It may be answered unless this is none: then only `/health` may.
    pub fn begin(self: &Arc<Self>, is_health: bool) -> Option<Busy> {
        let mut state = self.connections.lock();
        let has_room = state.count(false) < self.connections.most;
        let entry = state.open.get_mut(&self.id)?;
        if entry.is_reserved && !is_health {
            if !has_room {
                return None;
            }
            entry.is_reserved = false;
        }
        entry.idle = None;
        Some(Busy(Arc::clone(self)))
    }

    /// Waits until the connection has to go.
    pub async fn evicted(&self) {
        self.end.notified().await;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let mut state = connections.lock();
        state.clock += 1;
        let now = state.clock;
        if let Some(entry) = state.open.get_mut(&self.0.id) {
            entry.idle = Some(now);
        }
        drop(state);
        connections.changed.notify_waiters();
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.id);
        self.connections.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[tokio::test]
    async fn the_connection_that_is_idle_for_longest_goes_first_and_none_at_work() {
        let connections = Connections::new(2);
        let (first, second) = (connections.enter().await, connections.enter().await);
        let busy = first.begin(false).unwrap();
        let third = connections.enter().await;
        second.evicted().await;
        drop(busy);
        // The first has been idle for a shorter time than the third.
        let fourth = connections.enter().await;
        third.evicted().await;
        assert!(third.begin(false).is_none(), "it has lost its place");
        let _work = [first.begin(false).unwrap(), fourth.begin(false).unwrap()];
        // Everything is at work: a few may ask whether the server is well.
        let reserved = connections.enter().await;
        assert!(reserved.begin(false).is_none() && reserved.begin(true).is_some());
        let mut others = Vec::new();
        for _ in 0..RESERVED {
            others.push(connections.enter().await);
        }
        reserved.evicted().await;
        let asking: Vec<Busy> = others.iter().map(|place| place.begin(true).unwrap()).collect();
        let mut waits = pin!(connections.enter());
        tokio::select! {
            biased;
            _ = &mut waits => panic!("there is no room"),
            () = std::future::ready(()) => {}
        }
        drop(asking);
        drop(first);
        drop(waits.await);
    }
}
