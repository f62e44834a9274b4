//! One layer whose pages lie on a card: tensors are read and written where they are, on the stream of the library that owns them.

use super::decode::{Held, decode_sides};
use super::layer::{Kept, check_kept};
use super::refused;
use super::rollback::{LONGEST, RECORDED};
use super::tensor::Tensor;
use crate::error::failed;
use kvant_cache::{CacheLayout, KvShape, KvSlot, Sequence, Store};
use kvant_cuda::device::CudaGpu;
use kvant_cuda::{CardCache, CardLayer, CardPass, CardQueries, CardTensor, TensorNumber};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A tensor on the card: address, format, shape (batch, heads, tokens, channels), and strides in numbers.
#[derive(FromPyObject)]
pub struct TensorView(u64, String, [usize; 4], [i64; 4]);

impl TensorView {
    /// Where it lies; `what` it is goes into messages.
    fn tensor(&self, what: &str, shape: [usize; 4]) -> PyResult<CardTensor> {
        let TensorView(address, number, own, [batch, head, token, channel]) = self;
        if *own != shape {
            return Err(refused(format!("{what} have shape {own:?}, and {shape:?} was expected")));
        }
        if *channel != 1 {
            return Err(refused(format!("{what}: the channels of a vector do not lie side by side")));
        }
        let number = match number.as_str() {
            "float32" => TensorNumber::F32,
            "float16" => TensorNumber::F16,
            "bfloat16" => TensorNumber::Bf16,
            other => {
                return Err(refused(format!(
                    "{what} are of type {other}: float32, float16 and bfloat16 are taken"
                )));
            }
        };
        Ok(CardTensor { address: *address, strides: [*batch, *head, *token], number })
    }
}

/// How queries score.
#[derive(FromPyObject)]
pub struct Scores(f32, Option<f32>, Option<u64>);

/// Keys and values of a pass, or queries and where their results go.
type Pair = (TensorView, TensorView);

/// The card of that number; the caches of a process share it.
pub fn card(number: usize) -> PyResult<Arc<CudaGpu>> {
    static CARDS: OnceLock<Mutex<HashMap<usize, Arc<CudaGpu>>>> = OnceLock::new();
    let mut cards = CARDS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(card) = cards.get(&number) {
        return Ok(Arc::clone(card));
    }
    let card = Arc::new(CudaGpu::open(number).map_err(refused)?);
    cards.insert(number, Arc::clone(&card));
    Ok(card)
}

/// The keys and values of one layer for a batch of sequences, on a card. As `LayerCache`, with tensors by address.
#[pyclass(module = "kvant._kvant")]
pub struct CardLayerCache {
    layout: Arc<CacheLayout>,
    slot: KvSlot,
    shape: KvShape,
    cache: Arc<CardCache>,
    layer: CardLayer,
    sequences: Vec<Sequence>,
    /// The tokens of the pass that is under way.
    kept: Kept,
    /// The stream of the last pass.
    stream: u64,
    /// The last passes, while they are recorded: what lets them be taken back exactly.
    past: Option<VecDeque<PastPass>>,
}

/// A pass that can be taken back in part: its tensors are held, and appended again.
struct PastPass {
    before: Vec<Sequence>,
    append: [CardTensor; 2],
    tokens: Vec<Vec<usize>>,
    /// What keeps the tensors alive.
    _held: Py<PyAny>,
}

impl PastPass {
    fn longest(&self) -> usize {
        self.tokens.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether no sequence was longer than these lengths before it.
    fn starts_within(&self, lens: &[usize]) -> bool {
        self.before.iter().zip(lens).all(|(before, len)| before.len() <= *len)
    }

    /// Whether a token of it is left when sequences are cut to these lengths.
    fn reaches_into(&self, lens: &[usize]) -> bool {
        self.starts_within(lens) && self.before.iter().zip(lens).any(|(before, len)| before.len() < *len)
    }
}

impl CardLayerCache {
    pub fn new(
        cache: &Arc<CardCache>,
        layout: &Arc<CacheLayout>,
        slot: KvSlot,
        shape: KvShape,
    ) -> PyResult<CardLayerCache> {
        let layer = cache.layer(layout, slot).map_err(refused)?;
        Ok(CardLayerCache {
            layout: Arc::clone(layout),
            slot,
            shape,
            cache: Arc::clone(cache),
            layer,
            sequences: Vec::new(),
            kept: None,
            stream: 0,
            past: None,
        })
    }

