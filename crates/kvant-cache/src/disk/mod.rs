//! Prefixes that outlive the program: files in a folder, one for each step of whole pages.
//!
//! ```text
//! tokens    0 ………… 67 | 68 …… 131 | 132 …… 195 | …      4 sinks, pages of 64
//! names  r ──────── a ─────────── b ──────────── c        a = SHA-256(r, tokens 0 to 67), b = SHA-256(a, tokens 68 to 131) …
//! files             a.kvant       b.kvant        c.kvant  each with its own pages, and the name of what comes before
//! ```
//!
//! Conversations that begin alike have the files of their beginning in common, and one that grows adds files for what is new:
//! every page is on the disk once. A name says everything about what a file must hold, so there is no list of files that could
//! be wrong: opening a folder reads the beginnings of the files, and a prompt is looked up by computing names.
//!
//! *What if a file is damaged, or of another model?* It is never used. It counts towards the size, and goes when it is the
//! oldest, or is replaced when the same prefix is computed again.
//!
//! *What if pages are missing, as after a window has moved on?* The steps are still links to later ones, and a prefix is
//! found where the pages that can be seen after it are there.
//!
//! *Whose are they?* Names begin with what a [`Tenant`](crate::Tenant) is known by: nobody finds the files of another. Files that were
//! written before there were tenants are everybody's.
//!
//! *May several servers share a folder?* Yes, of one model or of many, on one machine or over a network: what one has written,
//! the others find, because they compute the same names. A file that another has removed is one that was never there.
//!
//! **Invariant:** what is loaded is, page by page, the bytes that were saved. Every byte is checked before it is used.
//!
//! **Invariant:** at every moment each name leads to a whole file or to none, and the files together stay within the limit: with
//! several servers within the largest of theirs, but for what they have written in the last seconds.

mod chain;
mod error;
mod folder;
mod index;

pub use error::DiskError;

use crate::layout::{CacheLayout, SlotLayout};
use crate::sequence::Sequence;
use crate::snapshot::{Digest, Growth, Numerics, PartRecord, Quality, Signature, SnapshotError};
use crate::steps::Steps;
use crate::tenant::Prefix;
use chain::Step;
use folder::{Folder, nanoseconds};
use index::{Entry, Index, Known};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How old what is known of others' files may be when a file is written.
const REFRESHED: Duration = Duration::from_secs(10);

/// What a folder holds, and what has been done with it since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Files, those that cannot be used included.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The most bytes they may have.
    pub limit: u64,
    /// Tokens loaded.
    pub loaded_tokens: u64,
    /// Files written.
    pub written: u64,
    /// Files that could not be used when they were wanted.
    pub refused: u64,
}

/// The prefixes of one cache, in a folder.
pub struct DiskTier {
    folder: Folder,
    layout: Arc<CacheLayout>,
    signature: Signature,
    numerics: Numerics,
    policy: String,
    steps: Steps,
    root: Digest,
    limit: u64,
    unusable_files: Option<String>,
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    index: Index,
    clock: u64,
    loaded_tokens: u64,
    written: u64,
    refused: u64,
    /// When the folder was last listed.
    listed: Option<Instant>,
}

impl DiskState {
    /// Now, but later than ever before.
    fn tick(&mut self) -> u64 {
        self.clock = nanoseconds(SystemTime::now()).max(self.clock + 1);
        self.clock
    }

    /// What there is of a step. A file that says it ends elsewhere than the step does is none of ours.
    fn known(&self, step: &Step) -> Option<Known> {
        self.index.part(&step.name).filter(|known| known.end == step.range.end)
    }
}

/// What came of loading.
pub struct Loaded {
    /// What is held now; none if nothing could be added.
    pub sequence: Option<Sequence>,
    /// Which file could not be used, and why.
    pub refused: Option<String>,
}

