//! Page codecs on arrays: rows in, pages out, and attention's inner loops on the pages.
//!
//! Rows come as `(heads, tokens, dim)` and pages leave as `(heads, pages, page_bytes)`. A last page that is not full is filled up with
//! its last row, which is what a cache that encodes before it is asked does.

use crate::arrays::{self, Bytes, Floats};
use crate::error::bad_value;
use crate::work::{detached, lock};
use kvant_codec::{Accumulator, CodecError, FAMILIES, KvSpec, PageCodec, Query, Side, catalogue};
use kvant_threads::Pool;
use pyo3::prelude::*;
use serde_json::json;
use std::sync::{Mutex, OnceLock};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Codec>()?;
    module.add_function(wrap_pyfunction!(codecs, module)?)?;
    module.add_function(wrap_pyfunction!(canonical_spec, module)?)
}

/// What arrays are worked on with, outside any engine.
pub fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(Pool::default)
}

/// Every codec there is a name for: a JSON list.
#[pyfunction]
fn codecs() -> String {
    let bits = |spec: &KvSpec| spec.bits_per_value(128).ok();
    let shown = catalogue().into_iter().map(|shown| {
        json!({"name": shown.name, "about": shown.about, "source": shown.source,
               "key": shown.spec.key.to_string(), "value": shown.spec.value.to_string(),
               "bits_per_value": bits(&shown.spec)})
    });
    serde_json::Value::from_iter(shown).to_string()
}

/// A spec as it is printed, with the codecs of keys and of values.
#[pyfunction]
fn canonical_spec(spec: &str) -> PyResult<(String, String, String)> {
    let spec: KvSpec = spec.parse().map_err(|e| {
        let families: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        bad_value(format!("{e}; kvant.codecs() lists them, families are {}", families.join(", ")))
    })?;
    Ok((spec.to_string(), spec.key.to_string(), spec.value.to_string()))
}

/// A codec of one side for heads of one width.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Codec(Box<dyn PageCodec>);

/// What a verb refuses is a value of the caller's.
fn refused(error: CodecError) -> PyErr {
    bad_value(error)
}

impl Codec {
    /// Heads, pages and the bytes of pages that `tokens` tokens of each head lie in.
    fn pages<'b>(&self, pages: &'b Bytes, tokens: usize) -> PyResult<(usize, usize, &'b [u8])> {
        let (each, size) = (tokens.div_ceil(self.0.page_tokens()), self.0.page_bytes());
        let bytes = pages.as_slice();
        if tokens == 0 || bytes.is_empty() || !bytes.len().is_multiple_of(each * size) {
            return Err(bad_value(format!(
                "{} bytes are no pages of {tokens} tokens: each head has {each} pages of {size} bytes",
                bytes.len()
            )));
        }
        Ok((bytes.len() / (each * size), each, bytes))
    }

    /// The first error of any head.
    fn each_head(
        &self,
        out: &mut [f32],
        len: usize,
        work: impl Fn(usize, &mut [f32]) -> Result<(), CodecError> + Sync,
    ) -> PyResult<()> {
        let failure = Mutex::new(None);
        pool().install(|| {
            kvant_threads::for_each_chunk(out, len, |head, out| {
                if let Err(error) = work(head, out) {
                    lock(&failure).get_or_insert(error);
                }
            });
        });
        let failure = lock(&failure).take();
        failure.map_or(Ok(()), |error| Err(refused(error)))
    }
}

#[pymethods]
impl Codec {
    /// The codec of a spec's side (`key` or `value`) for heads of `dim` channels.
    #[new]
    fn new(spec: &str, side: &str, dim: usize) -> PyResult<Self> {
        let spec: KvSpec = spec.parse().map_err(bad_value)?;
        let side = match side {
            "key" => Side::Key,
            "value" => Side::Value,
            other => return Err(bad_value(format!("side is {other:?}; it must be key or value"))),
        };
        Ok(Self(spec.side(side).build(side, dim).map_err(bad_value)?))
    }

    /// Tokens of a page.
    #[getter]
    fn page_tokens(&self) -> usize {
        self.0.page_tokens()
    }

    /// Bytes of a page, everything included.
    #[getter]
    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    /// Bits per stored number, everything included.
    #[getter]
    fn bits_per_value(&self) -> f64 {
        self.0.bits_per_value()
    }

    /// The instruction sets that encode, make scores and sum up; `decode` where pages are decoded.
    #[getter]
    fn kernels(&self) -> (&'static str, &'static str, &'static str) {
        let report = self.0.kernels();
        (report.encode, report.scores, report.accumulate)
    }

