//! A cold tier for other engines: their memory is borrowed, and their blocks are kept as pages.

use crate::cache::{PlanSource, policy};
use crate::error::bad_value;
use crate::work::detached;
use kvant_cache::{ExactWindow, Policy};
use kvant_tier::{Block, BlockCodec, BlockForm, Blocks, Finished, HeadPlace, Held, Number, Options, Place};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;
use std::sync::Arc;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tier>()?;
    module.add_class::<EngineMemory>()?;
    module.add_class::<BlockPacker>()
}

/// Numbers, tokens, channels of keys and of values, bytes from token to token, tokens of a run, bytes from run to run, and every layer's
/// number with the places of its kv heads' keys and values.
#[derive(FromPyObject)]
struct Form(String, usize, usize, usize, usize, usize, usize, Vec<(usize, Vec<(usize, usize)>)>);

impl Form {
    fn read(self) -> PyResult<BlockForm> {
        let Form(number, tokens, key_dim, value_dim, token_stride, run, run_stride, layers) = self;
        let number = match number.as_str() {
            "float32" => Number::F32,
            "float16" => Number::F16,
            "bfloat16" => Number::Bf16,
            other => {
                return Err(bad_value(format!(
                    "the engine's cache has numbers of type {other}: float32, float16 and bfloat16 are taken"
                )));
            }
        };
        let places =
            |places: Vec<(usize, usize)>| places.into_iter().map(|(key, value)| HeadPlace { key, value });
        let layers = layers.into_iter().map(|(layer, heads)| (layer, places(heads).collect())).collect();
        Ok(BlockForm { number, tokens, key_dim, value_dim, token_stride, run, run_stride, layers })
    }
}

/// The policy of a tier, which knows no positions.
fn tier_policy(kv: Option<&str>, plan: Option<PlanSource>) -> PyResult<Policy> {
    let policy = policy(kv, plan)?;
    if kv.is_some() && policy.rule != ExactWindow::default() {
        return Err(bad_value(format!(
            "`{policy}` says which positions stay exact, and a tier does not know the position of a block: leave sinks and recent out"
        )));
    }
    Ok(policy)
}

/// Refuses clauses for layers that no block has: a typing mistake would pass unnoticed.
fn check_layers(policy: &Policy, forms: &[BlockForm]) -> PyResult<()> {
    let is_there = |layer: &usize| forms.iter().any(|form| form.layers.iter().any(|(own, _)| own == layer));
    for clause in &policy.clauses {
        if let Some(layer) = clause.layers.iter().cloned().flatten().find(|layer| !is_there(layer)) {
            return Err(bad_value(format!(
                "`{clause}` names layer {layer}, which the engine's cache does not have"
            )));
        }
    }
    Ok(())
}

/// Writable memory with blocks, `stride` bytes apart. It is held until every job is done and this is closed.
#[pyclass(module = "kvant._kvant")]
pub struct EngineMemory(Option<Arc<Blocks>>);

#[pymethods]
impl EngineMemory {
    #[new]
    fn new(memory: &Bound<'_, PyAny>, stride: usize) -> PyResult<EngineMemory> {
        let buffer = PyBuffer::<u8>::get(memory)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(bad_value("the engine's memory must be writable and contiguous"));
        }
        let (base, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        // SAFETY: the buffer is held with the blocks. That nobody else touches blocks of a job that runs is what engines promise to tiers.
        Ok(EngineMemory(Some(Arc::new(unsafe { Blocks::new(base, len, stride, Box::new(buffer)) }))))
    }

    /// Lets the memory go.
    fn close(&mut self) {
        self.0 = None;
    }
}

impl EngineMemory {
    fn blocks(&self) -> PyResult<Arc<Blocks>> {
        self.0.clone().ok_or_else(|| bad_value("the engine's memory was closed"))
    }
}

/// A job: its number, the keys that failed, the first reason, seconds, bytes.
type Done<'py> = (u64, Vec<Bound<'py, PyBytes>>, Option<String>, f64, u64);

fn done<'py>(py: Python<'py>, job: &Finished) -> Done<'py> {
    let failed = job.failed.iter().map(|key| PyBytes::new(py, key)).collect();
    (job.job, failed, job.error.clone(), job.seconds, job.bytes)
}

/// A cold tier.
#[pyclass(module = "kvant._kvant")]
pub struct Tier(Option<kvant_tier::Tier>);

impl Tier {
    fn open(&self) -> PyResult<&kvant_tier::Tier> {
        self.0.as_ref().ok_or_else(|| bad_value("the tier was closed"))
    }
}

