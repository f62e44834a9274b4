//! What the layers of a cache share, and the policy of one layer.

#[cfg(feature = "cuda")]
use super::card::CardLayerCache;
use super::layer::LayerCache;
use super::refused;
use kvant_attention::Attention;
use kvant_cache::plan::Plan;
use kvant_cache::{Arena, Clause, KvShape, KvSlot, LatentShape, Policy, Slots};
#[cfg(feature = "cuda")]
use kvant_cuda::CardCache;
use kvant_threads::Pool;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How a cache keeps keys and values, and what its layers share.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct CacheLayout {
    policy: Policy,
    shared: Shared,
    /// What layers share on each card.
    #[cfg(feature = "cuda")]
    cards: Mutex<Vec<(usize, Arc<CardCache>)>>,
}

impl CacheLayout {
    /// The layout of one layer, which is its only slot.
    fn of_layer(
        &self,
        index: usize,
        shape: &KvShape,
        latent: bool,
    ) -> PyResult<(Arc<kvant_cache::CacheLayout>, KvSlot)> {
        let KvShape { kv_heads, key_dim, value_dim, window } = *shape;
        let mut slots = Slots::new();
        let slot = if latent {
            slots.latent(index, LatentShape { kv_heads, latent_dim: value_dim, rope_dim: key_dim, window })
        } else {
            slots.keys_values(index, *shape)
        };
        let policy = of_layer(&self.policy, index, shape)?;
        let layout = kvant_cache::CacheLayout::new(&policy, &slots).map_err(refused)?;
        Ok((Arc::new(layout), slot))
    }
}

/// What the layers of a cache share.
#[derive(Clone)]
pub struct Shared {
    pub arena: Arena,
    pub attention: Arc<Mutex<Attention>>,
    pub pool: Pool,
}

#[pymethods]
impl CacheLayout {
    /// A cache by a policy such as `int4;recent=64`, or by the one of a plan; `plan` is the file's path or its bytes.
    #[new]
    #[pyo3(signature = (kv=None, plan=None, threads=None))]
    fn new(kv: Option<&str>, plan: Option<PlanSource>, threads: Option<usize>) -> PyResult<CacheLayout> {
        let policy = policy(kv, plan)?;
        let attention = Arc::new(Mutex::new(Attention::new().map_err(refused)?));
        let pool = pool(threads.unwrap_or_else(kvant_threads::processors));
        let shared = Shared { arena: Arena::new(), attention, pool };
        Ok(CacheLayout {
            policy,
            shared,
            #[cfg(feature = "cuda")]
            cards: Mutex::default(),
        })
    }

    /// The policy, as it would be typed.
    #[getter]
    fn kv(&self) -> String {
        self.policy.to_string()
    }

    /// First tokens that stay exact.
    #[getter]
    fn sinks(&self) -> usize {
        self.policy.rule.sinks
    }

    /// Digest of the model that the plan was made for.
    #[getter]
    fn plan_model(&self) -> Option<Vec<u8>> {
        self.policy.plan.as_ref().map(|plan| plan.model().to_vec())
    }

    /// How the plan was made.
    #[getter]
    fn plan_made(&self) -> Option<String> {
        self.policy.plan.as_ref().map(|plan| plan.made().to_owned())
    }