    /// Pages of rows, `(heads, tokens, dim)`, as `(heads, pages, page_bytes)`.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        kind: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = Floats::of(rows, kind)?.expect_axes("rows", "(heads, tokens, dim)", 3, 3)?;
        let (heads, tokens, dim) = (rows.shape()[0], rows.shape()[1], rows.shape()[2]);
        if dim != self.0.dim() || tokens == 0 || heads == 0 {
            return Err(bad_value(format!(
                "rows of the shape {:?} cannot be encoded by a codec of {} channels",
                rows.shape(),
                self.0.dim()
            )));
        }
        let (page_tokens, size) = (self.0.page_tokens(), self.0.page_bytes());
        let each = tokens.div_ceil(page_tokens);
        let bytes = detached(py, || {
            let mut bytes = vec![0; heads * each * size];
            let failure = Mutex::new(None);
            pool().install(|| {
                kvant_threads::for_each_chunk(&mut bytes, size, |page, out| {
                    let (head, first) = (page / each, page % each * page_tokens);
                    let count = page_tokens.min(tokens - first);
                    let (mut scratch, mut full) = (Vec::new(), Vec::new());
                    let mut found = rows.read(head * tokens + first, count, &mut scratch);
                    if count < page_tokens {
                        full.extend_from_slice(found);
                        (count..page_tokens)
                            .for_each(|_| full.extend_from_slice(&found[(count - 1) * dim..]));
                        found = &full;
                    }
                    if let Err(error) = self.0.encode(found, out) {
                        lock(&failure).get_or_insert((page, error));
                    }
                });
            });
            let failure = lock(&failure).take();
            match failure {
                None => Ok(bytes),
                Some((page, error)) => {
                    Err(bad_value(format!("head {}, page {}: {error}", page / each, page % each)))
                }
            }
        })?;
        arrays::bytes(py, bytes, &[heads, each, size])
    }

    /// The rows of pages, `(heads, tokens, dim)`.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        pages: &Bound<'py, PyAny>,
        tokens: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pages = Bytes::of(pages, "pages")?;
        let (heads, each, bytes) = self.pages(&pages, tokens)?;
        let (dim, page_tokens, size) = (self.0.dim(), self.0.page_tokens(), self.0.page_bytes());
        let rows = detached(py, || {
            let mut rows = vec![0.0; heads * tokens * dim];
            self.each_head(&mut rows, tokens * dim, |head, out| {
                let mut page = vec![0.0; page_tokens * dim];
                for (index, out) in out.chunks_mut(page_tokens * dim).enumerate() {
                    self.0.decode(&bytes[(head * each + index) * size..][..size], &mut page)?;
                    out.copy_from_slice(&page[..out.len()]);
                }
                Ok(())
            })?;
            Ok(rows)
        })?;
        arrays::floats(py, rows, &[heads, tokens, dim])
    }

    /// q·k for queries, `(heads, queries, dim)`, as `(heads, queries, tokens)`.
    fn scores<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        kind: &str,
        pages: &Bound<'py, PyAny>,
        tokens: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queries = Floats::of(queries, kind)?.expect_axes("queries", "(heads, queries, dim)", 3, 3)?;
        let pages = Bytes::of(pages, "pages")?;
        let (heads, each, bytes) = self.pages(&pages, tokens)?;
        let (count, page_tokens, size) = (queries.shape()[1], self.0.page_tokens(), self.0.page_bytes());
        if queries.shape()[0] != heads || queries.columns() != self.0.dim() || count == 0 {
            return Err(bad_value(format!(
                "queries of the shape {:?} do not fit {heads} heads of {} channels",
                queries.shape(),
                self.0.dim()
            )));
        }
        let scores = detached(py, || {
            let mut scores = vec![0.0; heads * count * tokens];
            self.each_head(&mut scores, count * tokens, |head, out| {
                let (mut scratch, mut query) = (Vec::new(), Query::new());
                self.0.prepare(queries.read(head * count, count, &mut scratch), &mut query)?;
                let mut page = vec![0.0; count * page_tokens];
                for index in 0..each {
                    self.0.scores(&query, &bytes[(head * each + index) * size..][..size], &mut page)?;
                    let first = index * page_tokens;
                    let used = page_tokens.min(tokens - first);
                    for (row, out) in page.chunks_exact(page_tokens).zip(out.chunks_exact_mut(tokens)) {
                        out[first..first + used].copy_from_slice(&row[..used]);
                    }
                }
                Ok(())
            })?;
            Ok(scores)
        })?;
        arrays::floats(py, scores, &[heads, count, tokens])
    }

    /// Σ w·v for weights, `(heads, queries, tokens)`, as `(heads, queries, dim)`.
    fn accumulate<'py>(
        &self,
        py: Python<'py>,
        weights: &Bound<'py, PyAny>,
        kind: &str,
        pages: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let weights = Floats::of(weights, kind)?.expect_axes("weights", "(heads, queries, tokens)", 3, 3)?;
        let pages = Bytes::of(pages, "pages")?;
        let tokens = weights.columns();
        let (heads, each, bytes) = self.pages(&pages, tokens)?;
        let (count, dim) = (weights.shape()[1], self.0.dim());
        let (page_tokens, size) = (self.0.page_tokens(), self.0.page_bytes());
        if weights.shape()[0] != heads || count == 0 {
            return Err(bad_value(format!(
                "weights of the shape {:?} do not fit {heads} heads",
                weights.shape()
            )));
        }
        let sums = detached(py, || {
            let mut sums = vec![0.0; heads * count * dim];
            self.each_head(&mut sums, count * dim, |head, out| {
                let mut scratch = Vec::new();
                let own = weights.read(head * count, count, &mut scratch);
                if let Some(at) = own.iter().position(|w| !w.is_finite()) {
                    return Err(CodecError::NotFinite { token: at % tokens, channel: 0, value: own[at] });
                }
                let mut running = Accumulator::new(count, dim);
                let mut page = vec![0.0; count * page_tokens];
                for index in 0..each {
                    let first = index * page_tokens;
                    let used = page_tokens.min(tokens - first);
                    // Rows that only fill up a page weigh nothing.
                    page.fill(0.0);
                    for (row, own) in page.chunks_exact_mut(page_tokens).zip(own.chunks_exact(tokens)) {
                        row[..used].copy_from_slice(&own[first..first + used]);
                    }
                    self.0.accumulate(&page, &bytes[(head * each + index) * size..][..size], &mut running)?;
                }
                self.0.finish(&running, out)
            })?;
            Ok(sums)
        })?;
        arrays::floats(py, sums, &[heads, count, dim])
    }
}
