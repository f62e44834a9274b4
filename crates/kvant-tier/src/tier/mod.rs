//! Jobs: stores, loads and look-ups on threads of their own.
//!
//! An engine's scheduler must not wait: it submits, and asks later what is done. Loads go before stores, because a request waits for
//! them. A thread takes one entry at a time, so a job of many blocks is done by all of them.

mod held;
mod queue;
mod work;

pub use held::Held;
pub use queue::{Finished, JobId};

use crate::codec::BlockCodec;
use crate::entry::{Name, is_key, name};
use crate::error::TierError;
use crate::form::Number;
use crate::index::Index;
use crate::place::{Place, nanoseconds};
use queue::{Queue, Task, Wanted};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// How long a name that was not in a folder counts as not there.
const ABSENT_FOR: Duration = Duration::from_secs(1);

/// The memory of an engine, with its blocks.
pub struct Blocks {
    base: *mut u8,
    len: usize,
    stride: usize,
    /// Keeps the memory alive.
    _keep: Box<dyn Send + Sync>,
}

// SAFETY: an address and sizes; who may touch what is the promise of `Blocks::new`.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// Blocks that begin `stride` bytes after one another.
    ///
    /// # Safety
    /// `len` bytes from `base` on can be read and written as long as `keep` lives. Until a job is finished, nobody writes to the blocks it
    /// stores, and nobody touches those it loads.
    pub unsafe fn new(base: *mut u8, len: usize, stride: usize, keep: Box<dyn Send + Sync>) -> Blocks {
        Blocks { base, len, stride, _keep: keep }
    }

    /// A block with `extent` bytes.
    pub fn get(&self, index: usize, extent: usize) -> Option<Block> {
        let start = index.checked_mul(self.stride)?;
        let fits = start.checked_add(extent)? <= self.len;
        fits.then(|| Block { start: self.base.wrapping_add(start), len: extent })
    }
}

/// A block of an engine, while its [`Blocks`] live.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    start: *mut u8,
    len: usize,
}

// SAFETY: as for `Blocks`.
unsafe impl Send for Block {}
// SAFETY: as for `Blocks`.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len, "within the block");
        // SAFETY: within the block, whose memory lives and is not written to: the promise of `Blocks::new`.
        unsafe { std::slice::from_raw_parts(self.start.add(offset), len) }
    }

    pub(crate) fn write(&self, offset: usize, number: Number, row: &[f32]) {
        let len = row.len() * number.bytes();
        assert!(offset + len <= self.len, "within the block");
        // SAFETY: as above, and nobody else touches a block that is being loaded.
        number.write(row, unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) });
    }
}

/// How a tier works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most bytes of all entries.
    pub limit: u64,
    /// Threads that encode, decode, read and write.
    pub threads: usize,
}

/// What a tier holds, and what it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierUsage {
    /// Entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most bytes there may be.
    pub limit: u64,
    /// Blocks stored, their bytes as they came, and as they were kept.
    pub stored_blocks: u64,
    /// Bytes of stored blocks as they came.
    pub stored_raw: u64,
    /// Bytes of stored blocks as they were kept.
    pub stored_bytes: u64,
    /// Blocks loaded.
    pub loaded_blocks: u64,
    /// Bytes of loaded blocks as they were handed out.
    pub loaded_raw: u64,
    /// Entries that went to make room.
    pub evicted: u64,
    /// Entries that could not be used when they were wanted: damaged, or of another kind.
    pub refused: u64,
    /// Blocks that could not be stored.
    pub failed: u64,
    /// Seconds of encoding, summed over threads.
    pub encode_seconds: f64,
    /// Seconds of decoding, summed over threads.
    pub decode_seconds: f64,
    /// The divergence that a plan's search expects, in nats a token; that of the first group of layers.
    pub kl: Option<f64>,
}

#[derive(Default)]
struct Counters {
    stored_blocks: AtomicU64,
    stored_raw: AtomicU64,
    stored_bytes: AtomicU64,
    loaded_blocks: AtomicU64,
    loaded_raw: AtomicU64,
    evicted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    encode_nanoseconds: AtomicU64,
    decode_nanoseconds: AtomicU64,
}

