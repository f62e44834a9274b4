//! A compressed KV cache for an engine of one's own: what its layers keep, and what its sequences share.

use crate::memory::{Versioned, borrow, borrow_optional, handle, list, optional_text, options, release};
use crate::pool::KvantPool;
use crate::status::{Failure, KvantStatus, guard};
use kvant_attention::{Attention, KvCache};
use kvant_cache::snapshot::Signature;
use kvant_cache::{Arena, ArenaOptions, KvShape, Plan, Policy, Sequence, Slots};
use kvant_engine::KvChoice;
use kvant_engine::memory::Memory;
use kvant_threads::Pool;
use sha2::{Digest, Sha256};
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

/// What a layer keeps. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvantLayer {
    /// Heads that own keys and values; query heads come in equal groups (GQA), one group to each.
    pub kv_heads: usize,
    /// Channels of a key, and of a query.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Sliding window: how many tokens a query sees, itself included; 0 for all.
    pub window: usize,
}

/// What a cache is to be. Set struct_size to sizeof, everything else to zero, then fill in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantCacheOptions {
    /// sizeof(kvant_cache_options).
    pub struct_size: usize,
    /// How keys and values are kept: a policy such as "int4", "k=ch4,v=rot4g32" or "int8;layers 0-1:k=f16;recent=64", or the
    /// path of a .kvplan file. NULL is "int4".
    pub kv: *const c_char,
    /// The layers, in the order of their numbers.
    pub layers: *const KvantLayer,
    /// How many there are.
    pub layer_count: usize,
    /// The most tokens that a sequence may hold; 0 for no limit.
    pub capacity: usize,
    /// The most bytes for the keys and values of all sequences together; 0 for what the machine, or the container, has.
    pub memory: usize,
    /// What computes; NULL is the calling thread alone.
    pub pool: *const KvantPool,
}

// SAFETY: numbers and pointers, the first of which is the size.
unsafe impl Versioned for KvantCacheOptions {}

/// What all sequences of a model share: how their keys and values are kept, the memory they lie in, and what computes. Any
/// number of threads may use it at once.
pub struct KvantCache(pub(crate) Arc<Shared>);

/// What sequences and passes keep of a cache.
pub(crate) struct Shared {
    /// Holds nothing; sequences are made like it.
    pub empty: KvCache,
    pub slots: Slots,
    pool: Option<Pool>,
    /// Drivers of attention whose buffers have grown already.
    drivers: Mutex<Vec<Attention>>,
}

impl Shared {
    /// Does something on the cache's threads.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// A driver for a pass.
    pub fn driver(&self) -> Attention {
        self.drivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_else(|| self.empty.driver())
    }

    /// Takes a driver back.
    pub fn keep(&self, driver: Attention) {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner).push(driver);
    }

    /// A cache over what a sequence holds.
    pub fn over(&self, sequence: Sequence) -> KvCache {
        self.empty.over(sequence)
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        let empty = self.empty.sequence();
        Sequence::new(Arc::clone(empty.layout()), empty.store().clone())
    }

    /// What saved sequences of this cache have to agree in, besides their shape: what the caller says of the model, and which
    /// codecs with which numbers wrote the bytes.
    pub fn signature(&self, model: &str) -> Signature {
        let policy = self.empty.policy();
        let mut hash = Sha256::new();
        hash.update(b"kvant sequence signature 1\0");
        for part in [model, &policy.to_string()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        if let Some(plan) = policy.plan.as_ref().filter(|_| policy.needs_plan()) {
            hash.update(plan.digest());
        }
        hash.finalize().into()
    }
}

/// The policy that a text names.
fn policy(kv: &str) -> Result<Policy, Failure> {
    let choice = kv.parse::<KvChoice>().map_err(|e| Failure::argument(format!("kv: {e}")))?;
    match choice {
        KvChoice::Policy(policy) => Ok(*policy),
        KvChoice::Plan(path) => {
            let plan = Plan::open(&path).map_err(|e| Failure::from(e).of(path.display()))?;
            let plan = Arc::new(plan);
            Ok(plan.with(plan.policy()))
        }
        KvChoice::Auto => {
            Err(Failure::argument("kv: `auto` is for models that kvant knows; name a policy such as int4"))
        }
    }
}

/// The most bytes that pages may take. Without a bound of the caller's a pass that the machine cannot hold would end the program.
fn memory_cap(asked: usize) -> Option<usize> {
    if asked > 0 {
        return Some(asked);
    }
    let machine = Memory::read()?;
    usize::try_from(machine.limit.unwrap_or(machine.total)).ok()
}

/// Makes a cache.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_cache_new(
    cache_options: *const KvantCacheOptions,
    cache: *mut *mut KvantCache,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (cache, asked) = unsafe { (handle(cache, "cache")?, options(cache_options, "options")?) };
        // SAFETY: the caller's contract.
        let (kv, layers) =
            unsafe { (optional_text(asked.kv, "kv")?, list(asked.layers, asked.layer_count, "layers")?) };
        // SAFETY: the caller's contract.
        let pool = unsafe { borrow_optional(asked.pool, "pool") }?.map(|pool| pool.0.clone());
        if layers.is_empty() {
            return Err(Failure::argument("a cache needs at least one layer"));
        }
        if let Some(layer) = layers.iter().position(|layer| layer.kv_heads == 0) {
            return Err(Failure::argument(format!("layer {layer} has no kv heads")));
        }
        let slots: Slots = layers
            .iter()
            .map(|&KvantLayer { kv_heads, key_dim, value_dim, window }| KvShape {
                kv_heads,
                key_dim,
                value_dim,
                window: (window > 0).then_some(window),
            })
            .collect();
        let capacity = if asked.capacity == 0 { usize::MAX } else { asked.capacity };
        let arena = ArenaOptions { cap: memory_cap(asked.memory), ..ArenaOptions::default() };
        let policy = policy(kv.unwrap_or("int4"))?;
        let empty = KvCache::in_arena(policy, &slots, capacity, Arena::with(arena))?;
        let shared = Shared { empty, slots, pool, drivers: Mutex::new(Vec::new()) };
        cache.give(KvantCache(Arc::new(shared)));
        Ok(())
    })
}

/// Bytes per token of a long context, scales and all, over all layers; 0 for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_cache_bytes_per_token(cache: *const KvantCache) -> f64 {
    // SAFETY: the caller's contract.
    unsafe { borrow(cache, "cache") }.map_or(0.0, |cache| cache.0.empty.sequence().layout().bytes_per_token())
}

/// Bytes of memory that all sequences of the cache use together: pages that several share count once. 0 for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_cache_bytes(cache: *const KvantCache) -> usize {
    // SAFETY: the caller's contract.
    unsafe { borrow(cache, "cache") }.map_or(0, |cache| cache.0.empty.sequence().store().usage().used)
}

/// Frees a cache. Its sequences live on. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_cache_free(cache: *mut KvantCache) {
    // SAFETY: the caller's contract.
    unsafe { release(cache) }
}
