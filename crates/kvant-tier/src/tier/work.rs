//! What the threads do.

use super::queue::{Failed, Next, Task, Wanted};
use super::{Block, Shared};
use crate::entry::Name;
use crate::error::TierError;
use crate::index::Known;
use crate::place::Seen;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How old what is known of others' files may be when a file is written, and how long uses are kept to oneself.
const REFRESHED: Duration = Duration::from_secs(10);

impl Shared {
    /// A thread's work, until the tier is closed.
    pub(super) fn serve(&self) {
        let mut queue = self.queue();
        loop {
            let Some(next) = queue.next() else {
                if queue.is_closing() {
                    return;
                }
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            match next {
                Next::Look(name) => {
                    if !self.look(&name) {
                        self.absent().insert(name, Instant::now());
                    }
                    queue = self.queue();
                    queue.looked(&name);
                }
                Next::Task(job, task) => {
                    let (stored, (bytes, failure)) = match &task {
                        Task::Store(list) => {
                            let names: Vec<Name> = list.iter().map(|one| one.name).collect();
                            (names, self.guarded(list, || self.store(list)))
                        }
                        Task::Load(list) => (Vec::new(), self.guarded(list, || self.load(list))),
                    };
                    queue = self.queue();
                    queue.end(job, &stored, bytes, failure);
                    self.idle.notify_all();
                }
            }
        }
    }

    /// A task whose panic is a failure: others must not wait for it for ever.
    fn guarded(&self, list: &[Wanted], task: impl FnOnce() -> Result<(), Failed>) -> (u64, Option<Failed>) {
        let bytes = list.iter().map(|one| self.codecs[one.group].form().bytes() as u64).sum();
        let all = || list.iter().map(|one| one.key.clone()).collect();
        match catch_unwind(AssertUnwindSafe(task)) {
            Ok(Ok(())) => (bytes, None),
            Ok(Err(failed)) => (bytes, Some(failed)),
            Err(_) => {
                let error = "a panic, which standard error tells of".to_owned();
                (bytes, Some(Failed { keys: all(), error }))
            }
        }
    }

    fn store(&self, list: &[Wanted]) -> Result<(), Failed> {
        let keys: Vec<Vec<u8>> = list.iter().map(|one| one.key.clone()).collect();
        self.store_entry(list, &keys).map_err(|error| {
            self.counters.failed.fetch_add(list.len() as u64, Relaxed);
            Failed { keys: keys.clone(), error: error.to_string() }
        })
    }

    fn store_entry(&self, list: &[Wanted], keys: &[Vec<u8>]) -> Result<(), TierError> {
        let names: Vec<Name> = list.iter().map(|one| one.name).collect();
        // Another process may have stored all of it since this one looked.
        if self.place.is_shared() && names.iter().all(|name| self.look(name)) {
            return Ok(());
        }
        let codec = &self.codecs[list[0].group];
        let blocks: Vec<Block> = list.iter().map(|one| one.block).collect();
        let begun = Instant::now();
        let bytes = codec.pack(keys, &blocks)?;
        self.counters.encode_nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        let size = bytes.len() as u64;
        if size > self.limit {
            return Err(TierError::TooLarge { bytes: size, limit: self.limit });
        }
        self.refresh();
        self.make_room(size);
        self.place.write(&names, bytes)?;
        let used = self.now();
        // The clock of files is coarse: the exact time is written down with the next uses.
        let known = Known { names: names.clone(), bytes: size, used, is_stale: true, is_useless: false };
        self.index().insert(names[0], known);
        // Two threads may have made room at once.
        self.make_room(0);
        let raw = (codec.form().bytes() * list.len()) as u64;
        self.counters.stored_blocks.fetch_add(list.len() as u64, Relaxed);
        self.counters.stored_raw.fetch_add(raw, Relaxed);
        self.counters.stored_bytes.fetch_add(size, Relaxed);
        Ok(())
    }

    /// Loads blocks of one entry; those that another process has put elsewhere since are taken from there.
    fn load(&self, list: &[Wanted]) -> Result<(), Failed> {
        let mut rest: Vec<&Wanted> = list.iter().collect();
        while let Some(first) = rest.first() {
            match self.load_entry(first, &rest) {
                Ok(done) => rest.retain(|one| !done.contains(&one.name)),
                Err(error) => {
                    let keys = rest.iter().map(|one| one.key.clone()).collect();
                    return Err(Failed { keys, error: error.to_string() });
                }
            }
        }
        Ok(())
    }

    fn load_entry(&self, first: &Wanted, list: &[&Wanted]) -> Result<HashSet<Name>, TierError> {
        let found = self.index().find(&first.name);
        let found = match found {
            Some(found) => found,
            None if self.look(&first.name) => {
                self.index().find(&first.name).ok_or(TierError::Entry("the block is gone"))?
            }
            None => return Err(TierError::Entry("the block is not held")),
        };
        let codec = &self.codecs[first.group];
        let loaded = self.place.read(&found.entry, &first.name).and_then(|bytes| {
            let keys = codec.keys(&bytes)?;
            let place =
                |one: &&&Wanted| keys.iter().position(|key| *key == one.key).map(|place| (place, one.block));
            let wanted: Vec<(usize, Block)> =
                list.iter().filter(|one| one.group == first.group).filter_map(|one| place(&one)).collect();
            let names =
                list.iter().filter(|one| place(one).is_some()).map(|one| one.name).collect::<HashSet<_>>();
            if !names.contains(&first.name) {
                return Err(TierError::Entry("the entry holds other blocks than its name says"));
            }
            let begun = Instant::now();
            codec.unpack(&bytes, &wanted)?;
            self.counters.decode_nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
            Ok(names)
        });
        match loaded {
            Ok(names) => {
                let raw = (codec.form().bytes() * names.len()) as u64;
                self.counters.loaded_blocks.fetch_add(names.len() as u64, Relaxed);
                self.counters.loaded_raw.fetch_add(raw, Relaxed);
                Ok(names)
            }
            Err(error) => {
                // A file that is not there was removed by another process; one that cannot be read is looked for again.
                let known = self.index().remove(&found.entry);
                if let (Some(known), TierError::Entry(_)) = (known, &error) {
                    // What is damaged is of no use to anybody.
                    self.place.remove(&found.entry, &known.names);
                    self.counters.refused.fetch_add(1, Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Looks a name up in the folder; true if its block can be loaded.
    pub(super) fn look(&self, name: &Name) -> bool {
        if self.index().find(name).is_some() {
            return true;
        }
        match self.place.look(name) {
            Seen::Entry(entry, known) => {
                self.index().insert(entry, known);
                self.make_room(0);
                self.index().find(name).is_some()
            }
            Seen::Useless(known) => {
                self.index().insert(*name, known);
                false
            }
            Seen::Nothing => false,
        }
    }

    /// Takes note of what the folder has.
    pub(super) fn list(&self) {
        let Some(names) = self.place.names() else { return };
        let there: HashSet<Name> = names.iter().copied().collect();
        self.index().retain(&there);
        for name in &names {
            let is_new = {
                let index = self.index();
                index.find(name).is_none() && !index.has(name)
            };
            if is_new {
                self.look(name);
            }
        }
    }

    /// Looks what others have written and removed, and tells them what was used, if nobody has for a while.
    fn refresh(&self) {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.elapsed() < REFRESHED {
            return;
        }
        *listed = Instant::now();
        drop(listed);
        self.absent().retain(|_, looked| looked.elapsed() < REFRESHED);
        self.flush();
        self.list();
    }

    pub(super) fn flush(&self) {
        let stale = self.index().take_stale();
        for (entry, used) in stale {
            self.place.set_used(&entry, used);
        }
    }

    /// Removes the least recently used until `bytes` more fit.
    pub(super) fn make_room(&self, bytes: u64) {
        let victims: Vec<_> = {
            let mut index = self.index();
            let victims = index.victims(bytes, self.limit);
            victims.into_iter().filter_map(|entry| Some((entry, index.remove(&entry)?.names))).collect()
        };
        for (entry, names) in victims {
            self.place.remove(&entry, &names);
            self.counters.evicted.fetch_add(1, Relaxed);
        }
    }
}
