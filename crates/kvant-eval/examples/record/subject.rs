//! Every call to kvant that the record makes. When an interface changes, this file changes, and no other.

use crate::Failure;
use kvant_cache::snapshot::Record;
use kvant_cache::{Arena, DiskTier, Mode, Plan, Policy, PrefixTree, Sequence, Slots, WhenFull};
use kvant_codec::{Side, Tier};
use kvant_cpu::{ActivationType, LoadOptions};
use kvant_engine::{KvCache, Snapshot, numerics, signature};
use kvant_eval::divergence::{Models, Request, divergence};
use kvant_eval::plans::{PlanRequest, Positions, calibrate, calibration_windows};
use kvant_eval::{PassLimits, Score, Windows, text};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use kvant_threads::Pool;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

/// Tokens that a plan is calibrated on, in one window.
const CALIBRATION_TOKENS: usize = 2048;
/// The window that KL figures are taken from.
const KL_WINDOW: usize = 512;
/// The most bytes of a folder of parts.
const PARTS_LIMIT: u64 = 1 << 30;

/// The instruction set that kernels use: part of every key, because bits differ between instruction sets.
pub fn tier() -> Result<&'static str, Failure> {
    Ok(match Tier::select()? {
        // Without VBMI bytes are looked up otherwise, and nothing else: the bits are the same.
        Tier::Avx512Vnni => Tier::Avx512.name(),
        tier => tier.name(),
    })
}

thread_local! {
    /// What passes run on.
    static POOL: RefCell<Pool> = RefCell::new(Pool::default());
}

/// Sets how many threads compute.
pub fn set_threads(threads: usize) {
    POOL.set(Pool::new(threads));
}

/// Runs work on the threads that were set.
fn on_pool<R>(work: impl FnOnce() -> R) -> R {
    POOL.with_borrow(Pool::clone).install(work)
}

/// The text that comes with kvant, for prompts when no other is given.
pub fn own_text() -> &'static str {
    text::test()
}

/// How keys and values are kept.
#[derive(Clone)]
pub struct Kind {
    /// What the record calls it.
    pub name: String,
    policy: Policy,
}

impl Kind {
    /// A policy by its text, with a streaming window where one is given.
    pub fn new(policy: &str, streaming: Option<usize>) -> Result<Kind, Failure> {
        let name = streaming.map_or_else(|| policy.to_owned(), |window| format!("{policy};window={window}"));
        let mut policy: Policy = policy.parse()?;
        policy.rule.streaming = streaming;
        Ok(Kind { name, policy })
    }

    /// Whether a prefix tree must find something. With exact rows beyond the own page there may be nothing to cut off.
    pub fn has_prefixes(&self) -> bool {
        self.policy.rule.recent == 0
    }
}

/// The logits after one token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// SHA-256 of their bits.
    pub digest: [u8; 32],
    /// The most likely token, the first of equals.
    pub best: u32,
}

impl Row {
    fn of(logits: &[f32]) -> Row {
        let mut hash = Sha256::new();
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            hash.update(logit.to_bits().to_le_bytes());
            if logit > &logits[best] {
                best = token;
            }
        }
        Row { digest: hash.finalize().into(), best: best as u32 }
    }
}

/// A model in question.
pub struct Subject {
    checkpoint: Checkpoint,
    options: LoadOptions,
    model: Model,
}

/// One sequence of a subject.
pub struct Held {
    /// The tokens it holds.
    pub tokens: Vec<u32>,
    kv: KvCache,
    slots: Slots,
}

/// What a sequence brings to a pass.
pub struct Share<'a> {
    /// The sequence.
    pub held: &'a mut Held,
    /// Its next tokens.
    pub tokens: Vec<u32>,
    /// The position from which on logits are wanted.
    pub wanted: usize,
}

impl Subject {
    /// Loads a model as `kvant run` does.
    pub fn open(path: &Path) -> Result<Subject, Failure> {
        let checkpoint = Checkpoint::open(path)?;
        let options = LoadOptions::default();
        let model = kvant_cpu::load(&checkpoint, options)?;
        Ok(Subject { checkpoint, options, model })
    }

    pub fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    pub fn position_limit(&self) -> Option<usize> {
        self.model.position_limit()
    }