impl DiskTier {
    /// Opens a folder for caches of this layout and signature, whose files may have `limit` bytes; older ones go at once.
    ///
    /// # Errors
    /// When the folder is not there, cannot be read or written, or is locked by a program that does not share it.
    pub fn open(
        folder: &Path,
        limit: u64,
        layout: Arc<CacheLayout>,
        signature: Signature,
        numerics: Numerics,
        policy: &str,
    ) -> Result<DiskTier, DiskError> {
        let mut folder = Folder::open(folder)?;
        let (index, unusable_files) = folder.scan(&signature)?;
        folder.share()?;
        let unusable_files = unusable_files.first.map(|(file, error)| {
            let folder = folder.path().display();
            let count = unusable_files.count;
            format!(
                "{folder}: {count} files cannot be used and are left alone, among them {file}, which {error}"
            )
        });
        let tier = DiskTier {
            steps: Steps::of(&layout),
            root: chain::root(&signature),
            policy: policy.to_owned(),
            // A clock that was set back does not make anything older than it is.
            state: Mutex::new(DiskState {
                clock: index.last_used(),
                index,
                listed: Some(Instant::now()),
                ..DiskState::default()
            }),
            folder,
            layout,
            signature,
            numerics,
            limit,
            unusable_files,
        };
        let now = tier.lock().tick();
        tier.make_room(0, now);
        Ok(tier)
    }

    /// Which files were found that cannot be used, in words; none if there were none.
    pub fn unusable_files(&self) -> Option<&str> {
        self.unusable_files.as_deref()
    }

    /// How many files hold what was computed with other numerics, or do not say with which. They are used as they are: what is
    /// found in them is not bit for bit what would be computed now.
    pub fn other_numerics(&self) -> usize {
        self.lock().index.parts().filter(|part| part.numerics != Some(self.numerics)).count()
    }

    /// What it holds.
    pub fn usage(&self) -> DiskUsage {
        let state = self.lock();
        DiskUsage {
            files: state.index.len(),
            bytes: state.index.bytes(),
            limit: self.limit,
            loaded_tokens: state.loaded_tokens,
            written: state.written,
            refused: state.refused,
        }
    }

