//! The scheduler and the thread that writes prefixes: pages are wanted back while they are being written.

use crate::door::Door;
use crate::signals::Signals;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::mpsc::channel;
use loom::thread;

/// Files of a prefix.
const FILES: usize = 2;

#[derive(Default)]
struct State {
    /// Whether what was written was broken off.
    reports: Vec<bool>,
}

/// A prefix is being written when its pages are wanted; later it is written again, to its end.
pub fn broken_off() {
    let (door, signals): (Arc<Door<State>>, _) = (Arc::new(Door::default()), Arc::new(Signals::default()));
    let pages = Arc::new(AtomicUsize::new(0));
    // Loom's channel has no end: `None` stands for it.
    let (jobs, receiver) = channel::<Option<()>>();
    let worker = thread::spawn({
        let (door, signals, pages) = (Arc::clone(&door), Arc::clone(&signals), Arc::clone(&pages));
        move || {
            let mut whole = 0;
            while let Ok(Some(())) = receiver.recv() {
                let files = (0..FILES).take_while(|_| signals.go_on()).count();
                pages.fetch_sub(1, Ordering::Relaxed);
                whole += usize::from(files == FILES);
                let mut state = door.lock();
                state.reports.push(files < FILES);
                door.tell(state);
            }
            whole
        }
    });
    let save = || {
        signals.begin();
        pages.fetch_add(1, Ordering::Relaxed);
        jobs.send(Some(())).expect("the thread is there");
    };
    let reports = || door.look(|state| std::mem::take(&mut state.reports));
    save();
    // As `reclaim` does.
    signals.request_yield();
    door.wait_for(|state| !state.reports.is_empty());
    let broken_off = reports()[0];
    assert_eq!(pages.load(Ordering::Relaxed), 0, "the pages are free once it is reported");
    if broken_off {
        save();
        while reports().is_empty() {
            door.wait();
        }
    }
    jobs.send(None).expect("the thread is there");
    assert_eq!(worker.join().expect("the thread ends"), 1, "it is written to its end once");
}
