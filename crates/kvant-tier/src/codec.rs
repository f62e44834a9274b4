//! Blocks to pages and back.

use crate::entry::{self, Contents, Entry};
use crate::error::TierError;
use crate::form::{BlockForm, Number};
use crate::tier::Block;
use kvant_cache::plan::Plan;
use kvant_cache::{CacheLayout, Clause, KvShape, Policy, SideCodecs, Slots};
use kvant_codec::{CodecError, Side};
use sha2::{Digest, Sha256};

/// What makes entries of the blocks of one form, and blocks of entries.
pub struct BlockCodec {
    form: BlockForm,
    layout: CacheLayout,
    signature: entry::Signature,
    /// Blocks whose tokens fill whole pages together.
    group: usize,
    /// Where every token of a block lies, from the first on.
    offsets: Vec<usize>,
    kl: Option<f64>,
    policy: String,
}

impl BlockCodec {
    /// The codecs of a policy for blocks of this form. `namespace` says what else must be the same for two blocks of one key to be the same:
    /// the model, its type, how it is split over machines.
    ///
    /// # Errors
    /// When the form cannot be, or the policy does not fit it.
    pub fn new(form: BlockForm, policy: &Policy, namespace: &str) -> Result<BlockCodec, TierError> {
        form.check()?;
        let (heads, key_dim, value_dim) = (form.heads(), form.key_dim, form.value_dim);
        let shape = KvShape { kv_heads: heads, key_dim, value_dim, window: None };
        let mut slots = Slots::new();
        for (layer, _) in &form.layers {
            slots.keys_values(*layer, shape);
        }
        let plan = policy
            .plan
            .as_ref()
            .filter(|_| policy.needs_plan())
            .map(|plan| plan_of(plan, &form))
            .transpose()?;
        // A clause may be about layers of another group.
        let is_ours = |clause: &&Clause| {
            let holds = |layer: &usize| clause.layers.iter().any(|range| range.contains(layer));
            clause.layers.is_empty() || form.layers.iter().any(|(layer, _)| holds(layer))
        };
        let clauses = policy.clauses.iter().filter(is_ours).cloned().collect();
        let own = Policy { plan: plan.map(Into::into), clauses, ..policy.clone() };
        let layout = CacheLayout::new(&own, &slots)?;
        let page = layout.sides().map(|(.., side)| side.page_tokens()).max().unwrap_or(1);
        let mut hash =
            Sha256::new().chain_update(b"kvant tier 1\0").chain_update(namespace).chain_update(b"\0");
        hash.update(policy.to_string());
        if let Some(plan) = policy.plan.as_ref().filter(|_| policy.needs_plan()) {
            hash.update(plan.digest());
        }
        let layers = form.layers.iter().map(|(layer, _)| *layer);
        for number in [heads, key_dim, value_dim, form.tokens].into_iter().chain(layers) {
            hash.update((number as u64).to_le_bytes());
        }
        Ok(BlockCodec {
            group: page / common_divisor(page, form.tokens),
            offsets: (0..form.tokens).map(|token| form.offset(token)).collect(),
            kl: expected_kl(policy, &form),
            policy: policy.to_string(),
            signature: hash.finalize().into(),
            form,
            layout,
        })
    }

    /// Where the numbers of a block lie.
    pub fn form(&self) -> &BlockForm {
        &self.form
    }

    /// How blocks are kept, as it would be typed.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The divergence that the plan's search expects of these codecs, in nats a token; none where it does not say so for each.
    pub fn kl(&self) -> Option<f64> {
        self.kl
    }

    /// Blocks of one job that share an entry, so that their tokens fill whole pages.
    pub fn group(&self) -> usize {
        self.group
    }

    pub(crate) fn signature(&self) -> &entry::Signature {
        &self.signature
    }

    /// Bits per number of whole pages.
    pub fn bits_per_value(&self) -> f64 {
        let values =
            self.layout.slots().len() * self.form.heads() * (self.form.key_dim + self.form.value_dim);
        8.0 * self.layout.bytes_per_token() / values as f64
    }

    /// The most bytes that an entry of so many blocks has, with keys of so many bytes.
    pub fn entry_bytes(&self, blocks: usize, key_bytes: usize) -> usize {
        entry::header_bytes(blocks, blocks * key_bytes)
            + self.payload_bytes(blocks).min(self.exact_bytes(blocks))
    }

    fn payload_bytes(&self, blocks: usize) -> usize {
        let tokens = blocks * self.form.tokens;
        let bytes = |side: &SideCodecs| tokens.div_ceil(side.page_tokens()) * side.codec().page_bytes();
        self.layout.sides().map(|(.., side)| bytes(side)).sum()
    }

