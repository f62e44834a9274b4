//! Every test has a pool of its own, so that none disturbs another and Miri sees all threads end.

use super::*;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Miri runs a few hundred times slower than the machine.
const ROUNDS: usize = if cfg!(miri) { 3 } else { 300 };

fn pool(threads: usize) -> Pool {
    let pool = Pool::new();
    pool.set_threads(threads);
    pool
}

/// Runs a region and says how often each task ran.
fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.for_each(tasks, |i| {
        counts[i].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 16] {
        let pool = pool(threads);
        for round in 0..ROUNDS {
            for tasks in [0, 1, 2, threads, 17, round] {
                assert_eq!(counts(&pool, tasks), vec![1; tasks], "{threads} threads, {tasks} tasks");
            }
        }
    }
}

#[test]
fn tasks_write_to_borrowed_chunks_and_the_caller_sees_it() {
    let pool = pool(4);
    for len in [1, 3, 7, 64, 1000] {
        let mut names: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        pool.for_each_chunk(&mut names, len, |chunk, names| {
            for (i, name) in names.iter_mut().enumerate() {
                assert_eq!(*name, (chunk * len + i).to_string());
                *name = format!("{chunk}:{i}");
            }
        });
        let expected: Vec<String> = (0..100).map(|i| format!("{}:{}", i / len, i % len)).collect();
        assert_eq!(names, expected);
    }
    pool.for_each_chunk(&mut [(); 10], 3, |chunk, units| {
        assert_eq!(units.len(), if chunk < 3 { 3 } else { 1 })
    });
    pool.for_each_chunk(&mut [0u8; 0], 3, |_, _| panic!("there is no chunk"));
}

#[test]
#[should_panic(expected = "chunks of no items")]
fn chunks_of_nothing_are_refused() {
    pool(2).for_each_chunk(&mut [1], 0, |_, _| ());
}

/// What tasks borrowed may be dropped at once when the region has ended.
#[test]
fn nothing_borrowed_is_touched_after_the_end() {
    let pool = pool(4);
    for round in 0..ROUNDS {
        let sums: Vec<AtomicUsize> = (0..round % 7).map(|_| AtomicUsize::new(0)).collect();
        let boxed = Box::new(round);
        pool.for_each(sums.len(), |i| sums[i].store(*boxed + i, Ordering::Relaxed));
        drop(boxed);
        for (i, sum) in sums.into_iter().enumerate() {
            assert_eq!(sum.into_inner(), round + i);
        }
    }
}

#[test]
fn all_threads_take_part_awake_or_asleep() {
    let pool = pool(3);
    for pause in [Duration::ZERO, Duration::from_millis(2)] {
        let meet = Barrier::new(3);
        let seen = Mutex::new(HashSet::new());
        thread::sleep(pause);
        pool.for_each(3, |_| {
            meet.wait();
            seen.lock().unwrap().insert(thread::current().id());
        });
        assert_eq!(seen.into_inner().unwrap().len(), 3);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = pool(3);
    for round in 0..ROUNDS {
        let guilty = round % 20;
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(20, |i| {
                if i == guilty {
                    std::panic::resume_unwind(Box::new(format!("task {i}")));
                }
            });
        }));
        assert_eq!(*result.unwrap_err().downcast::<String>().unwrap(), format!("task {guilty}"));
        assert_eq!(counts(&pool, 20), vec![1; 20]);
    }
}

#[test]
fn all_tasks_may_panic_at_once() {
    let pool = pool(3);
    let meet = Barrier::new(3);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.for_each(3, |i| {
            meet.wait();
            std::panic::resume_unwind(Box::new(i));
        });
    }));
    assert!(*result.unwrap_err().downcast::<usize>().unwrap() < 3);
    assert_eq!(counts(&pool, 5), vec![1; 5]);
}

#[test]
fn a_region_inside_a_task_stays_on_its_thread() {
    let pool = pool(3);
    let total = AtomicUsize::new(0);
    pool.for_each(5, |_| {
        let outer = thread::current().id();
        pool.for_each(10, |_| {
            assert_eq!(thread::current().id(), outer);
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 50);
}

/// While one thread's region runs, others get on by themselves.
#[test]
fn concurrent_callers_do_not_wait_for_each_other() {
    let pool = pool(2);
    let other_is_done = AtomicBool::new(false);
    let (started, ended) = (Barrier::new(3), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            let here = thread::current().id();
            pool.for_each(10, |_| assert_eq!(thread::current().id(), here));
            other_is_done.store(true, Ordering::Relaxed);
            ended.wait();
        });
        pool.for_each(2, |i| {
            started.wait();
            if i == 0 {
                ended.wait();
                assert!(other_is_done.load(Ordering::Relaxed));
            }
        });
    });
}

#[test]
fn many_callers_at_once_get_all_their_tasks() {
    let pool = pool(3);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| assert_eq!(counts(&pool, 9), [1; 9])));
        }
    });
}

#[test]
fn the_number_of_threads_may_change_between_regions() {
    let pool = Pool::new();
    assert_eq!(pool.threads(), processors().min(MAX_THREADS));
    for threads in [4, 1, 7, 2, 5] {
        pool.set_threads(threads);
        assert_eq!(pool.threads(), threads);
        let (meet, seen) = (Barrier::new(threads), Mutex::new(HashSet::new()));
        pool.for_each(threads, |_| {
            meet.wait();
            seen.lock().unwrap().insert(thread::current().id());
        });
        assert_eq!(seen.into_inner().unwrap().len(), threads);
    }
    assert_eq!(pool.workers.lock().unwrap().len(), 6);
    pool.set_threads(0);
    assert_eq!(pool.threads(), 1);
    pool.set_threads(usize::MAX);
    assert_eq!(pool.threads(), MAX_THREADS);
}