fn listed(list: Vec<(usize, PyBackedBytes, usize)>) -> Vec<(usize, Vec<u8>, usize)> {
    list.into_iter().map(|(group, key, place)| (group, key.to_vec(), place)).collect()
}

#[pymethods]
impl Tier {
    /// A tier with a form for every group of layers, in memory or in a folder.
    #[new]
    #[pyo3(signature = (forms, namespace, limit, kv=None, plan=None, folder=None, threads=None))]
    #[expect(clippy::too_many_arguments, reason = "what a tier is made of; Python names each")]
    fn new(
        py: Python<'_>,
        forms: Vec<Form>,
        namespace: &str,
        limit: u64,
        kv: Option<&str>,
        plan: Option<PlanSource>,
        folder: Option<PathBuf>,
        threads: Option<usize>,
    ) -> PyResult<Tier> {
        let policy = tier_policy(kv, plan)?;
        let forms = forms.into_iter().map(Form::read).collect::<PyResult<Vec<_>>>()?;
        check_layers(&policy, &forms)?;
        let codec = |form| BlockCodec::new(form, &policy, namespace).map_err(bad_value);
        let codecs = forms.into_iter().map(codec).collect::<PyResult<Vec<_>>>()?;
        let threads = threads.unwrap_or_else(|| kvant_threads::processors().div_ceil(2));
        let tier = py.detach(|| {
            let place = folder.map_or_else(|| Ok(Place::memory()), |folder| Place::folder(&folder))?;
            kvant_tier::Tier::open(codecs, place, Options { limit, threads })
        });
        Ok(Tier(Some(tier.map_err(bad_value)?)))
    }

    /// How blocks are kept.
    #[getter]
    fn kv(&self) -> PyResult<String> {
        Ok(self.open()?.codecs()[0].policy().to_owned())
    }

    /// Blocks of one job that share an entry, by group of layers.
    #[getter]
    fn groups(&self) -> PyResult<Vec<usize>> {
        Ok(self.open()?.codecs().iter().map(BlockCodec::group).collect())
    }

    /// Bits per number of whole pages, by group of layers.
    #[getter]
    fn bits_per_value(&self) -> PyResult<Vec<f64>> {
        Ok(self.open()?.codecs().iter().map(BlockCodec::bits_per_value).collect())
    }

    /// Whether a block is held; `None` while that is being found out.
    fn held(&self, py: Python<'_>, group: usize, key: &[u8]) -> PyResult<Option<bool>> {
        let tier = self.of_group(group)?;
        Ok(match py.detach(|| tier.held(group, key)) {
            Held::Yes => Some(true),
            Held::No => Some(false),
            Held::Later => None,
        })
    }

    /// Whether a block is held, looked up now.
    fn held_now(&self, py: Python<'_>, group: usize, key: &[u8]) -> PyResult<bool> {
        let tier = self.of_group(group)?;
        Ok(py.detach(|| tier.held_now(group, key)))
    }

    /// Begins to store blocks: the group, key and place of each.
    fn store(
        &self,
        py: Python<'_>,
        job: u64,
        memory: &EngineMemory,
        list: Vec<(usize, PyBackedBytes, usize)>,
    ) -> PyResult<()> {
        let (tier, blocks, list) = (self.open()?, memory.blocks()?, listed(list));
        py.detach(|| tier.store(job, &blocks, &list)).map_err(bad_value)
    }

    /// Begins to load blocks: the group, key and place of each.
    fn load(
        &self,
        py: Python<'_>,
        job: u64,
        memory: &EngineMemory,
        list: Vec<(usize, PyBackedBytes, usize)>,
    ) -> PyResult<()> {
        let (tier, blocks, list) = (self.open()?, memory.blocks()?, listed(list));
        py.detach(|| tier.load(job, &blocks, &list)).map_err(bad_value)
    }

