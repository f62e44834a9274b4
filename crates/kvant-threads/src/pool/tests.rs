//! Every test has a pool of its own, so that none disturbs another and Miri sees all threads end.

use super::*;
use crate::{for_each, for_each_chunk, threads};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

/// Miri runs a few hundred times slower than the machine.
const ROUNDS: usize = if cfg!(miri) { 3 } else { 300 };

impl Pool {
    fn for_each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        self.install(|| for_each(tasks, work));
    }

    fn for_each_chunk<T: Send>(&self, data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        self.install(|| for_each_chunk(data, len, work));
    }

    /// The worker threads there are.
    fn workers(&self) -> HashSet<ThreadId> {
        self.shared.workers.lock().unwrap().iter().map(|worker| worker.thread.thread().id()).collect()
    }
}

/// Runs a region and says how often each task ran.
fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.for_each(tasks, |i| {
        counts[i].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

/// The threads that meet in a region of `tasks` tasks, none of which ends before all have begun.
fn meeting(pool: &Pool, tasks: usize) -> HashSet<ThreadId> {
    let (meet, seen) = (Barrier::new(tasks), Mutex::new(HashSet::new()));
    pool.for_each(tasks, |_| {
        meet.wait();
        seen.lock().unwrap().insert(thread::current().id());
    });
    seen.into_inner().unwrap()
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 16] {
        let pool = Pool::new(threads);
        for round in 0..ROUNDS {
            for tasks in [0, 1, 2, threads, 17, round] {
                assert_eq!(counts(&pool, tasks), vec![1; tasks], "{threads} threads, {tasks} tasks");
            }
        }
    }
}

#[test]
fn tasks_write_to_borrowed_chunks_and_the_caller_sees_it() {
    let pool = Pool::new(4);
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
    Pool::new(2).for_each_chunk(&mut [1], 0, |_, _| ());
}

/// What tasks borrowed may be dropped at once when the region has ended.
#[test]
fn nothing_borrowed_is_touched_after_the_end() {
    let pool = Pool::new(4);
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
    let pool = Pool::new(3);
    for pause in [Duration::ZERO, Duration::from_millis(2)] {
        thread::sleep(pause);
        assert_eq!(meeting(&pool, 3).len(), 3);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(3);
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
    let pool = Pool::new(3);
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
    let pool = Pool::new(3);
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
    let pool = Pool::new(2);
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
    let pool = Pool::new(3);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| assert_eq!(counts(&pool, 9), [1; 9])));
        }
    });
}

#[test]
fn workers_are_started_when_they_are_needed_and_end_with_the_last_handle() {
    assert_eq!(Pool::default().threads(), processors().min(MAX_THREADS));
    assert_eq!(Pool::new(0).threads(), 1);
    assert_eq!(Pool::new(usize::MAX).threads(), MAX_THREADS);
    let pool = Pool::new(5);
    assert_eq!((pool.threads(), pool.workers().len()), (5, 0));
    for (tasks, workers) in [(1, 0), (3, 2), (5, 4), (2, 4)] {
        assert_eq!(meeting(&pool, tasks).len(), tasks);
        assert_eq!(pool.workers().len(), workers);
    }
    let other = pool.clone();
    let slots: Vec<_> =
        pool.shared.workers.lock().unwrap().iter().map(|worker| Arc::downgrade(&worker.slot)).collect();
    drop(pool);
    assert_eq!(meeting(&other, 5).len(), 5);
    drop(other);
    // A worker has a share of its slot as long as it lives.
    assert!(slots.iter().all(|slot| slot.upgrade().is_none()));
}

#[test]
fn a_thread_without_a_pool_works_alone() {
    let here = thread::current().id();
    assert_eq!(threads(), 1);
    for_each(10, |_| assert_eq!(thread::current().id(), here));
    Pool::new(2).install(|| {
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(threads(), 1)).join().unwrap();
        });
    });
}

