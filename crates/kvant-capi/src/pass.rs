//! A forward pass of somebody else's model: rows go in, attention on the compressed bytes comes out.

use crate::cache::{KvantCache, Shared};
use crate::memory::{Versioned, borrow, handle, list, options};
use crate::rows::{KvantOutput, KvantRows, Shape};
use crate::sequence::{Held, KvantSequence};
use crate::status::{Failure, KvantStatus, guard};
use kvant_attention::{Attention, PassState, Scoring};
use kvant_cache::{KvShape, KvSlot, Sequence, SlotKind};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// How scores become weights. Set struct_size to sizeof, everything else to zero, then fill in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantAttendOptions {
    /// sizeof(kvant_attend_options).
    pub struct_size: usize,
    /// One logit for every query head that takes part in the softmax and has no value (attention sinks of gpt-oss); NULL for
    /// none.
    pub sink_logits: *const f32,
    /// Multiplies q·k; 0 for 1/sqrt(key_dim).
    pub scale: f32,
    /// Scaled scores s become cap · tanh(s / cap); 0 for none.
    pub soft_cap: f32,
}

// SAFETY: numbers and pointers, the first of which is the size.
unsafe impl Versioned for KvantAttendOptions {}

/// A pass over the next tokens of some sequences, from kvant_pass_begin to kvant_pass_end.
pub struct KvantPass(Mutex<Pass>);

/// A pass under way. Dropped before its end, it is taken back.
struct Pass {
    shared: Arc<Shared>,
    members: Vec<Member>,
    /// Taken out only when the pass is dropped.
    driver: Option<Attention>,
    /// A chunk is in part appended.
    has_failed: bool,
    /// Keys, values, queries and outputs without gaps, kept for the next layer.
    buffers: [Vec<f32>; 2],
}

/// A sequence of the pass and the tokens it brings.
struct Member {
    held: Arc<Held>,
    tokens: usize,
}

impl Drop for Pass {
    fn drop(&mut self) {
        for member in &self.members {
            // One that a bug has left in pieces stays so.
            if let Ok(mut kv) = member.held.lock_for_pass() {
                kv.abandon();
            }
            member.held.leave_pass();
        }
        if let Some(driver) = self.driver.take() {
            self.shared.keep(driver);
        }
    }
}

impl Pass {
    fn layer(&self, layer: usize) -> Result<(KvSlot, KvShape), Failure> {
        let slots = &self.shared.slots;
        let shape = slots.get(layer).and_then(|slot| match slot.kind {
            SlotKind::KeysValues(shape) => Some(shape),
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => None,
        });
        let missing =
            || Failure::argument(format!("there is no layer {layer}: the cache has {}", slots.len()));
        slots.kv(layer).zip(shape).ok_or_else(missing)
    }

    fn add(&mut self, held: &Arc<Held>, tokens: usize) -> Result<(), Failure> {
        if !Arc::ptr_eq(&held.shared, &self.shared) {
            return Err(Failure::argument("it belongs to another cache"));
        }
        if tokens == 0 {
            return Err(Failure::argument("a pass brings at least one token of each sequence"));
        }
        if !held.enter_pass() {
            return Err(Failure::new(KvantStatus::Busy, "it is in a pass already"));
        }
        // From here on dropping the pass lets go of it.
        self.members.push(Member { held: Arc::clone(held), tokens });
        Ok(held.lock_for_pass()?.begin(&[tokens])?)
    }

    fn check_usable(&self) -> Result<(), Failure> {
        if self.has_failed {
            return Err(Failure::argument("the pass has failed: end or abandon it, and begin another"));
        }
        Ok(())
    }

    /// Keys and values of all members, (rows, kv heads, dim), sequence after sequence.
    ///
    /// # Safety
    /// As [`KvantRows::read`].
    unsafe fn gather(
        &mut self,
        shape: KvShape,
        keys: &[KvantRows],
        values: &[KvantRows],
    ) -> Result<(), Failure> {
        let [own_keys, own_values] = &mut self.buffers;
        own_keys.clear();
        own_values.clear();
        for (index, member) in self.members.iter().enumerate() {
            let of = |dim| Shape { rows: member.tokens, heads: shape.kv_heads, dim };
            // SAFETY: the caller's contract.
            unsafe {
                keys[index].read(of(shape.key_dim), own_keys, &format!("keys of sequence {index}"))?;
                values[index].read(
                    of(shape.value_dim),
                    own_values,
                    &format!("values of sequence {index}"),
                )?;
            }
        }
        Ok(())
    }

