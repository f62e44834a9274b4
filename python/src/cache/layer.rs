//! The sequences of a batch, in one layer.

use super::decode::{Held, decode_sides};
use super::device;
use super::layout::Shared;
use super::refused;
use super::rollback::{Recorded, Rows};
use super::saved;
use super::tensor::{Tensor, View};
use kvant_attention::{Queries, Scoring, StateError};
use kvant_cache::snapshot::Signature;
use kvant_cache::{CacheLayout, KvShape, KvSlot, Sequence, SideStore};
use kvant_codec::Side;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use std::borrow::Cow;
use std::sync::{Arc, PoisonError};

/// Tokens of every row that belong to its sequence, by their place among the new ones; `None` for all of them.
pub type Kept = Option<Vec<Vec<usize>>>;

/// The keys and values of one layer for a batch of sequences.
///
/// A pass is one `append` and any number of `attend`s; `settle` ends it, and so does whatever comes next. Tensors are
/// (batch, heads, tokens, channels) in float32, float16 or bfloat16, borrowed by DLPack.
#[pyclass(module = "kvant._kvant")]
pub struct LayerCache {
    pub(super) layout: Arc<CacheLayout>,
    pub(super) slot: KvSlot,
    pub(super) shape: KvShape,
    pub(super) shared: Shared,
    pub(super) sequences: Vec<Sequence>,
    /// The tokens of the pass that is under way.
    kept: Kept,
    recorded: Recorded,
}

impl LayerCache {
    pub fn new(layout: Arc<CacheLayout>, slot: KvSlot, shape: KvShape, shared: Shared) -> LayerCache {
        let recorded = Recorded::default();
        LayerCache { layout, slot, shape, shared, sequences: Vec::new(), kept: None, recorded }
    }

    fn is_latent(&self) -> bool {
        matches!(self.layout.slots()[self.slot.index()].kind(), kvant_cache::SlotKind::Latent(_))
    }

    /// Ends the pass that is under way.
    pub(super) fn end_pass(&mut self) -> PyResult<()> {
        self.kept = None;
        for sequence in &mut self.sequences {
            let tokens = sequence.slot_len(self.slot) - sequence.len();
            sequence.advance(tokens).map_err(refused)?;
        }
        Ok(())
    }

    /// Takes back the pass that is under way.
    fn abandon(&mut self) {
        self.kept = None;
        for sequence in &mut self.sequences {
            if sequence.abandon().is_err() {
                *sequence = Sequence::new(Arc::clone(&self.layout), self.shared.arena.clone());
            }
        }
    }

    fn append_rows(&mut self, keys: &View, values: &View, kept: &Kept) -> PyResult<()> {
        if self.sequences.is_empty() {
            let sequence = |_| Sequence::new(Arc::clone(&self.layout), self.shared.arena.clone());
            self.sequences = (0..keys.shape[0]).map(sequence).collect();
        }
        let before = self.recorded.fork(&self.sequences, keys.shape[2]).map_err(refused)?;
        let mut rows = Vec::new();
        for (batch, sequence) in self.sequences.iter_mut().enumerate() {
            let tokens = kept.as_ref().map(|kept| &kept[batch][..]);
            let (keys, values) = (keys.rows(batch, tokens), values.rows(batch, tokens));
            sequence.append(self.slot, &keys, &values).map_err(refused)?;
            if before.is_some() {
                let tokens = sequence.slot_len(self.slot) - sequence.len();
                rows.push(Rows { tokens, keys: keys.into_owned(), values: values.into_owned() });
            }
        }
        if let Some(before) = before {
            self.recorded.push(before, rows);
        }
        Ok(())
    }

    fn attend_rows(&self, queries: &View, scoring: &Scoring<'_>, out: &View) -> Result<(), StateError> {
        let sequences: Vec<&Sequence> = self.sequences.iter().collect();
        let queries = match (queries.all_rows().filter(|_| self.kept.is_none()), &self.kept) {
            (Some(rows), _) => Cow::Borrowed(rows),
            (None, kept) => {
                let mut rows = Vec::new(); // (rows, heads, key channels)
                for batch in 0..queries.shape[0] {
                    queries.gather(batch, kept.as_ref().map(|kept| &kept[batch][..]), &mut rows);
                }
                Cow::Owned(rows)
            }
        };
        let mut attention = self.shared.attention.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the output was made for this call, and Python waits for it.
        if let (None, Some(out)) = (&self.kept, unsafe { out.all_rows_mut() }) {
            return attention.attend(&sequences[..], self.slot, queries[..].into(), scoring, out);
        }
        let [_, heads, tokens, dim] = out.shape;
        let mut rows = vec![0.0; queries.len() / self.query_dim() * dim]; // (rows, heads, value channels)
        attention.attend(&sequences[..], self.slot, Queries::from(&queries[..]), scoring, &mut rows)?;
        let mut vectors = rows.chunks_exact(dim);
        for batch in 0..out.shape[0] {
            let count = self.kept.as_ref().map_or(tokens, |kept| kept[batch].len());
            for index in 0..count {
                let token = self.kept.as_ref().map_or(index, |kept| kept[batch][index]);
                for (head, vector) in (0..heads).zip(&mut vectors) {
                    // SAFETY: as above.
                    unsafe { out.write([batch, head, token], vector) };
                }
            }
        }
        Ok(())
    }