    /// How many tokens of `prefix`, from the first on, could be loaded.
    pub fn longest<'a>(&self, prefix: impl Into<Prefix<'a>>) -> usize {
        let windows = self.layout.slots().iter().filter_map(SlotLayout::window);
        let rule = self.layout.exact_window();
        let widest = rule.window(windows.max());
        let mut state = self.lock();
        let (mut held_from, mut best) = (0, 0);
        for step in self.steps_of(prefix.into()) {
            let end = step.range.end;
            let Some(Known { quality, .. }) = self.find(&mut state, &step) else { break };
            held_from = quality.held_from.max(held_from);
            if quality.ends && (held_from == 0 || held_from <= rule.first_seen(end, widest)) {
                best = end;
            }
        }
        best
    }

    /// Counts as a use of these tokens.
    pub fn touch<'a>(&self, prefix: impl Into<Prefix<'a>>) {
        let mut state = self.lock();
        let now = state.tick();
        for step in self.steps_of(prefix.into()) {
            state.index.touch(&step.name, now);
        }
    }

    /// Writes what `sequence` holds of `prefix` and is not there yet, from the first token on, as long as `go_on` says so before
    /// each file. Returns how many tokens are on the disk now: all whole steps, unless there is no room for more.
    ///
    /// # Errors
    /// When the system refuses. What was written before is of use.
    pub fn save<'a>(
        &self,
        prefix: impl Into<Prefix<'a>>,
        sequence: &Sequence,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<usize, SnapshotError> {
        let Prefix { tenant, tokens } = prefix.into();
        let tokens = &tokens[..sequence.len().min(tokens.len())];
        self.refresh();
        let now = self.lock().tick();
        let mut done = 0;
        for step in self.steps_of(tenant.prefix(tokens)) {
            let known = self.find(&mut self.lock(), &step);
            let Step { before, name, range } = step;
            let quality = Quality::of(sequence, range.start, range.end);
            if known.is_none_or(|known| quality.exceeds(known.quality)) {
                if !go_on() {
                    break;
                }
                let (signature, numerics, from) = (self.signature, self.numerics, range.start);
                let record = PartRecord {
                    signature,
                    numerics,
                    policy: &self.policy,
                    before,
                    from,
                    tokens: &tokens[range.clone()],
                };
                let bytes = record.bytes(sequence)?;
                if !self.make_room(bytes.len() as u64, now) {
                    break;
                }
                self.folder.write(&name, &bytes)?;
                let part = Some(Known { before, end: range.end, quality, numerics: Some(numerics) });
                let entry = Entry { part, bytes: bytes.len() as u64, used: now, is_stale: false };
                let mut state = self.lock();
                state.index.insert(name, entry);
                state.written += 1;
            }
            self.lock().index.touch(&name, now);
            done = range.end;
        }
        Ok(done)
    }

    /// Continues `base`, which holds the first tokens of `prefix`, with what is on the disk of the others. The pages lie in its arena, and
    /// count towards its cap.
    pub fn load<'a>(&self, prefix: impl Into<Prefix<'a>>, base: Sequence) -> Loaded {
        let Prefix { tenant, tokens } = prefix.into();
        let start = base.len();
        let mut growth = Growth::new(base, tokens.len());
        let mut refused = None;
        let steps = self.steps_of(tenant.prefix(tokens));
        for Step { before, name, range } in steps.skip_while(|step| step.range.end <= start) {
            let saved = self.folder.read(&name);
            let added = saved.and_then(|saved| growth.add(&saved, &self.signature, &before, &tokens[range]));
            if let Err(error) = added {
                let mut state = self.lock();
                if error.is_missing_file() {
                    // Another server has removed it.
                    state.index.remove(&name);
                } else if !matches!(error, SnapshotError::Memory(_)) {
                    // For want of memory a file is not to blame.
                    state.index.distrust(&name);
                    state.refused += 1;
                    let file = self.folder.path().join(chain::file_name(&name));
                    refused = Some(format!("{} {error}", file.display()));
                }
                break;
            }
        }
        let gained = growth.len() - start;
        // Where loading ended too early, pages may be missing that can be seen.
        let sequence = growth.finish().ok().filter(|_| gained > 0);
        if sequence.is_some() {
            self.lock().loaded_tokens += gained as u64;
            self.touch(tenant.prefix(&tokens[..start + gained]));
        }
        Loaded { sequence, refused }
    }

    /// Keeps something small beside the prefixes, for caches of this signature: in place of what was kept as this `kind`, a word of small
    /// letters.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn put_beside(&self, kind: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.folder.write_beside(&chain::name_beside(&self.root, kind), bytes)
    }

    /// What was kept beside the prefixes, if it is whole and at most so many bytes.
    pub fn beside(&self, kind: &str, most: usize) -> Option<Vec<u8>> {
        self.folder.read_beside(&chain::name_beside(&self.root, kind), most)
    }

    /// Writes down when files were used, so that the next who opens the folder knows. Call it before the end.
    pub fn flush(&self) {
        let stale = self.lock().index.take_stale();
        for (name, used) in stale {
            self.folder.set_used(&name, used);
        }
    }

    /// What there is of a step, which another server may have written.
    fn find(&self, state: &mut DiskState, step: &Step) -> Option<Known> {
        if !state.index.has(&step.name)
            && let Some((entry, _)) = self.folder.look(&step.name, &self.signature)
        {
            state.index.insert(step.name, entry);
        }
        state.known(step)
    }

    /// Looks what others have written and removed, if nobody has for a while.
    fn refresh(&self) {
        let mut state = self.lock();
        if state.listed.is_some_and(|listed| listed.elapsed() < REFRESHED) {
            return;
        }
        state.listed = Some(Instant::now());
        drop(state);
        let Some(names) = self.folder.names() else { return };
        for name in &names {
            let is_new = !self.lock().index.has(name);
            if is_new && let Some((entry, _)) = self.folder.look(name, &self.signature) {
                self.lock().index.insert(*name, entry);
            }
        }
        self.lock().index.retain(&names.into_iter().collect());
    }

    fn steps_of(&self, prefix: Prefix<'_>) -> impl Iterator<Item = Step> {
        chain::steps(prefix.tenant.root(self.root), self.steps, prefix.tokens)
    }

    /// Removes old files until `bytes` more fit; false if they cannot without those used at `now`.
    fn make_room(&self, bytes: u64, now: u64) -> bool {
        let Some(victims) = self.lock().index.victims(bytes, self.limit, now) else { return false };
        for name in victims {
            if !self.folder.remove(&name) {
                return false;
            }
            self.lock().index.remove(&name);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        // Every change is whole between statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
