//! The flag for the number of threads.

use clap::Args;
use kvant_threads::MAX_THREADS;

/// How many threads compute.
#[derive(Args, Clone)]
pub struct ThreadOptions {
    /// Threads to compute with [default: as many as the machine has processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS as i64))]
    threads: Option<u16>,
}

impl ThreadOptions {
    /// Makes the thread pool as large as asked for.
    pub fn apply(&self) {
        if let Some(threads) = self.threads {
            kvant_threads::set_threads(threads.into());
        }
    }
}
