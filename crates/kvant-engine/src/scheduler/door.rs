//! Where the scheduler sleeps, and what wakes it.
//!
//! **Invariant:** who changes what is behind the door and [tells](Door::tell) of it wakes the scheduler, or finds it awake and about to
//! look again: news that comes between its look and its sleep is not slept through.

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::ops::{Deref, DerefMut};

/// Something that several threads change and one waits for.
#[derive(Default)]
pub(super) struct Door<T> {
    inside: Mutex<Inside<T>>,
    wake: Condvar,
}

/// What is behind a door.
#[derive(Default)]
pub(super) struct Inside<T> {
    state: T,
    /// Something has come since the last [look](Door::look).
    has_news: bool,
}

impl<T> Deref for Inside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for Inside<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T> Door<T> {
    /// What is behind it, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        // Every change is whole between statements.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a change that the waiting thread has to hear of.
    pub fn tell(&self, mut inside: MutexGuard<'_, Inside<T>>) {
        inside.has_news = true;
        drop(inside);
        self.wake.notify_all();
    }

    /// Takes something out; whatever comes later is news.
    pub fn look<R>(&self, take: impl FnOnce(&mut T) -> R) -> R {
        let mut inside = self.lock();
        inside.has_news = false;
        take(&mut inside.state)
    }

    /// Waits until something has come since the last look.
    pub fn wait(&self) {
        self.wait_unless(|_| false);
    }

    /// The same; false where nothing has come, and nothing will.
    pub fn wait_unless(&self, has_ended: impl Fn(&T) -> bool) -> bool {
        let mut inside = self.lock();
        while !inside.has_news {
            if has_ended(&inside.state) {
                return false;
            }
            inside = self.sleep(inside);
        }
        true
    }

    /// Waits until this is so.
    pub fn wait_for(&self, holds: impl Fn(&T) -> bool) {
        let mut inside = self.lock();
        while !holds(&inside.state) {
            inside = self.sleep(inside);
        }
    }

    fn sleep<'a>(&self, inside: MutexGuard<'a, Inside<T>>) -> MutexGuard<'a, Inside<T>> {
        self.wake.wait(inside).unwrap_or_else(PoisonError::into_inner)
    }
}
