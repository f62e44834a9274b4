//! The flag for the number of threads.

use clap::Args;
use kvant_threads::{MAX_THREADS, Pool};

/// How many threads compute.
#[derive(Args, Clone)]
pub struct ThreadOptions {
    /// Number of threads [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS as i64))]
    threads: Option<u16>,
}

impl ThreadOptions {
    /// A thread pool as large as asked for.
    pub fn pool(&self) -> Pool {
        self.threads.map_or_else(Pool::default, |threads| Pool::new(threads.into()))
    }
}