    fn exact_bytes(&self, blocks: usize) -> usize {
        blocks * self.form.bytes()
    }

    /// The entry of some blocks, at most a [group](BlockCodec::group), under their keys.
    ///
    /// # Errors
    /// When a number is NaN or infinite, or too large for the codec.
    ///
    /// # Panics
    /// When there are not as many blocks as keys, or more than a group.
    pub fn pack(&self, keys: &[Vec<u8>], blocks: &[Block]) -> Result<Vec<u8>, TierError> {
        assert!(keys.len() == blocks.len() && (1..=self.group).contains(&blocks.len()), "a group of blocks");
        let is_exact = self.exact_bytes(blocks.len()) <= self.payload_bytes(blocks.len());
        let contents = if is_exact { Contents::Exact(self.form.number) } else { Contents::Pages };
        let mut bytes = entry::begin(&self.signature, contents, keys);
        if is_exact {
            self.copy(blocks, &mut bytes)
        } else {
            self.encode(blocks, &mut bytes)?
        }
        entry::finish(&mut bytes, keys);
        Ok(bytes)
    }

    /// Writes blocks of an entry, each by its place in it, to where they belong.
    ///
    /// # Errors
    /// When the entry is damaged, or another codec's.
    pub fn unpack(&self, bytes: &[u8], wanted: &[(usize, Block)]) -> Result<(), TierError> {
        let entry = Entry::read(bytes, &self.signature)?;
        if wanted.iter().any(|(place, _)| *place >= entry.blocks) {
            return Err(TierError::Entry("the entry has fewer blocks than it should"));
        }
        let expected = match entry.contents {
            Contents::Pages => self.payload_bytes(entry.blocks),
            Contents::Exact(number) => {
                self.exact_bytes(entry.blocks) / self.form.number.bytes() * number.bytes()
            }
        };
        if entry.payload.len() != expected || entry.blocks > self.group {
            return Err(TierError::Entry("the entry has another size than its header says"));
        }
        match entry.contents {
            Contents::Pages => self.decode(&entry, wanted),
            Contents::Exact(number) => {
                self.paste(&entry, number, wanted);
                Ok(())
            }
        }
    }