    fn end_pass(&mut self) -> PyResult<()> {
        self.kept = None;
        for sequence in &mut self.sequences {
            let tokens = sequence.slot_len(self.slot) - sequence.len();
            sequence.advance(tokens).map_err(refused)?;
        }
        Ok(())
    }

    /// The tokens of every row of the pass that is under way.
    fn tokens(&self, tokens: usize) -> Vec<Vec<usize>> {
        let all = || vec![(0..tokens).collect(); self.sequences.len()];
        self.kept.clone().unwrap_or_else(all)
    }

    fn appended(&mut self, (keys, values): &Pair, kept: Kept) -> PyResult<[CardTensor; 2]> {
        let KvShape { kv_heads, key_dim, value_dim, .. } = self.shape;
        let [batch, _, tokens, _] = keys.2;
        if !self.sequences.is_empty() && self.sequences.len() != batch {
            return Err(refused(format!(
                "keys of {batch} sequences for a cache of {}",
                self.sequences.len()
            )));
        }
        let keys = keys.tensor("keys", [batch, kv_heads, tokens, key_dim])?;
        let values = values.tensor("values", [batch, kv_heads, tokens, value_dim])?;
        check_kept(&kept, tokens, batch)?;
        self.end_pass()?;
        if self.sequences.is_empty() {
            let sequence = |_| Sequence::new(Arc::clone(&self.layout), self.cache.store());
            self.sequences = (0..batch).map(sequence).collect();
        }
        self.kept = kept;
        Ok([keys, values])
    }

    /// Forks of the sequences before a pass, if it is to be recorded.
    fn before(&mut self, tokens: &[Vec<usize>], is_held: bool) -> PyResult<Option<Vec<Sequence>>> {
        let Some(past) = self.past.as_mut().filter(|_| is_held) else { return Ok(None) };
        if tokens.iter().any(|tokens| tokens.len() > LONGEST) {
            past.clear();
            return Ok(None);
        }
        self.sequences.iter().map(Sequence::fork).collect::<Result<_, _>>().map(Some).map_err(failed)
    }

    /// Adds a pass, and forgets what lies further back than anyone goes.
    fn push(&mut self, pass: PastPass) {
        let Some(past) = &mut self.past else { return };
        past.push_back(pass);
        let later = |past: &VecDeque<PastPass>| past.iter().skip(1).map(PastPass::longest).sum::<usize>();
        while later(past) >= RECORDED {
            past.pop_front();
        }
    }

