//! Calibration on another library's forward pass: it hands over keys, values and queries, and a plan comes of them.

use super::refused;
use super::tensor::Tensor;
use kvant_cache::plan::{ENDS_ROTATION, Plan, PlannedSlot};
use kvant_cache::snapshot::Signature;
use kvant_cache::{KvShape, KvSlot, Policy, Slots};
use kvant_calibrate::{Statistics, planned_head};
use kvant_codec::Tier;
use pyo3::prelude::*;

/// What was seen of one layer's keys, values and queries.
#[pyclass(module = "kvant._kvant")]
pub struct LayerStatistics {
    statistics: Statistics,
    slot: KvSlot,
    layer: usize,
    shape: KvShape,
}

#[pymethods]
impl LayerStatistics {
    /// Of nothing yet. The first `sinks` tokens of a sequence are not counted: they are not encoded either.
    #[new]
    fn new(
        layer: usize,
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
        sinks: usize,
    ) -> PyResult<LayerStatistics> {
        let shape = KvShape { kv_heads, key_dim, value_dim, window: None };
        let mut slots = Slots::new();
        let slot = slots.keys_values(layer, shape);
        let statistics = Statistics::new(&slots, sinks, ENDS_ROTATION, Tier::select().map_err(refused)?);
        Ok(LayerStatistics { statistics, slot, layer, shape })
    }

    /// Keys and values of whole sequences, (batch, kv heads, tokens, channels), from their first token on.
    fn append(&mut self, py: Python<'_>, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (keys, values) = (Tensor::borrow(keys, "keys")?, Tensor::borrow(values, "values")?);
        let (KvShape { kv_heads, key_dim, value_dim, .. }, [batch, _, tokens, _]) =
            (self.shape, keys.view.shape);
        keys.view.expect("keys", [batch, kv_heads, tokens, key_dim])?;
        values.view.expect("values", [batch, kv_heads, tokens, value_dim])?;
        let (keys, values) = (keys.view, values.view);
        py.detach(|| {
            for row in 0..batch {
                let (keys, values) = (keys.rows(row, None), values.rows(row, None));
                self.statistics.add_keys_values(self.slot, 0, &keys, &values);
            }
        });
        Ok(())
    }

    /// Queries that met them, (batch, query heads, tokens, channels).
    fn attend(&mut self, py: Python<'_>, queries: &Bound<'_, PyAny>) -> PyResult<()> {
        let queries = Tensor::borrow(queries, "queries")?;
        let [batch, heads, tokens, _] = queries.view.shape;
        queries.view.expect("queries", [batch, heads, tokens, self.shape.key_dim])?;
        if !heads.is_multiple_of(self.shape.kv_heads) || tokens == 0 {
            return Err(refused(format!(
                "{heads} query heads of {tokens} tokens for {} kv heads",
                self.shape.kv_heads
            )));
        }
        let queries = queries.view;
        py.detach(|| {
            for row in 0..batch {
                self.statistics.add_queries(self.slot, &queries.rows(row, None), tokens);
            }
        });
        Ok(())
    }

    /// Weights of the projection that reads the heads' outputs, as a tensor (1, query heads, outputs, value channels).
    fn read_by(&mut self, py: Python<'_>, weights: &Bound<'_, PyAny>) -> PyResult<()> {
        let weights = Tensor::borrow(weights, "weights")?;
        let [_, heads, outputs, _] = weights.view.shape;
        weights.view.expect("weights", [1, heads, outputs, self.shape.value_dim])?;
        if !heads.is_multiple_of(self.shape.kv_heads) || outputs == 0 {
            return Err(refused(format!(
                "{outputs} outputs of {heads} heads for {} kv heads",
                self.shape.kv_heads
            )));
        }
        let view = weights.view;
        py.detach(|| self.statistics.read_by(self.slot, &view.rows(0, None), outputs));
        Ok(())
    }
}

/// The bytes of a `.kvplan` file from what was seen of every layer; a layer without keys and values has `None`.
#[pyfunction]
pub fn make_plan(
    py: Python<'_>,
    model: Signature,
    kv: &str,
    made: &str,
    layers: Vec<Option<Py<LayerStatistics>>>,
) -> PyResult<Vec<u8>> {
    let policy: Policy = kv.parse().map_err(refused)?;
    let mut slots = Vec::with_capacity(layers.len());
    for layer in layers {
        let Some(layer) = layer else {
            slots.push(PlannedSlot { key_dim: 0, value_dim: 0, heads: Vec::new() });
            continue;
        };
        let seen = layer.borrow(py);
        let heads = seen.statistics.slots()[seen.slot.index()].iter().enumerate();
        let heads = heads.map(|(head, seen_of_head)| {
            planned_head(seen_of_head)
                .map_err(|error| refused(format!("kv head {head} of layer {}: {error}", seen.layer)))
        });
        let KvShape { key_dim, value_dim, .. } = seen.shape;
        slots.push(PlannedSlot { key_dim, value_dim, heads: heads.collect::<PyResult<_>>()? });
    }
    Ok(Plan::new(model, policy, made, slots).map_err(refused)?.to_bytes())
}