    /// What an entry says its keys are, if it is one of this codec's.
    ///
    /// # Errors
    /// When it is not.
    pub fn keys(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TierError> {
        Ok(Entry::read(bytes, &self.signature)?.keys)
    }

    fn encode(&self, blocks: &[Block], out: &mut Vec<u8>) -> Result<(), TierError> {
        let tokens = blocks.len() * self.form.tokens;
        let mut rows = Vec::new(); // (page tokens, dim)
        for (slot, head, side, codecs) in self.layout.sides() {
            let (codec, page_tokens) = (codecs.codec(), codecs.page_tokens());
            let (base, dim) = self.place(slot, head, side);
            rows.resize(page_tokens * dim, 0.0);
            for first in (0..tokens).step_by(page_tokens) {
                let count = page_tokens.min(tokens - first);
                for (token, row) in (first..first + count).zip(rows.chunks_exact_mut(dim)) {
                    self.form.number.read(self.vector(blocks, token, base, dim), row);
                }
                // A page that is not full is filled up with its last row, as a cache that encodes early does.
                rows.copy_within_last(count * dim, dim);
                let start = out.len();
                out.resize(start + codec.page_bytes(), 0);
                let encoded = codec.encode(&rows, &mut out[start..]);
                encoded.map_err(|source| self.refused(slot, head, source))?;
            }
        }
        Ok(())
    }

    fn decode(&self, entry: &Entry<'_>, wanted: &[(usize, Block)]) -> Result<(), TierError> {
        let (own, total) = (self.form.tokens, entry.blocks * self.form.tokens);
        let (mut rows, mut at) = (Vec::new(), 0);
        for (slot, head, side, codecs) in self.layout.sides() {
            let (codec, page_tokens) = (codecs.codec(), codecs.page_tokens());
            let (base, dim) = self.place(slot, head, side);
            rows.resize(page_tokens * dim, 0.0);
            for first in (0..total).step_by(page_tokens) {
                let page = &entry.payload[at..at + codec.page_bytes()];
                at += codec.page_bytes();
                let end = (first + page_tokens).min(total);
                let is_wanted = |(place, _): &&(usize, Block)| place * own < end && (place + 1) * own > first;
                if !wanted.iter().any(|one| is_wanted(&one)) {
                    continue;
                }
                codec.decode(page, &mut rows).map_err(|source| self.refused(slot, head, source))?;
                for (place, block) in wanted.iter().filter(is_wanted) {
                    for token in first.max(place * own)..end.min((place + 1) * own) {
                        let row = &rows[(token - first) * dim..][..dim];
                        let offset = base + self.offsets[token - place * own];
                        block.write(offset, self.form.number, row);
                    }
                }
            }
        }
        Ok(())
    }

    /// Exact numbers: (layer, head, side, token, channel).
    fn copy(&self, blocks: &[Block], out: &mut Vec<u8>) {
        for (slot, head, side, _) in self.layout.sides() {
            let (base, dim) = self.place(slot, head, side);
            for token in 0..blocks.len() * self.form.tokens {
                out.extend_from_slice(self.vector(blocks, token, base, dim));
            }
        }
    }

    fn paste(&self, entry: &Entry<'_>, number: Number, wanted: &[(usize, Block)]) {
        let own = self.form.tokens;
        let (mut row, mut at) = (Vec::new(), 0);
        for (slot, head, side, _) in self.layout.sides() {
            let (base, dim) = self.place(slot, head, side);
            row.resize(dim, 0.0);
            let size = dim * number.bytes();
            for (place, block) in wanted {
                for token in 0..own {
                    let vector = &entry.payload[at + (place * own + token) * size..][..size];
                    number.read(vector, &mut row);
                    block.write(base + self.offsets[token], self.form.number, &row);
                }
            }
            at += entry.blocks * own * size;
        }
    }

    /// Where a head's side begins in a block, and its channels.
    fn place(&self, slot: usize, head: usize, side: Side) -> (usize, usize) {
        let place = self.form.layers[slot].1[head];
        match side {
            Side::Key => (place.key, self.form.key_dim),
            Side::Value => (place.value, self.form.value_dim),
        }
    }

    /// The bytes of a token's vector, the blocks one after another.
    fn vector<'b>(&self, blocks: &'b [Block], token: usize, base: usize, dim: usize) -> &'b [u8] {
        let block = &blocks[token / self.form.tokens];
        block.bytes(base + self.offsets[token % self.form.tokens], dim * self.form.number.bytes())
    }

    fn refused(&self, slot: usize, head: usize, source: CodecError) -> TierError {
        TierError::Codec { layer: self.form.layers[slot].0, head, source }
    }
}

/// Fills a page up.
trait CopyLast {
    fn copy_within_last(&mut self, used: usize, dim: usize);
}

impl CopyLast for Vec<f32> {
    fn copy_within_last(&mut self, used: usize, dim: usize) {
        for start in (used..self.len()).step_by(dim) {
            self.copy_within(used - dim..used, start);
        }
    }
}

/// The part of a plan that is about these layers.
fn plan_of(plan: &Plan, form: &BlockForm) -> Result<Plan, TierError> {
    let refuse = |what: String| TierError::Form(what);
    let slot = |layer: usize| {
        let slot = plan.slots().get(layer).filter(|slot| !slot.heads.is_empty());
        let slot = slot.ok_or_else(|| {
            refuse(format!("the plan has nothing for layer {layer}: it was made {}", plan.made()))
        })?;
        match (slot.heads.len(), slot.key_dim, slot.value_dim) == (form.heads(), form.key_dim, form.value_dim)
        {
            true => Ok(slot.clone()),
            false => Err(refuse(format!(
                "the plan is of another model: its layer {layer} has {} kv heads of {}/{} channels, this one {} of {}/{}",
                slot.heads.len(),
                slot.key_dim,
                slot.value_dim,
                form.heads(),
                form.key_dim,
                form.value_dim
            ))),
        }
    };
    let slots = form.layers.iter().map(|(layer, _)| slot(*layer)).collect::<Result<_, _>>()?;
    Plan::new(*plan.model(), plan.policy().clone(), plan.made(), slots)
        .map_err(|error| refuse(error.to_string()))
}

/// What the plan's search expects of the codecs that the policy chooses.
fn expected_kl(policy: &Policy, form: &BlockForm) -> Option<f64> {
    let plan = policy.plan.as_ref()?;
    let mut sum = 0.0;
    for (layer, places) in &form.layers {
        for head in 0..places.len() {
            for side in [Side::Key, Side::Value] {
                let spec = policy.spec(*layer, head, side).to_string();
                let found = plan.findings(*layer, head, side)?;
                sum += f64::from(found.costs.iter().find(|cost| cost.spec == spec)?.kl);
            }
        }
    }
    Some(sum)
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
