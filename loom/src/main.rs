//! Runs every model and says in how many orders its threads went. A model that fails ends the program with the order that did it.

// The sources of kvant, which name each other as in their own crates.
#[path = "../../crates/kvant-cache/src/arena.rs"]
#[expect(dead_code, reason = "files and sequences use the rest")]
mod arena;
#[path = "../../crates/kvant-engine/src/scheduler/door.rs"]
mod door;
#[path = "../../crates/kvant-cache/src/lease.rs"]
#[expect(dead_code, reason = "files and devices use the rest")]
mod lease;
mod mapped;
mod models;
#[path = "../../crates/kvant-cache/src/page.rs"]
#[expect(dead_code, reason = "files, devices and sequences use the rest")]
mod page;
#[path = "../../crates/kvant-threads/src/region.rs"]
mod region;
#[path = "../../crates/kvant-engine/src/scheduler/signals.rs"]
#[expect(dead_code, reason = "no model ends by the clock")]
mod signals;
#[path = "../../crates/kvant-threads/src/slot.rs"]
mod slot;
mod store;
mod sync;

use loom::model::Builder;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Places where a thread is stopped in favour of another, at most, in one run of a model.
const PREEMPTIONS: usize = 3;

const MODELS: [(&str, fn()); 6] = [
    ("pool", models::pool::regions),
    ("pool, a task panics", models::pool::panics),
    ("pages, shared and written", models::pages::shared),
    ("pages, taken and given back", models::pages::taken),
    ("door, jobs and stop", models::door::jobs),
    ("disk, broken off", models::disk::broken_off),
];

fn main() {
    for (name, model) in MODELS {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS);
        builder.max_branches = 100_000;
        let orders = Arc::new(AtomicUsize::new(0));
        let (counted, start) = (Arc::clone(&orders), Instant::now());
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model();
        });
        let orders = orders.load(Ordering::Relaxed);
        println!("{name}: {orders} orders, {:.1} s", start.elapsed().as_secs_f64());
    }
    println!("test result: ok. {} passed; 0 failed; 0 ignored", MODELS.len());
}