    fn on_device(&self) -> device::Layer<'_> {
        let LayerCache { layout, slot, shape, sequences, .. } = self;
        device::Layer { layout, slot: *slot, shape, sequences }
    }

    /// Channels of a query.
    fn query_dim(&self) -> usize {
        self.shape.key_dim + if self.is_latent() { self.shape.value_dim } else { 0 }
    }
}

/// Refuses kept tokens that are not of such a batch.
pub(super) fn check_kept(kept: &Kept, tokens: usize, batch: usize) -> PyResult<()> {
    let Some(kept) = kept else { return Ok(()) };
    if kept.len() != batch {
        return Err(refused(format!("{} rows of kept tokens for a batch of {batch}", kept.len())));
    }
    let fits =
        |row: &Vec<usize>| row.is_sorted_by(|a, b| a < b) && row.last().is_none_or(|last| *last < tokens);
    match kept.iter().position(|row| !fits(row)) {
        Some(row) => Err(refused(format!("row {row}: kept tokens must rise and be below {tokens}"))),
        None => Ok(()),
    }
}

/// Positions from the first on that every side reads as bytes, or as sinks, whatever comes.
fn closed(sequence: &Sequence, slot: KvSlot, heads: usize) -> usize {
    let (rule, len) = (sequence.layout().exact_window(), sequence.slot_len(slot));
    let sides =
        (0..heads).flat_map(|head| [Side::Key, Side::Value].map(|side| sequence.side(slot, head, side)));
    let closed = |side: &SideStore| {
        let tokens = side.codecs().page_tokens();
        rule.page_start(rule.encoded_for(len, tokens), tokens)
    };
    sides.flatten().map(closed).min().unwrap_or(0).min(len)
}

/// What sequences hold, as `footprint` says it.
pub(super) fn footprint<'py>(py: Python<'py>, sequences: &[Sequence]) -> PyResult<Bound<'py, PyDict>> {
    let (mut stored, mut encoded, mut exact, mut bits) = (0, 0, 0, 0.0);
    for footprint in sequences.iter().map(Sequence::footprint) {
        stored += footprint.stored;
        encoded += footprint.encoded;
        exact += footprint.exact;
        bits += footprint.bits_total / sequences.len() as f64;
    }
    let dict = PyDict::new(py);
    dict.set_item("stored", stored)?;
    dict.set_item("encoded", encoded)?;
    dict.set_item("exact", exact)?;
    dict.set_item("bits_per_value", bits)?;
    Ok(dict)
}

/// One side of a kv head of a row; `side` is `key` or `value`.
pub(super) fn side_of<'a>(
    sequences: &'a [Sequence],
    slot: KvSlot,
    row: usize,
    head: usize,
    side: &str,
) -> PyResult<&'a SideStore> {
    let side = match side {
        "key" => Side::Key,
        "value" => Side::Value,
        other => return Err(refused(format!("side `{other}`: `key` or `value` was expected"))),
    };
    let sequence = sequences.get(row).ok_or_else(|| refused(format!("there is no row {row}")))?;
    sequence.side(slot, head, side).ok_or_else(|| refused(format!("there is no kv head {head}")))
}

#[pymethods]
impl LayerCache {
    /// Takes the keys and values of a pass. `kept` names the tokens of every row that belong to its sequence, where some are
    /// padding.
    #[pyo3(signature = (keys, values, kept=None))]
    fn append(
        &mut self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        kept: Kept,
    ) -> PyResult<()> {
        let (keys, values) = (Tensor::borrow(keys, "keys")?, Tensor::borrow(values, "values")?);
        let (KvShape { kv_heads, key_dim, value_dim, .. }, [batch, _, tokens, _]) =
            (self.shape, keys.view.shape);
        if !self.sequences.is_empty() && self.sequences.len() != batch {
            return Err(refused(format!(
                "keys of {batch} sequences for a cache of {}",
                self.sequences.len()
            )));
        }
        keys.view.expect("keys", [batch, kv_heads, tokens, key_dim])?;
        values.view.expect("values", [batch, kv_heads, tokens, value_dim])?;
        check_kept(&kept, tokens, batch)?;
        self.end_pass()?;
        let (keys, values, pool) = (keys.view, values.view, self.shared.pool.clone());
        py.detach(|| {
            pool.install(|| self.append_rows(&keys, &values, &kept)).inspect_err(|_| self.abandon())?;
            self.kept = kept;
            Ok(())
        })
    }