    /// Jobs that are done since this was last asked.
    fn finished<'py>(&self, py: Python<'py>) -> PyResult<Vec<Done<'py>>> {
        Ok(self.open()?.finished().iter().map(|job| done(py, job)).collect())
    }

    /// Waits for a job.
    fn wait<'py>(&self, py: Python<'py>, job: u64) -> PyResult<Done<'py>> {
        let tier = self.open()?;
        let finished = detached(py, || Ok(tier.wait(job)))?;
        let finished = finished.ok_or_else(|| bad_value(format!("there is no job {job}")))?;
        Ok(done(py, &finished))
    }

    /// Waits until every job is done.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let tier = self.open()?;
        py.detach(|| tier.drain());
        Ok(())
    }

    /// Counts as a use of these blocks.
    fn touch(&self, group: usize, keys: Vec<PyBackedBytes>) -> PyResult<()> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        self.of_group(group)?.touch(group, &keys);
        Ok(())
    }

    /// What it holds and has done.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = self.open()?.usage();
        let dict = PyDict::new(py);
        dict.set_item("entries", usage.entries)?;
        dict.set_item("bytes", usage.bytes)?;
        dict.set_item("limit", usage.limit)?;
        dict.set_item("stored_blocks", usage.stored_blocks)?;
        dict.set_item("stored_raw", usage.stored_raw)?;
        dict.set_item("stored_bytes", usage.stored_bytes)?;
        dict.set_item("loaded_blocks", usage.loaded_blocks)?;
        dict.set_item("loaded_raw", usage.loaded_raw)?;
        dict.set_item("evicted", usage.evicted)?;
        dict.set_item("refused", usage.refused)?;
        dict.set_item("failed", usage.failed)?;
        dict.set_item("encode_seconds", usage.encode_seconds)?;
        dict.set_item("decode_seconds", usage.decode_seconds)?;
        dict.set_item("kl", usage.kl)?;
        Ok(dict)
    }

    /// Ends every job and the threads.
    fn close(&mut self, py: Python<'_>) {
        let tier = self.0.take();
        py.detach(|| drop(tier));
    }
}

impl Tier {
    fn of_group(&self, group: usize) -> PyResult<&kvant_tier::Tier> {
        let tier = self.open()?;
        match group < tier.codecs().len() {
            true => Ok(tier),
            false => Err(bad_value(format!("there is no group {group} of layers"))),
        }
    }
}

/// One block at a time, for engines that keep the bytes themselves.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct BlockPacker(BlockCodec);

#[pymethods]
impl BlockPacker {
    #[new]
    #[pyo3(signature = (form, namespace, kv=None, plan=None))]
    fn new(form: Form, namespace: &str, kv: Option<&str>, plan: Option<PlanSource>) -> PyResult<BlockPacker> {
        let (policy, form) = (tier_policy(kv, plan)?, form.read()?);
        check_layers(&policy, std::slice::from_ref(&form))?;
        Ok(BlockPacker(BlockCodec::new(form, &policy, namespace).map_err(bad_value)?))
    }

    /// The most bytes that a block is packed to.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.0.entry_bytes(1, KEY.len())
    }

    /// Packs the block in `memory` into `out`, and returns how many bytes it has.
    fn pack(&self, py: Python<'_>, memory: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (memory, out) = (PyBuffer::<u8>::get(memory)?, PyBuffer::<u8>::get(out)?);
        let block = whole(&memory, &self.0, false)?;
        let room = lent(&out, true)?;
        let packed = detached(py, || self.0.pack(&[KEY.to_vec()], &[block]).map_err(bad_value))?;
        if packed.len() > room.1 {
            return Err(bad_value(format!(
                "a packed block has {} bytes, and there is room for {}",
                packed.len(),
                room.1
            )));
        }
        // SAFETY: so many bytes can be written there, and the buffer is held.
        unsafe { std::ptr::copy_nonoverlapping(packed.as_ptr(), room.0, packed.len()) };
        Ok(packed.len())
    }

    /// Writes the block that `packed` begins with into `memory`.
    fn unpack(&self, py: Python<'_>, packed: &Bound<'_, PyAny>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let (packed, memory) = (PyBuffer::<u8>::get(packed)?, PyBuffer::<u8>::get(memory)?);
        let block = whole(&memory, &self.0, true)?;
        let (start, len) = lent(&packed, false)?;
        // SAFETY: the buffer is held, and has so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        detached(py, || self.0.unpack(bytes, &[(0, block)]).map_err(bad_value))
    }
}

/// What stands for a key where the engine keeps them.
const KEY: &[u8] = b"block";

/// Where a buffer's bytes lie.
fn lent(buffer: &PyBuffer<u8>, is_written: bool) -> PyResult<(*mut u8, usize)> {
    if !buffer.is_c_contiguous() || (is_written && buffer.readonly()) {
        return Err(bad_value("the memory of a block must be contiguous, and writable where it is filled"));
    }
    Ok((buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()))
}

/// A buffer as one block.
fn whole(buffer: &PyBuffer<u8>, codec: &BlockCodec, is_written: bool) -> PyResult<Block> {
    let (start, len) = lent(buffer, is_written)?;
    let extent = codec.form().extent();
    // SAFETY: the caller holds the buffer as long as the block is used, and Python's other threads leave it alone, as with every array.
    let blocks = unsafe { Blocks::new(start, len, extent, Box::new(())) };
    blocks
        .get(0, extent)
        .ok_or_else(|| bad_value(format!("a block of {len} bytes, and {extent} were expected")))
}