    /// The first tokens of a text, as a prompt.
    pub fn prompt(&self, text: &str, count: usize) -> Result<Vec<u32>, Failure> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        let mut ids = Tokenizer::of(&self.checkpoint)?.encode(text, options)?;
        ids.truncate(count);
        Ok(ids)
    }

    /// An empty sequence, or why there is none of this kind.
    pub fn empty(&self, kind: &Kind, capacity: usize) -> Result<Held, Failure> {
        let kv = KvCache::new(&kind.policy, self.model.slots(), capacity)?;
        Ok(Held { tokens: Vec::new(), kv, slots: self.model.slots().clone() })
    }

    /// One pass over the next tokens of every sequence; the logits of each, row by row.
    pub fn pass(&self, shares: &mut [Share<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        let (mut chunks, mut sequences, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for Share { held, tokens, wanted } in shares.iter_mut() {
            let start = wanted.saturating_sub(held.tokens.len()).min(tokens.len());
            counts.push(tokens.len() - start);
            let wanted = if start < tokens.len() { start..tokens.len() } else { 0..0 };
            chunks.push(Chunk::new(tokens, wanted));
            sequences.push(held.kv.sequence_mut());
        }
        let logits = on_pool(|| self.model.forward(Pass::new(&chunks), &mut sequences))?.into_logits();
        let mut rows = (0..logits.tokens()).map(|row| Row::of(logits.row(row)));
        let rows = counts.into_iter().map(|count| rows.by_ref().take(count).collect()).collect();
        for Share { held, tokens, .. } in shares {
            held.tokens.append(tokens);
        }
        Ok(rows)
    }

    /// Saves a sequence in a file.
    pub fn save(&self, kind: &Kind, held: &Held, file: &Path) -> Result<(), Failure> {
        let (signature, policy) = (self.signature(kind, held)?, kind.policy.to_string());
        let record =
            Record { signature, numerics: numerics(), policy: &policy, tokens: &held.tokens, note: b"" };
        held.kv.sequence().save(file, &record)?;
        Ok(())
    }

    /// Goes on with a sequence that was saved.
    pub fn resume(&self, kind: &Kind, capacity: usize, file: &Path) -> Result<Held, Failure> {
        let saved = Snapshot::open(file)?;
        let mut held = self.empty(kind, capacity)?;
        let signature = self.signature(kind, &held)?;
        held.kv.restore(&saved, &signature)?;
        held.tokens = saved.tokens().to_vec();
        Ok(held)
    }

    /// Goes on from the longest beginning of `prompt` that a prefix tree knows once it was given `source`.
    pub fn hit(&self, source: &Held, prompt: &[u32]) -> Result<Held, Failure> {
        let sequence = source.kv.sequence();
        let (layout, arena) = (Arc::clone(sequence.layout()), sequence.store().clone());
        let mut tree = PrefixTree::new(layout, arena, WhenFull::Evict);
        tree.insert(&source.tokens, sequence)?;
        let kv = source.kv.over(tree.find(prompt)?);
        Ok(Held { tokens: prompt[..kv.sequence().len()].to_vec(), kv, slots: self.model.slots().clone() })
    }

    /// Writes the whole pages of a sequence to a folder, as the disk tier does.
    pub fn save_parts(&self, kind: &Kind, held: &Held, folder: &Path) -> Result<usize, Failure> {
        Ok(self.disk(kind, held, folder)?.save(&held.tokens, held.kv.sequence(), || true)?)
    }

    /// Goes on from what a folder holds of `prompt`.
    pub fn load_parts(
        &self,
        kind: &Kind,
        capacity: usize,
        folder: &Path,
        prompt: &[u32],
    ) -> Result<Held, Failure> {
        let empty = self.empty(kind, capacity)?;
        let disk = self.disk(kind, &empty, folder)?;
        let layout = Arc::clone(empty.kv.sequence().layout());
        let loaded = disk.load(&prompt[..disk.longest(prompt)], Sequence::new(layout, Arena::new()));
        let refused = || loaded.refused.unwrap_or_else(|| "holds nothing of the prompt".into());
        let sequence = loaded.sequence.ok_or_else(|| format!("{}: {}", folder.display(), refused()))?;
        let kv = empty.kv.over(sequence);
        Ok(Held { tokens: prompt[..kv.sequence().len()].to_vec(), kv, slots: self.model.slots().clone() })
    }

    /// What KL figures of these kinds are on the first window of a text, with f32 activations and pages encoded before their
    /// own queries attend.
    pub fn figures(&self, kinds: &[Kind], text: &str) -> Result<Vec<String>, Failure> {
        let model = self.exact()?;
        let tokenizer = Tokenizer::of(&self.checkpoint)?;
        let windows = Windows::of_text(&tokenizer, text, KL_WINDOW, 1, Score::All)?;
        let caches: Vec<Policy> = kinds.iter().map(|kind| kind.policy.clone()).collect();
        let request = Request {
            models: Models { reference: &model, subject: &model, arithmetic: "f32" },
            windows: &windows,
            caches: &caches,
            mode: Mode::Strict,
            limits: PassLimits::default(),
        };
        let found = on_pool(|| divergence(&request, None, &mut |_| {}))?;
        let line = |found: &kvant_eval::divergence::Divergence| {
            let (kl, p999, top1) = (found.kl().0, found.kl_quantile(0.999), found.top1());
            format!("kl {kl:?} p999 {p999:?} top1 {top1:?} ppl {:?}", found.estimate().ppl())
        };
        Ok(found.iter().map(line).collect())
    }

    /// A kind whose numbers are calibrated on the text that comes with kvant, and the SHA-256 of its plan.
    pub fn planned(&self, name: &str, policy: &str) -> Result<(Kind, [u8; 32]), Failure> {
        let policy: Policy = policy.parse()?;
        let model = self.exact()?;
        let tokenizer = Tokenizer::of(&self.checkpoint)?;
        let windows =
            calibration_windows(&tokenizer, text::calibration(), CALIBRATION_TOKENS, CALIBRATION_TOKENS)?;
        let request = PlanRequest {
            model: self.checkpoint.signature().0,
            policy: &policy,
            text: text::CALIBRATION_NAME,
            learn: &[],
            ranges: Positions::All,
            reach: 0,
        };
        let plan: Arc<Plan> = Arc::new(on_pool(|| calibrate(&model, request, &windows, &mut |_| {}))?);
        let digest = Sha256::digest(plan.to_bytes()).into();
        Ok((Kind { name: name.to_owned(), policy: plan.with(&policy) }, digest))
    }

    fn exact(&self) -> Result<Model, Failure> {
        let options = LoadOptions { activations: ActivationType::F32, ..self.options };
        Ok(kvant_cpu::load(&self.checkpoint, options)?)
    }

    fn signature(&self, kind: &Kind, held: &Held) -> Result<[u8; 32], Failure> {
        Ok(signature(&self.checkpoint, &self.options, &kind.policy, held.kv.capacity())?)
    }

    fn disk(&self, kind: &Kind, held: &Held, folder: &Path) -> Result<DiskTier, Failure> {
        let layout = Arc::clone(held.kv.sequence().layout());
        let (signature, policy) = (self.signature(kind, held)?, kind.policy.to_string());
        Ok(DiskTier::open(folder, PARTS_LIMIT, layout, signature, numerics(), &policy)?)
    }
}

impl Held {
    /// Goes back to at most `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        let left = self.kv.truncate(len);
        self.tokens.truncate(left);
    }

    /// SHA-256 over all encoded pages that the next query sees: layer by layer, kv head by kv head, keys before values.
    pub fn pages(&self) -> [u8; 32] {
        let sequence = self.kv.sequence();
        let rule = sequence.layout().exact_window();
        let mut hash = Sha256::new();
        for (slot, head, side, codecs) in sequence.layout().sides() {
            let window = sequence.layout().slots()[slot].stored().and_then(|shape| shape.window);
            let first = rule.first_seen(self.tokens.len(), window).saturating_sub(rule.sinks);
            let first = first / codecs.page_tokens();
            hash.update([u8::from(side == Side::Value)]);
            let store = self.slots.kv(slot).and_then(|slot| sequence.side(slot, head, side));
            for page in (first..).map_while(|page| store?.encoded(page)) {
                hash.update(page);
            }
        }
        hash.finalize().into()
    }
}