    fn asked(&self, (queries, out): &Pair, scores: &Scores) -> PyResult<CardQueries> {
        let [_, heads, tokens, _] = queries.2;
        let batch = self.sequences.len();
        if heads == 0 || !heads.is_multiple_of(self.shape.kv_heads) {
            return Err(refused(format!("{heads} query heads for {} kv heads", self.shape.kv_heads)));
        }
        check_kept(&self.kept, tokens, batch)?;
        Ok(CardQueries {
            queries: queries.tensor("queries", [batch, heads, tokens, self.shape.key_dim])?,
            out: out.tensor("the output", [batch, heads, tokens, self.shape.value_dim])?,
            heads,
            scale: scores.0,
            soft_cap: scores.1,
            sink_logits: scores.2.unwrap_or(0),
        })
    }
}

#[pymethods]
impl CardLayerCache {
    /// A pass: keys and values, if there are new ones, then queries of the same tokens with their output, if they attend; the scores' scale, soft cap
    /// and the address of sink logits (f32). Everything is put on the stream, and nothing is waited for. `settles` says that no later query belongs to
    /// this pass; `held` keeps keys and values alive where passes are recorded.
    #[pyo3(signature = (stream, keys_values=None, queries_out=None, scores=None, kept=None, settles=true, held=None))]
    #[expect(clippy::too_many_arguments, reason = "one call per layer and step")]
    fn run(
        &mut self,
        py: Python<'_>,
        stream: u64,
        keys_values: Option<Pair>,
        queries_out: Option<Pair>,
        scores: Option<Scores>,
        kept: Kept,
        settles: bool,
        held: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let tokens = keys_values.as_ref().or(queries_out.as_ref()).map_or(0, |(first, _)| first.2[2]);
        let append = keys_values.as_ref().map(|pair| self.appended(pair, kept)).transpose()?;
        let attend = match (&queries_out, &scores) {
            (Some(pair), Some(scores)) => Some(self.asked(pair, scores)?),
            (None, _) => None,
            (Some(_), None) => return Err(refused("queries come with a scale")),
        };
        if let (Some((keys, _)), Some((queries, _))) = (&keys_values, &queries_out)
            && keys.2[2] != queries.2[2]
        {
            return Err(refused(format!("{} queries for {} keys of a pass", queries.2[2], keys.2[2])));
        }
        let tokens = self.tokens(tokens);
        let before = self.before(&tokens, append.is_some() && held.is_some())?;
        self.stream = stream;
        let pass = CardPass { stream, tokens: &tokens, append, attend };
        let (layer, sequences) = (&mut self.layer, &mut self.sequences[..]);
        // SAFETY: shapes were checked above; addresses, strides and the stream are those that the tensors' library gave for tensors it holds.
        py.detach(|| unsafe { layer.pass(sequences, &pass, settles) }).map_err(failed)?;
        if let (Some(before), Some(append), Some(held)) = (before, append, held) {
            self.push(PastPass { before, append, tokens, _held: held });
        }
        if settles {
            self.end_pass()?;
        }
        Ok(())
    }

    /// Ends the pass: rows that no later query reads exactly are forgotten.
    fn settle(&mut self) -> PyResult<()> {
        self.end_pass()
    }

    /// As `LayerCache.decode`, to tensors in host memory: pages are copied from the card.
    #[pyo3(signature = (keys, values, first, places=None))]
    fn decode(
        &self,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        first: Vec<usize>,
        places: Kept,
    ) -> PyResult<()> {
        let (keys, values) = (Tensor::borrow(keys, "keys")?, Tensor::borrow(values, "values")?);
        let (KvShape { kv_heads, key_dim, value_dim, .. }, tokens) = (self.shape, keys.view.shape[2]);
        let rows = self.sequences.len();
        keys.view.expect("keys", [rows, kv_heads, tokens, key_dim])?;
        values.view.expect("values", [rows, kv_heads, tokens, value_dim])?;
        check_kept(&places, tokens, rows)?;
        if first.len() != rows {
            return Err(refused(format!("{} first positions for {rows} sequences", first.len())));
        }
        let held = Held {
            sequences: &self.sequences,
            slot: self.slot,
            heads: kv_heads,
            rule: self.layout.exact_window(),
        };
        decode_sides(&held, [keys.view, values.view], &first, &places)
    }

    /// Keeps the sequences at these places of the batch, in this order; one that is named twice is forked, sharing pages.
    fn select(&mut self, indices: Vec<usize>) -> PyResult<()> {
        self.end_pass()?;
        let rows = self.sequences.len();
        if let Some(index) = indices.iter().find(|index| **index >= rows) {
            return Err(refused(format!("there is no sequence {index} in a batch of {rows}")));
        }
        let forks = indices.iter().map(|index| self.sequences[*index].fork()).collect::<Result<_, _>>();
        self.sequences = forks.map_err(failed)?;
        // Tensors of recorded passes have the old order.
        self.past.iter_mut().for_each(VecDeque::clear);
        Ok(())
    }

    /// Whether the next passes are kept in a form that lets them be taken back exactly.
    fn record(&mut self, on: bool) {
        self.past = on.then(|| self.past.take().unwrap_or_default());
    }

