//! What a parallel region costs: `cargo bench -p kvant-threads`.
//!
//! Regions of one empty task per thread. In an *open* region a thread may take every task; in a *meeting* one each
//! task waits until all have begun, so all threads must come. *Awake* regions follow each other at once; before
//! a *parked* one the caller sleeps long enough for the workers to do so too. The same with rayon, in the same
//! run and interleaved.

use kvant_threads::{Pool, for_each, processors};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BATCHES: usize = 60;
const REGIONS: usize = 500;
const WAKE_UPS: usize = 200;
const LONG_ENOUGH_TO_PARK: Duration = Duration::from_millis(1);

/// How regions are run.
trait Runner {
    fn region(&self, work: impl Fn(usize) + Sync + Send);
}

/// Called inside its pool.
struct Kvant(usize);

impl Runner for Kvant {
    fn region(&self, work: impl Fn(usize) + Sync + Send) {
        for_each(self.0, work);
    }
}

/// Called inside its pool.
struct Rayon(usize);

impl Runner for Rayon {
    fn region(&self, work: impl Fn(usize) + Sync + Send) {
        (0..self.0).into_par_iter().with_max_len(1).for_each(work);
    }
}

fn open(runner: &impl Runner) {
    runner.region(|i| {
        std::hint::black_box(i);
    });
}

fn meeting(runner: &impl Runner, threads: usize) {
    let arrived = AtomicUsize::new(0);
    runner.region(|_| {
        arrived.fetch_add(1, Ordering::Relaxed);
        while arrived.load(Ordering::Relaxed) < threads {
            std::hint::spin_loop();
        }
    });
}

/// Microseconds per region of one batch.
fn awake(region: impl Fn()) -> f64 {
    // The other pool's threads go to sleep, this one's wake up.
    std::thread::sleep(LONG_ENOUGH_TO_PARK);
    (0..REGIONS / 10).for_each(|_| region());
    let start = Instant::now();
    (0..REGIONS).for_each(|_| region());
    start.elapsed().as_secs_f64() * 1e6 / REGIONS as f64
}

/// Microseconds of one region after a pause.
fn parked(region: impl Fn()) -> f64 {
    std::thread::sleep(LONG_ENOUGH_TO_PARK);
    let start = Instant::now();
    region();
    start.elapsed().as_secs_f64() * 1e6
}

/// Microseconds a cache line takes to another thread and back: the least a meeting of two can cost.
fn round_trip() -> f64 {
    let turn = AtomicUsize::new(0);
    let wait_for = |value: usize| {
        while turn.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..REGIONS {
                wait_for(2 * i + 1);
                turn.store(2 * i + 2, Ordering::Release);
            }
        });
        // Its start is not part of it.
        turn.store(1, Ordering::Release);
        wait_for(2);
        let start = Instant::now();
        for i in 1..REGIONS {
            turn.store(2 * i + 1, Ordering::Release);
            wait_for(2 * i + 2);
        }
        start.elapsed().as_secs_f64() * 1e6 / (REGIONS - 1) as f64
    })
}

/// Samples of the four kinds of regions.
#[derive(Default)]
struct Samples([Vec<f64>; 4]);

impl Samples {
    fn add_awake(&mut self, runner: &impl Runner, threads: usize) {
        self.0[0].push(awake(|| open(runner)));
        self.0[1].push(awake(|| meeting(runner, threads)));
    }

    fn add_parked(&mut self, runner: &impl Runner, threads: usize) {
        self.0[2].push(parked(|| open(runner)));
        self.0[3].push(parked(|| meeting(runner, threads)));
    }

    fn cells(&mut self) -> String {
        self.0.iter_mut().map(|samples| format!(" {} |", best_and_median(samples))).collect()
    }
}

fn best_and_median(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    format!("{:.2} / {:.2}", samples[0], samples[samples.len() / 2])
}

fn main() {
    let mut round_trips: Vec<f64> = (0..BATCHES).map(|_| round_trip()).collect();
    println!("microseconds, best / median; a bare round trip: {}\n", best_and_median(&mut round_trips));
    println!("| threads | pool | awake, open | awake, meeting | parked, open | parked, meeting |");
    println!("|--:|---|--:|--:|--:|--:|");
    for threads in 2..=processors() {
        let own = Pool::new(threads);
        let pool = match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
            Ok(pool) => pool,
            Err(error) => return eprintln!("rayon cannot start {threads} threads: {error}"),
        };
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..BATCHES {
            own.install(|| ours.add_awake(&Kvant(threads), threads));
            pool.install(|| theirs.add_awake(&Rayon(threads), threads));
        }
        for _ in 0..WAKE_UPS {
            own.install(|| ours.add_parked(&Kvant(threads), threads));
            pool.install(|| theirs.add_parked(&Rayon(threads), threads));
        }
        println!("| {threads} | kvant |{}", ours.cells());
        println!("| {threads} | rayon |{}", theirs.cells());
    }
}