    /// Attends with the queries (batch, query heads, tokens, channels) of the pass; `out` is of their shape, with the
    /// channels of a value. What is padding stays as it is.
    #[pyo3(signature = (queries, out, scale, soft_cap=None, sink_logits=None))]
    fn attend(
        &mut self,
        py: Python<'_>,
        queries: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        scale: f32,
        soft_cap: Option<f32>,
        sink_logits: Option<Vec<f32>>,
    ) -> PyResult<()> {
        let (queries, out) = (Tensor::borrow(queries, "queries")?, Tensor::borrow(out, "the output")?);
        let [_, heads, tokens, _] = queries.view.shape;
        let batch = self.sequences.len();
        queries.view.expect("queries", [batch, heads, tokens, self.query_dim()])?;
        out.view.expect("the output", [batch, heads, tokens, self.shape.value_dim])?;
        check_kept(&self.kept, tokens, batch)?;
        let scoring = Scoring { scale, soft_cap, sink_logits: sink_logits.as_deref() };
        let (queries, out, pool) = (queries.view, out.view, self.shared.pool.clone());
        if self.kept.as_ref().is_some_and(|kept| kept.iter().all(Vec::is_empty)) {
            return Ok(());
        }
        py.detach(|| pool.install(|| self.attend_rows(&queries, &scoring, &out))).map_err(refused)
    }

    /// Ends the pass: rows that no later query reads exactly are forgotten.
    fn settle(&mut self) -> PyResult<()> {
        self.end_pass()
    }

    /// Writes what is held of every row from its position in `first` on into `keys` and `values`, (batch, kv heads, tokens,
    /// channels): encoded pages decoded, the others exactly. `places` says where the positions of every row go, if not one
    /// after the other.
    #[pyo3(signature = (keys, values, first, places=None))]
    fn decode(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        first: Vec<usize>,
        places: Kept,
    ) -> PyResult<()> {
        let (keys, values) = (Tensor::borrow(keys, "keys")?, Tensor::borrow(values, "values")?);
        let (KvShape { kv_heads, key_dim, value_dim, .. }, tokens) = (self.shape, keys.view.shape[2]);
        keys.view.expect("keys", [self.sequences.len(), kv_heads, tokens, key_dim])?;
        values.view.expect("values", [self.sequences.len(), kv_heads, tokens, value_dim])?;
        check_kept(&places, tokens, self.sequences.len())?;
        if first.len() != self.sequences.len() {
            return Err(refused(format!(
                "{} first positions for {} sequences",
                first.len(),
                self.sequences.len()
            )));
        }
        let (views, pool) = ([keys.view, values.view], self.shared.pool.clone());
        let held = Held {
            sequences: &self.sequences,
            slot: self.slot,
            heads: kv_heads,
            rule: self.layout.exact_window(),
        };
        py.detach(|| pool.install(|| decode_sides(&held, views, &first, &places)))
    }

    /// Positions from the first on, of every row, that `decode` gives the same numbers from now on: sinks and encoded pages.
    #[getter]
    fn closed(&self) -> usize {
        let closed = |sequence: &Sequence| closed(sequence, self.slot, self.shape.kv_heads);
        self.sequences.iter().map(closed).min().unwrap_or(0)
    }