    fn append(&mut self, slot: KvSlot, shape: KvShape) -> Result<(), Failure> {
        let [mut keys, mut values] = self.buffers.each_ref().map(|buffer| &buffer[..]);
        for (index, member) in self.members.iter().enumerate() {
            let width = member.tokens * shape.kv_heads;
            let (own_keys, later_keys) = keys.split_at(width * shape.key_dim);
            let (own_values, later_values) = values.split_at(width * shape.value_dim);
            (keys, values) = (later_keys, later_values);
            let appended = member.held.lock_for_pass()?.append(slot, own_keys, own_values);
            appended.map_err(|e| Failure::from(e).of(format!("sequence {index}")))?;
        }
        Ok(())
    }

    fn attend(&mut self, slot: KvSlot, scoring: &Scoring<'_>) -> Result<(), Failure> {
        let Self { shared, members, driver, buffers: [queries, outputs], .. } = self;
        let locked = members.iter().map(|member| member.held.lock_for_pass());
        let locked = locked.collect::<Result<Vec<MutexGuard<'_, _>>, Failure>>()?;
        let sequences: Vec<&Sequence> = locked.iter().map(|kv| kv.sequence()).collect();
        let driver = driver.get_or_insert_with(|| shared.driver());
        let attended = driver.attend(&sequences[..], slot, queries[..].into(), scoring, outputs);
        attended.map_err(|error| {
            let sequence = error.sequence;
            Failure::from(error).of(format!("sequence {sequence}"))
        })
    }

    /// Makes the tokens count, of all sequences or of none.
    fn end(&self) -> Result<(), Failure> {
        self.check_usable()?;
        let mut locked = Vec::with_capacity(self.members.len());
        for (index, member) in self.members.iter().enumerate() {
            let kv = member.held.lock_for_pass()?;
            let ready = kv.sequence().check_advance(member.tokens);
            ready.map_err(|e| Failure::argument(format!("sequence {index}: {e}")))?;
            locked.push(kv);
        }
        locked.iter_mut().try_for_each(|kv| Ok(kv.end()?))
    }
}

impl KvantPass {
    fn lock(&self) -> Result<MutexGuard<'_, Pass>, Failure> {
        self.0.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::new(KvantStatus::Busy, "another thread is using the pass"),
            TryLockError::Poisoned(_) => {
                Failure::new(KvantStatus::Internal, "a bug of kvant has left the pass in pieces: abandon it")
            }
        })
    }
}

/// Begins a pass over the next tokens of `count` sequences of a cache; sequence i brings tokens[i]. Then, for every layer,
/// append keys and values and attend; then end the pass. Decoding and prefill are the same calls, and neither the size of chunks
/// nor the other sequences of the pass change a bit of what a token gets.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pass_begin(
    cache: *const KvantCache,
    sequences: *const *const KvantSequence,
    tokens: *const usize,
    count: usize,
    pass: *mut *mut KvantPass,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (pass, cache) = unsafe { (handle(pass, "pass")?, borrow(cache, "cache")?) };
        // SAFETY: the caller's contract.
        let (sequences, tokens) =
            unsafe { (list(sequences, count, "sequences")?, list(tokens, count, "tokens")?) };
        if count == 0 {
            return Err(Failure::argument("a pass needs at least one sequence"));
        }
        let shared = Arc::clone(&cache.0);
        let mut begun = Pass {
            shared,
            members: Vec::new(),
            driver: None,
            has_failed: false,
            buffers: Default::default(),
        };
        for (index, (&sequence, &tokens)) in sequences.iter().zip(tokens).enumerate() {
            let name = format!("sequence {index}");
            // SAFETY: the caller's contract.
            let held = unsafe { &borrow(sequence, &name)?.0 };
            begun.add(held, tokens).map_err(|e| e.of(name))?;
        }
        pass.give(KvantPass(Mutex::new(begun)));
        Ok(())
    })
}