struct Shared {
    codecs: Vec<BlockCodec>,
    place: Place,
    limit: u64,
    index: Mutex<Index>,
    /// Names that a folder did not have, and when they were looked for.
    absent: Mutex<HashMap<Name, Instant>>,
    /// When the folder was last listed.
    listed: Mutex<Instant>,
    queue: Mutex<Queue>,
    wake: Condvar,
    idle: Condvar,
    counters: Counters,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        // Every change is whole between statements.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.index().tick(nanoseconds(SystemTime::now()))
    }

    fn name(&self, group: usize, key: &[u8]) -> Name {
        name(self.codecs[group].signature(), key)
    }
}

/// A cold tier.
pub struct Tier {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Tier {
    /// Opens a tier with a codec for every group of layers that an engine keeps apart.
    ///
    /// # Errors
    /// When there is no codec, or a thread cannot be started.
    pub fn open(codecs: Vec<BlockCodec>, place: Place, options: Options) -> Result<Tier, TierError> {
        if codecs.is_empty() || options.threads == 0 {
            return Err(TierError::Form("a tier needs a group of layers and a thread".to_owned()));
        }
        let shared = Arc::new(Shared {
            codecs,
            place,
            limit: options.limit,
            index: Mutex::default(),
            absent: Mutex::default(),
            listed: Mutex::new(Instant::now()),
            queue: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            counters: Counters::default(),
        });
        shared.place.sweep();
        shared.list();
        shared.make_room(0);
        let start = |_| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("kvant-tier".to_owned()).spawn(move || shared.serve())
        };
        let workers = (0..options.threads).map(start).collect::<Result<_, _>>();
        let workers = workers.map_err(|source| TierError::Io {
            path: "tier".into(),
            doing: "start a thread",
            source,
        })?;
        Ok(Tier { shared, workers })
    }

    /// The codecs, by group.
    pub fn codecs(&self) -> &[BlockCodec] {
        &self.shared.codecs
    }

    /// Whether a block is held. A folder is looked at in the background, and until it was, the answer is [`Held::Later`].
    pub fn held(&self, group: usize, key: &[u8]) -> Held {
        let name = self.shared.name(group, key);
        if self.shared.index().find(&name).is_some() {
            return Held::Yes;
        }
        let mut queue = self.shared.queue();
        if queue.is_storing(&name) {
            return Held::Later;
        }
        if !self.shared.place.is_shared() {
            return Held::No;
        }
        let mut absent = self.shared.absent();
        if absent.get(&name).is_some_and(|looked| looked.elapsed() < ABSENT_FOR) {
            return Held::No;
        }
        absent.remove(&name);
        queue.look(name);
        self.shared.wake.notify_one();
        Held::Later
    }

    /// Whether a block is held, as [`held`](Tier::held), but the folder is looked at now.
    pub fn held_now(&self, group: usize, key: &[u8]) -> bool {
        let name = self.shared.name(group, key);
        self.shared.index().find(&name).is_some() || self.shared.look(&name)
    }