    /// Every sequence as bytes that `load` takes, in the form of a session file; `policy` is for people, and the signature, 32 bytes,
    /// says what else must be the same.
    fn save<'py>(
        &mut self,
        py: Python<'py>,
        policy: &str,
        signature: Signature,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        self.end_pass()?;
        let sequences = &self.sequences;
        let rows = py.detach(|| saved::to_bytes(sequences, policy, signature))?;
        Ok(rows.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Holds the sequences that `save` has given of such a layer, in place of its own.
    fn load(&mut self, py: Python<'_>, rows: Vec<PyBackedBytes>, signature: Signature) -> PyResult<()> {
        let (layout, arena) = (&self.layout, &self.shared.arena);
        let rows = rows.iter().map(|bytes| bytes.to_vec()).collect();
        let sequences = py.detach(|| saved::from_bytes(rows, &signature, layout, arena))?;
        self.kept = None;
        self.recorded.clear();
        self.sequences = sequences;
        Ok(())
    }

    /// Keeps the sequences at these places of the batch, in this order; one that is named twice is forked, sharing pages.
    fn select(&mut self, indices: Vec<usize>) -> PyResult<()> {
        self.end_pass()?;
        if let Some(index) = indices.iter().find(|index| **index >= self.sequences.len()) {
            return Err(refused(format!(
                "there is no sequence {index} in a batch of {}",
                self.sequences.len()
            )));
        }
        let forks = indices.iter().map(|index| self.sequences[*index].fork()).collect::<Result<_, _>>();
        self.recorded.select(&indices).map_err(refused)?;
        self.sequences = forks.map_err(refused)?;
        Ok(())
    }

    /// Another cache with the same tokens. Pages are shared.
    fn fork(&mut self) -> PyResult<LayerCache> {
        self.end_pass()?;
        let sequences =
            self.sequences.iter().map(Sequence::fork).collect::<Result<_, _>>().map_err(refused)?;
        let empty = LayerCache::new(Arc::clone(&self.layout), self.slot, self.shape, self.shared.clone());
        Ok(LayerCache { sequences, ..empty })
    }

    /// Whether the next passes are kept in a form that lets them be taken back exactly.
    fn record(&mut self, on: bool) {
        self.recorded.turn(on);
    }

    /// Goes back to so many tokens of every row, as if there had never been more.
    fn crop(&mut self, py: Python<'_>, lens: Vec<usize>) -> PyResult<()> {
        self.end_pass()?;
        if lens.len() != self.sequences.len()
            || lens.iter().zip(&self.sequences).any(|(len, own)| *len > own.len())
        {
            return Err(refused(format!(
                "lengths {lens:?} are not ones that the sequences {:?} had",
                self.lens()
            )));
        }
        let pool = self.shared.pool.clone();
        let (slot, sequences, recorded) = (self.slot, &mut self.sequences, &mut self.recorded);
        py.detach(|| pool.install(|| recorded.crop(sequences, slot, &lens)))
    }

    /// Tokens of every row.
    #[getter]
    fn lens(&self) -> Vec<usize> {
        self.sequences.iter().map(|sequence| sequence.slot_len(self.slot)).collect()
    }

    /// Bytes that are stored (`stored`), those of encoded pages and of exact rows with the room kept for more (`encoded`,
    /// `exact`), and bits per value.
    fn footprint<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        footprint(py, &self.sequences)
    }

    /// Address and number of bytes of an encoded page, for tools that read pages in place; `side` is `key` or `value`.
    fn page(&self, row: usize, head: usize, side: &str, page: usize) -> PyResult<Option<(usize, usize)>> {
        let store = side_of(&self.sequences, self.slot, row, head, side)?;
        Ok(store.encoded(page).map(|bytes| (bytes.as_ptr().addr(), bytes.len())))
    }

    /// The Metal kernels that read these pages: what their names end with, bytes of a page, kv heads, and the matrix that ends a sum
    /// (f32). Refused where there are none, with the reason.
    fn device_form<'py>(&self, py: Python<'py>) -> PyResult<(String, usize, usize, Bound<'py, PyBytes>)> {
        let form = device::form(&self.layout, self.slot, &self.shape)?;
        Ok((form.name, form.page_bytes, self.shape.kv_heads, PyBytes::new(py, &form.finish)))
    }

    /// Pages of a row that a device needs room for, for queries of the last `tokens` of every row.
    fn device_room(&self, tokens: usize) -> PyResult<usize> {
        self.on_device().room(tokens)
    }

    /// What kernels on a device are given for queries of the last `tokens` of every row: see `device.rs`.
    #[pyo3(signature = (tokens, heads, held, room, page_bytes, scale, soft_cap=None))]
    #[expect(clippy::too_many_arguments, reason = "one call per layer and step")]
    fn device_pass<'py>(
        &self,
        py: Python<'py>,
        tokens: usize,
        heads: usize,
        held: Vec<usize>,
        room: usize,
        page_bytes: usize,
        scale: f32,
        soft_cap: Option<f32>,
    ) -> PyResult<device::Given<'py>> {
        let asked = device::Asked { tokens, heads, held, room, scale, soft_cap };
        self.on_device().pass(py, asked, page_bytes)
    }

    /// Whether some rows of the pass that is under way have tokens of padding.
    #[getter]
    fn is_padded(&self) -> bool {
        self.kept.is_some()
    }

    /// What computes scores of encoded keys and sums of encoded values: an instruction set, or `decode`.
    fn kernels(&self) -> Option<(&'static str, &'static str)> {
        let kernels = self.layout.slots()[self.slot.index()].kernels()?;
        Some((kernels.kernels[0], kernels.kernels[1]))
    }
}
