//! What threads do to each other, small enough for every order to be tried.

pub mod disk;
pub mod door;
pub mod pages;
pub mod pool;