    /// Stores blocks under their keys, each with its group and its place in `blocks`. Blocks that are held already are left out;
    /// neighbours in the list share entries where they are smaller than pages.
    ///
    /// # Errors
    /// When a block is not there, a group is not, or a key is empty or too long.
    pub fn store(
        &self,
        job: JobId,
        blocks: &Arc<Blocks>,
        list: &[(usize, Vec<u8>, usize)],
    ) -> Result<(), TierError> {
        let wanted = self.wanted(blocks, list)?;
        let mut queue = self.shared.queue();
        let index = self.shared.index();
        let mut seen = HashSet::new();
        let mut open: Vec<Vec<Wanted>> = self.shared.codecs.iter().map(|_| Vec::new()).collect();
        let mut entries = Vec::new();
        for one in wanted {
            let is_held = index.find(&one.name).is_some() || queue.is_storing(&one.name);
            if is_held || !seen.insert(one.name) {
                continue;
            }
            let group = one.group;
            open[group].push(one);
            if open[group].len() == self.shared.codecs[group].group() {
                entries.push(std::mem::take(&mut open[group]));
            }
        }
        entries.extend(open.into_iter().filter(|rest| !rest.is_empty()));
        drop(index);
        queue.begin(job, Arc::clone(blocks), entries.into_iter().map(Task::Store).collect());
        drop(queue);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Loads blocks by their keys, as [`store`](Tier::store) stores them.
    ///
    /// # Errors
    /// As [`store`](Tier::store).
    pub fn load(
        &self,
        job: JobId,
        blocks: &Arc<Blocks>,
        list: &[(usize, Vec<u8>, usize)],
    ) -> Result<(), TierError> {
        let wanted = self.wanted(blocks, list)?;
        let mut entries: Vec<(Option<Name>, Vec<Wanted>)> = Vec::new();
        let now = self.shared.now();
        let mut index = self.shared.index();
        for one in wanted {
            let entry = index.find(&one.name).map(|found| found.entry);
            if let Some(entry) = &entry {
                index.touch(entry, now);
            }
            match entries.last_mut().filter(|(last, _)| entry.is_some() && *last == entry) {
                Some((_, list)) => list.push(one),
                None => entries.push((entry, vec![one])),
            }
        }
        drop(index);
        let tasks = entries.into_iter().map(|(_, list)| Task::Load(list)).collect();
        self.shared.queue().begin(job, Arc::clone(blocks), tasks);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Jobs that are done since this was last asked.
    pub fn finished(&self) -> Vec<Finished> {
        self.shared.queue().take_finished()
    }

    /// Waits until every job is done.
    pub fn drain(&self) {
        let mut queue = self.shared.queue();
        while queue.is_busy() {
            queue = self.shared.idle.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for one job, and takes its result; none where there is no such job.
    pub fn wait(&self, job: JobId) -> Option<Finished> {
        let mut queue = self.shared.queue();
        while queue.has(job) {
            queue = self.shared.idle.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.take(job)
    }

    /// Counts as a use of these blocks.
    pub fn touch(&self, group: usize, keys: &[Vec<u8>]) {
        let now = self.shared.now();
        for key in keys {
            let name = self.shared.name(group, key);
            let mut index = self.shared.index();
            if let Some(found) = index.find(&name) {
                index.touch(&found.entry, now);
            }
        }
    }

    /// What it holds and has done.
    pub fn usage(&self) -> TierUsage {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        let index = self.shared.index();
        TierUsage {
            entries: index.len() as u64,
            bytes: index.bytes(),
            limit: self.shared.limit,
            stored_blocks: of(&counters.stored_blocks),
            stored_raw: of(&counters.stored_raw),
            stored_bytes: of(&counters.stored_bytes),
            loaded_blocks: of(&counters.loaded_blocks),
            loaded_raw: of(&counters.loaded_raw),
            evicted: of(&counters.evicted),
            refused: of(&counters.refused),
            failed: of(&counters.failed),
            encode_seconds: of(&counters.encode_nanoseconds) as f64 / 1e9,
            decode_seconds: of(&counters.decode_nanoseconds) as f64 / 1e9,
            kl: self.shared.codecs[0].kl(),
        }
    }

    /// Writes down when entries were used, so that the next who opens the folder knows.
    pub fn flush(&self) {
        self.shared.flush();
    }

    fn wanted(&self, blocks: &Blocks, list: &[(usize, Vec<u8>, usize)]) -> Result<Vec<Wanted>, TierError> {
        let one = |(group, key, place): &(usize, Vec<u8>, usize)| {
            let Some(codec) = self.shared.codecs.get(*group) else {
                return Err(TierError::Form(format!("there is no group {group} of layers")));
            };
            if !is_key(key) {
                return Err(TierError::Form(format!("a key of {} bytes: 1 to 4096 are taken", key.len())));
            }
            let extent = codec.form().extent();
            let block = blocks.get(*place, extent).ok_or_else(|| {
                TierError::Form(format!(
                    "there is no block {place} with {extent} bytes in the engine's memory"
                ))
            })?;
            Ok(Wanted { group: *group, name: name(codec.signature(), key), key: key.clone(), block })
        };
        list.iter().map(one).collect()
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.drain();
        self.shared.queue().close();
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that has panicked has said so.
            let _ = worker.join();
        }
        self.shared.flush();
    }
}