#[test]
fn the_pool_before_is_back_afterwards_also_after_a_panic() {
    let (two, three) = (Pool::new(2), Pool::new(3));
    two.install(|| {
        assert_eq!(threads(), 2);
        let inner = three.install(|| {
            two.install(|| assert_eq!(threads(), 2));
            threads()
        });
        assert_eq!((inner, threads()), (3, 2));
        let result = catch_unwind(AssertUnwindSafe(|| three.install(|| resume_unwind(Box::new(())))));
        assert!(result.is_err());
        assert_eq!(threads(), 2);
    });
    assert_eq!(threads(), 1);
}

#[test]
fn tasks_see_the_pool_they_belong_to_and_may_enter_another() {
    let (outer, inner) = (Pool::new(3), Pool::new(2));
    let (meet, begin) = (Barrier::new(3), Barrier::new(2));
    outer.for_each(3, |i| {
        meet.wait();
        assert_eq!(threads(), 3);
        if i == 0 {
            // Whichever thread this is on, the other pool's worker comes.
            inner.for_each(2, |_| {
                begin.wait();
                assert_eq!(threads(), 2);
            });
        }
        assert_eq!(threads(), 3);
    });
}

/// All tasks of both regions have begun before one of them ends.
#[test]
fn two_pools_work_at_the_same_time() {
    let pools = [Pool::new(2), Pool::new(3)];
    let meet = Barrier::new(5);
    let seen = thread::scope(|scope| {
        let callers = pools.each_ref().map(|pool| {
            let meet = &meet;
            scope.spawn(move || {
                let mut numbers: Vec<usize> = vec![0; pool.threads()];
                let seen = Mutex::new(HashSet::new());
                for round in 0..ROUNDS {
                    pool.for_each_chunk(&mut numbers, 1, |i, number| {
                        meet.wait();
                        number[0] += i + round;
                        seen.lock().unwrap().insert(thread::current().id());
                    });
                }
                let sum: usize = (0..ROUNDS).sum();
                assert!(numbers.into_iter().enumerate().all(|(i, number)| number == ROUNDS * i + sum));
                seen.into_inner().unwrap()
            })
        });
        callers.map(|caller| caller.join().unwrap())
    });
    assert_eq!(seen.each_ref().map(HashSet::len), [2, 3]);
    assert!(seen[0].is_disjoint(&seen[1]));
    assert_eq!(pools.each_ref().map(|pool| pool.workers().len()), [1, 2]);
}

/// Runs what it is given on new threads, and once more than it should.
struct Zealous(usize);

impl Executor for Zealous {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        thread::scope(|scope| (0..=threads).for_each(|_| drop(scope.spawn(work))));
    }
}

/// Never comes.
struct Idle;

impl Executor for Idle {
    fn threads(&self) -> usize {
        7
    }

    fn run(&self, _: usize, _: &(dyn Fn() + Sync)) {}
}

#[test]
fn lent_threads_run_every_task_once() {
    for pool in [Pool::with_executor(Zealous(3)), Pool::with_executor(Idle)] {
        for tasks in [0, 1, 2, 3, 17, ROUNDS] {
            assert_eq!(counts(&pool, tasks), vec![1; tasks]);
        }
        assert_eq!(pool.workers().len(), 0);
        let seen = pool.threads();
        pool.for_each(5, |_| {
            assert_eq!(threads(), seen);
            let here = thread::current().id();
            for_each(5, |_| assert_eq!(thread::current().id(), here));
        });
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(9, |i| {
                if i == 4 {
                    resume_unwind(Box::new(i));
                }
            });
        }));
        assert_eq!(*result.unwrap_err().downcast::<usize>().unwrap(), 4);
    }
    assert_eq!(Pool::with_executor(Zealous(0)).threads(), 1);
    assert_eq!(meeting(&Pool::with_executor(Zealous(3)), 3).len(), 3);
}
