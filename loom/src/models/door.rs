//! The scheduler's queue: jobs that come, a client that leaves, and the end.

use crate::door::Door;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

#[derive(Default)]
struct State {
    jobs: Vec<u8>,
    is_stopping: bool,
}

/// One client asks and stays; the other asks, leaves and stops the server. The scheduler sleeps whenever it finds nothing.
pub fn jobs() {
    let door: Arc<Door<State>> = Arc::new(Door::default());
    let is_gone = Arc::new(AtomicBool::new(false));
    let submit = |door: &Door<State>, job: u8| {
        let mut state = door.lock();
        state.jobs.push(job);
        door.tell(state);
    };
    let stays = thread::spawn({
        let door = Arc::clone(&door);
        move || submit(&door, 1)
    });
    let leaves = thread::spawn({
        let (door, is_gone) = (Arc::clone(&door), Arc::clone(&is_gone));
        move || {
            submit(&door, 2);
            is_gone.store(true, Ordering::Relaxed);
            stays.join().expect("the other client has asked");
            let mut state = door.lock();
            state.is_stopping = true;
            door.tell(state);
        }
    });
    let (mut answered, mut ended) = (0, 0);
    loop {
        // As a step begins: whatever comes from here on is news.
        door.look(|_| ());
        let jobs = std::mem::take(&mut door.lock().jobs);
        for job in &jobs {
            match job {
                2 if is_gone.load(Ordering::Relaxed) => ended += 1,
                _ => answered += 1,
            }
        }
        if jobs.is_empty() && !door.wait_unless(|state| state.is_stopping) {
            break;
        }
    }
    assert_eq!(answered + ended, 2, "every job is answered or ended");
    leaves.join().expect("the client ends");
}
