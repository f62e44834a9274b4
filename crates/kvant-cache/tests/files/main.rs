//! Sequences in files: what is saved comes back bit for bit, and nothing else comes back at all.

mod damage;
mod fixture;
mod killed;
mod round_trip;
mod talk;
#[cfg(unix)]
mod truncated;