/// Takes a layer's keys, (tokens, kv heads, key_dim), normed and rotated as the model does, and values, (tokens, kv heads,
/// value_dim): one kvant_rows for each sequence of the pass. Pages that are full are encoded.
///
/// Sizes that do not fit change nothing. After any other failure, such as NaN, the pass can only be ended or abandoned, and
/// none of its tokens count.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pass_append(
    pass: *const KvantPass,
    layer: usize,
    keys: *const KvantRows,
    values: *const KvantRows,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let mut pass = unsafe { borrow(pass, "pass") }?.lock()?;
        pass.check_usable()?;
        let count = pass.members.len();
        let (slot, shape) = pass.layer(layer)?;
        // SAFETY: the caller's contract.
        unsafe {
            let (keys, values) = (list(keys, count, "keys")?, list(values, count, "values")?);
            pass.gather(shape, keys, values)?;
        }
        let shared = Arc::clone(&pass.shared);
        // Set first, so that a panic leaves it.
        pass.has_failed = true;
        shared.install(|| pass.append(slot, shape))?;
        pass.has_failed = false;
        Ok(())
    })
}

/// Attends to a layer with the queries, (tokens, query heads, key_dim), of the tokens that were appended to it: one kvant_rows and
/// one kvant_output, (tokens, query heads, value_dim), for each sequence of the pass. Query heads come in equal groups, one group to
/// a kv head. Options may be NULL.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pass_attend(
    pass: *const KvantPass,
    layer: usize,
    query_heads: usize,
    queries: *const KvantRows,
    outputs: *const KvantOutput,
    attend_options: *const KvantAttendOptions,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (mut pass, asked) =
            unsafe { (borrow(pass, "pass")?.lock()?, options(attend_options, "options")?) };
        pass.check_usable()?;
        let (slot, shape) = pass.layer(layer)?;
        if query_heads == 0 {
            return Err(Failure::argument("there are no query heads"));
        }
        let count = pass.members.len();
        // SAFETY: the caller's contract.
        let (queries, outputs) =
            unsafe { (list(queries, count, "queries")?, list(outputs, count, "outputs")?) };
        let sink_logits = match asked.sink_logits.is_null() {
            true => None,
            // SAFETY: the caller's contract.
            false => Some(unsafe { list(asked.sink_logits, query_heads, "sink_logits") }?),
        };
        let scoring = Scoring {
            scale: if asked.scale == 0.0 { (shape.key_dim as f32).sqrt().recip() } else { asked.scale },
            soft_cap: (asked.soft_cap != 0.0).then_some(asked.soft_cap),
            sink_logits,
        };
        let of = |tokens, dim| Shape { rows: tokens, heads: query_heads, dim };
        let Pass { members, buffers: [own, out], .. } = &mut *pass;
        own.clear();
        let mut width = 0;
        for (index, member) in members.iter().enumerate() {
            let produced = of(member.tokens, shape.value_dim);
            outputs[index].check(produced, &format!("outputs of sequence {index}"))?;
            width += member.tokens * query_heads * shape.value_dim;
            let wanted = of(member.tokens, shape.key_dim);
            // SAFETY: the caller's contract.
            unsafe { queries[index].read(wanted, own, &format!("queries of sequence {index}")) }?;
        }
        out.clear();
        out.resize(width, 0.0);
        let shared = Arc::clone(&pass.shared);
        shared.install(|| pass.attend(slot, &scoring))?;
        let mut rest = &pass.buffers[1][..];
        for (index, member) in pass.members.iter().enumerate() {
            let produced = of(member.tokens, shape.value_dim);
            let (rows, later) = rest.split_at(member.tokens * query_heads * shape.value_dim);
            rest = later;
            // SAFETY: the caller's contract.
            unsafe { outputs[index].write(produced, rows, &format!("outputs of sequence {index}")) }?;
        }
        Ok(())
    })
}

/// Ends a pass and frees it, whatever this returns: its tokens count as held. Fails if a layer has not got them all, and then
/// none count.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pass_end(pass: *mut KvantPass) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { borrow(pass, "pass") }?;
        // SAFETY: it is not NULL, and the rest is the caller's contract.
        let pass = unsafe { Box::from_raw(pass) };
        pass.lock()?.end()
    })
}

/// Takes back a pass and frees it: the sequences hold what they held before it. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pass_abandon(pass: *mut KvantPass) {
    // SAFETY: the caller's contract.
    unsafe { crate::memory::release(pass) }
}