    /// Another cache with the same tokens. Pages are shared.
    fn fork(&mut self) -> PyResult<CardLayerCache> {
        self.end_pass()?;
        let sequences =
            self.sequences.iter().map(Sequence::fork).collect::<Result<_, _>>().map_err(failed)?;
        let empty = CardLayerCache::new(&self.cache, &self.layout, self.slot, self.shape)?;
        Ok(CardLayerCache { sequences, ..empty })
    }

    /// Goes back to so many tokens of every row, as if there had never been more; refused where the page they end in is encoded and
    /// passes were not recorded.
    fn crop(&mut self, lens: Vec<usize>) -> PyResult<()> {
        self.end_pass()?;
        if lens.len() != self.sequences.len()
            || lens.iter().zip(&self.sequences).any(|(len, own)| *len > own.len())
        {
            let own = self.lens();
            return Err(refused(format!("lengths {lens:?} are not ones that the sequences {own:?} had")));
        }
        let restorable = |row: usize| self.sequences[row].restorable(lens[row]);
        let Some(row) = (0..lens.len()).find(|row| restorable(*row) < lens[*row]) else {
            for (sequence, len) in self.sequences.iter_mut().zip(&lens) {
                sequence.truncate(*len).map_err(failed)?;
            }
            let past = self.past.iter_mut();
            past.for_each(|past| past.retain(|pass| pass.reaches_into(&lens)));
            return Ok(());
        };
        let index =
            self.past.as_ref().and_then(|past| past.iter().rposition(|pass| pass.starts_within(&lens)));
        let (Some(index), Some(past)) = (index, &mut self.past) else {
            let (len, nearest) = (lens[row], restorable(row));
            return Err(refused(format!(
                "row {row} cannot be cropped to {len} tokens: the page they end in is encoded and its exact rows are gone \
                 (the nearest length is {nearest}). Call activate_past_recording() before the tokens come, or fork the \
                 cache at that point"
            )));
        };
        past.truncate(index + 1);
        let pass = &past[index];
        let forks = pass.before.iter().map(Sequence::fork).collect::<Result<Vec<_>, _>>();
        let mut sequences = forks.map_err(failed)?;
        let left = |(pass, len): (&Vec<usize>, usize)| pass[..len].to_vec();
        let counts = sequences.iter().zip(&lens).map(|(own, len)| len - own.len());
        let tokens: Vec<Vec<usize>> = pass.tokens.iter().zip(counts).map(left).collect();
        let again =
            CardPass { stream: self.stream, tokens: &tokens, append: Some(pass.append), attend: None };
        // SAFETY: the tensors of the pass are held, and were checked when they came.
        unsafe { self.layer.pass(&mut sequences, &again, true) }.map_err(failed)?;
        self.sequences = sequences;
        self.end_pass()
    }

    /// Tokens of every row.
    #[getter]
    fn lens(&self) -> Vec<usize> {
        self.sequences.iter().map(|sequence| sequence.slot_len(self.slot)).collect()
    }

    /// As `LayerCache.footprint`.
    fn footprint<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        super::layer::footprint(py, &self.sequences)
    }

    /// Address on the card and number of bytes of an encoded page, which lie in the order of the card's kernels.
    fn page(&self, row: usize, head: usize, side: &str, page: usize) -> PyResult<Option<(u64, usize)>> {
        let store = super::layer::side_of(&self.sequences, self.slot, row, head, side)?;
        let bytes = store.codecs().codec().page_bytes();
        Ok(store.encoded_id(page).map(|page| (self.cache.address(page), bytes)))
    }

    /// The bytes of an encoded page as every other store has them.
    fn page_bytes(&self, row: usize, head: usize, side: &str, page: usize) -> PyResult<Option<Vec<u8>>> {
        let side = super::layer::side_of(&self.sequences, self.slot, row, head, side)?;
        let Store::Device(store) = self.cache.store() else { return Ok(None) };
        let mut bytes = vec![0; side.codecs().codec().page_bytes()];
        Ok(side.encoded_id(page).map(|page| {
            store.read(page, &mut bytes);
            bytes
        }))
    }
}
