//! Responses that are kept, so that the next request need not repeat the conversation (`previous_response_id`).
//!
//! They are kept in memory, apart for every key, and bounded in number, bytes and age: the oldest go first.

use kvant_text::chat::Message;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A response, and the conversation up to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The turns, without instructions, which hold for one response.
    pub messages: Vec<Message>,
    /// The items of its input, those of the responses before it included.
    pub input: Vec<Value>,
    /// As it was sent.
    pub response: Value,
}

struct Kept {
    stored: Stored,
    bytes: usize,
    since: Instant,
}

#[derive(Default)]
struct Shelf {
    kept: HashMap<String, Kept>,
    /// The oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

/// All of them.
pub struct ResponseStore {
    most: usize,
    most_bytes: usize,
    age: Duration,
    /// By key.
    shelves: Mutex<HashMap<u64, Shelf>>,
}

impl ResponseStore {
    /// At most so many of each key, of so many bytes together, for so long.
    pub fn new(most: usize, most_bytes: usize, age: Duration) -> Self {
        Self { most, most_bytes, age, shelves: Mutex::default() }
    }

    /// Keeps a response.
    pub fn put(&self, owner: u64, id: &str, stored: Stored) {
        let turns = stored.messages.iter().map(|turn| {
            let fields = serde_json::to_string(&turn.fields).map_or(0, |text| text.len());
            turn.content.as_deref().map_or(0, str::len) + fields
        });
        let items = stored.input.iter().map(|item| item.to_string().len());
        let bytes = turns.sum::<usize>() + items.sum::<usize>() + stored.response.to_string().len();
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = shelves.entry(owner).or_default();
        shelf.bytes += bytes;
        shelf.order.push_back(id.to_owned());
        shelf.kept.insert(id.to_owned(), Kept { stored, bytes, since: Instant::now() });
        while shelf.kept.len() > self.most || shelf.bytes > self.most_bytes {
            let Some(oldest) = shelf.order.pop_front() else { break };
            shelf.forget(&oldest);
        }
    }

    /// A response that is still there.
    pub fn get(&self, owner: u64, id: &str) -> Option<Stored> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = shelves.get_mut(&owner)?;
        while let Some(oldest) = shelf.order.front()
            && shelf.kept.get(oldest).is_none_or(|kept| kept.since.elapsed() > self.age)
        {
            let oldest = shelf.order.pop_front().unwrap_or_default();
            shelf.forget(&oldest);
        }
        shelf.kept.get(id).map(|kept| kept.stored.clone())
    }

    /// Forgets a response; false if there is none.
    pub fn remove(&self, owner: u64, id: &str) -> bool {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.get_mut(&owner).is_some_and(|shelf| {
            shelf.order.retain(|other| other != id);
            shelf.forget(id)
        })
    }
}

impl Shelf {
    fn forget(&mut self, id: &str) -> bool {
        self.kept.remove(id).is_some_and(|kept| {
            self.bytes -= kept.bytes;
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str) -> Stored {
        Stored { messages: vec![Message::new("user", text)], input: Vec::new(), response: Value::Null }
    }

    #[test]
    fn the_oldest_go_first_and_keys_are_apart() {
        let store = ResponseStore::new(2, 1000, Duration::from_secs(60));
        for id in ["a", "b", "c"] {
            store.put(0, id, stored(id));
        }
        assert_eq!((store.get(0, "a"), store.get(0, "b")), (None, Some(stored("b"))));
        assert_eq!(store.get(1, "b"), None, "another key");
        store.put(0, "long", stored(&"x".repeat(900)));
        assert_eq!((store.get(0, "b"), store.get(0, "c").is_some()), (None, true));
        store.put(0, "longer", stored(&"x".repeat(2000)));
        assert_eq!(
            (store.get(0, "long"), store.get(0, "longer")),
            (None, None),
            "more than there is room for"
        );
        store.put(0, "d", stored("d"));
        assert!(store.remove(0, "d") && !store.remove(0, "d") && !store.remove(1, "d"));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let store = ResponseStore::new(9, 1000, Duration::ZERO);
        store.put(0, "a", stored("a"));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(store.get(0, "a"), None);
    }
}