    /// The content of the plan's file.
    #[getter]
    fn plan(&self) -> Option<Cow<'static, [u8]>> {
        self.policy.plan.as_ref().map(|plan| Cow::Owned(plan.to_bytes()))
    }

    /// Threads of the kernels.
    #[getter]
    fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// Refuses clauses for layers that a model of so many does not have.
    fn check(&self, layers: usize) -> PyResult<()> {
        let beyond = |clause: &&Clause| clause.layers.iter().any(|range| *range.end() >= layers);
        match self.policy.clauses.iter().find(beyond) {
            Some(clause) => {
                Err(refused(format!("`{clause}` names a layer beyond the model's last, {}", layers - 1)))
            }
            None => Ok(()),
        }
    }

    /// The cache of one layer. A latent layer's keys are its rotated parts, its values the latents.
    #[pyo3(signature = (index, kv_heads, key_dim, value_dim, window=None, latent=false))]
    fn layer(
        &self,
        index: usize,
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
        window: Option<usize>,
        latent: bool,
    ) -> PyResult<LayerCache> {
        let shape = KvShape { kv_heads, key_dim, value_dim, window };
        let (layout, slot) = self.of_layer(index, &shape, latent)?;
        Ok(LayerCache::new(layout, slot, shape, self.shared.clone()))
    }

    /// The same on NVIDIA's card of that number; refused where there are no kernels for it, or the card cannot be had.
    #[pyo3(signature = (card, index, kv_heads, key_dim, value_dim, window=None))]
    #[cfg(feature = "cuda")]
    #[expect(clippy::too_many_arguments, reason = "a layer's shape")]
    fn card_layer(
        &self,
        py: Python<'_>,
        card: usize,
        index: usize,
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
        window: Option<usize>,
    ) -> PyResult<CardLayerCache> {
        let shape = KvShape { kv_heads, key_dim, value_dim, window };
        let (layout, slot) = self.of_layer(index, &shape, false)?;
        py.detach(|| {
            let mut cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
            let known = cards.iter().find(|(number, _)| *number == card).map(|(_, cache)| Arc::clone(cache));
            let cache = match known {
                Some(cache) => cache,
                None => {
                    let cache = CardCache::new(&super::card::card(card)?).map_err(refused)?;
                    cards.push((card, Arc::clone(&cache)));
                    cache
                }
            };
            CardLayerCache::new(&cache, &layout, slot, shape)
        })
    }

    /// The same on NVIDIA's card of that number, which this build has no kernels for.
    #[pyo3(signature = (*_shape))]
    #[cfg(not(feature = "cuda"))]
    fn card_layer(&self, _shape: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<LayerCache> {
        Err(refused("this build of kvant has no CUDA kernels (its feature `cuda` is off)"))
    }

    /// Bytes of all pages in use, each counted once however many sequences share it, with the room that tails keep for
    /// more tokens.
    #[getter]
    fn memory(&self) -> usize {
        #[cfg(feature = "cuda")]
        let on_cards: usize = {
            let cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
            cards.iter().map(|(_, cache)| cache.store().usage().used).sum()
        };
        #[cfg(not(feature = "cuda"))]
        let on_cards = 0;
        self.shared.arena.usage().used + on_cards
    }

    fn __repr__(&self) -> String {
        format!("CacheLayout({:?})", self.policy.to_string())
    }
}

/// What a spec and a plan say together: a plan alone brings its own policy.
pub fn policy(kv: Option<&str>, plan: Option<PlanSource>) -> PyResult<Policy> {
    let plan = plan.map(PlanSource::read).transpose()?.map(Arc::new);
    let policy = match (kv, &plan) {
        (Some(kv), _) => kv.parse().map_err(refused)?,
        (None, Some(plan)) => plan.policy().clone(),
        (None, None) => "int4".parse().map_err(refused)?,
    };
    Ok(plan.map_or(policy.clone(), |plan| plan.with(&policy)))
}

/// A plan, by the path of its file or by its bytes.
#[derive(FromPyObject)]
pub enum PlanSource {
    Bytes(Vec<u8>),
    Path(PathBuf),
}

impl PlanSource {
    fn read(self) -> PyResult<Plan> {
        match self {
            PlanSource::Bytes(bytes) => Plan::from_bytes(&bytes).map_err(refused),
            PlanSource::Path(path) => {
                Plan::open(&path).map_err(|error| refused(format!("{}: {error}", path.display())))
            }
        }
    }
}

/// The part of a policy that concerns one layer, which is then the only slot there is.
fn of_layer(policy: &Policy, layer: usize, shape: &KvShape) -> PyResult<Policy> {
    let names = |clause: &&Clause| {
        clause.layers.is_empty() || clause.layers.iter().any(|range| range.contains(&layer))
    };
    let clauses =
        policy.clauses.iter().filter(names).map(|clause| Clause { layers: Vec::new(), ..clause.clone() });
    let plan = match &policy.plan {
        Some(plan) if policy.needs_plan() => {
            let Some(planned) = plan.slots().get(layer).filter(|slot| !slot.heads.is_empty()) else {
                return Err(refused(format!(
                    "the plan has nothing for layer {layer}: it was made {}",
                    plan.made()
                )));
            };
            if (planned.heads.len(), planned.key_dim, planned.value_dim)
                != (shape.kv_heads, shape.key_dim, shape.value_dim)
            {
                let message = format!(
                    "the plan is of another model: its layer {layer} has {} kv heads of {}/{} channels, this one {} of {}/{}",
                    planned.heads.len(),
                    planned.key_dim,
                    planned.value_dim,
                    shape.kv_heads,
                    shape.key_dim,
                    shape.value_dim
                );
                return Err(refused(message));
            }
            let own = Plan::new(*plan.model(), plan.policy().clone(), plan.made(), vec![planned.clone()]);
            Some(Arc::new(own.map_err(refused)?))
        }
        _ => None,
    };
    Ok(Policy { clauses: clauses.collect(), plan, ..policy.clone() })
}

/// The pool of so many threads: caches of one size share one.
fn pool(threads: usize) -> Pool {
    static POOLS: OnceLock<Mutex<HashMap<usize, Pool>>> = OnceLock::new();
    let mut pools = POOLS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    pools.entry(threads).or_insert_with(|| Pool::new(threads)).clone()
}
