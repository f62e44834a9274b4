//! Choosing tokens from logits, for programs that go step by step.

use crate::generate::{KvantGenerateOptions, sampling};
use crate::memory::{borrow, handle, list, options, out, release};
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::Sampler;
use std::sync::{Mutex, MutexGuard};

/// Chooses tokens from logits as a generation does: with its penalties, cuts and seed. One thread at a time may use it, and another
/// one gets KVANT_STATUS_BUSY.
pub struct KvantSampler(Mutex<Sampler>);

impl KvantSampler {
    fn lock(&self) -> Result<MutexGuard<'_, Sampler>, Failure> {
        let busy = |_| Failure::new(KvantStatus::Busy, "another thread is using the sampler");
        self.0.try_lock().map_err(busy)
    }
}

/// Makes a sampler with the sampling fields of the options (temperature, top_k, top_p, min_p, penalties, seed, settings); NULL
/// always takes the most likely token. The other fields are for generations, and have to be zero.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sampler_new(
    generate_options: *const KvantGenerateOptions,
    sampler: *mut *mut KvantSampler,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (place, asked) = unsafe { (handle(sampler, "sampler")?, options(generate_options, "options")?) };
        let is_text = asked.max_tokens > 0
            || asked.stop_count > 0
            || [asked.json_schema, asked.tools, asked.variables].iter().any(|text| !text.is_null());
        if is_text {
            return Err(Failure::argument(
                "max_tokens, stop, json_schema, tools and variables are for generations, not for samplers",
            ));
        }
        // SAFETY: the caller's contract.
        let made =
            Sampler::new(unsafe { sampling(&asked) }?).map_err(|e| Failure::argument(e.to_string()))?;
        place.give(KvantSampler(Mutex::new(made)));
        Ok(())
    })
}

/// Puts tokens into the history that the penalties look at: those of the prompt, if they are to count. Tokens that were chosen are
/// in it already.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sampler_accept(
    sampler: *const KvantSampler,
    tokens: *const u32,
    count: usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (sampler, tokens) = unsafe { (borrow(sampler, "sampler")?, list(tokens, count, "tokens")?) };
        let mut sampler = sampler.lock()?;
        tokens.iter().for_each(|&token| sampler.accept(token));
        Ok(())
    })
}

/// Chooses the next token from the logits of the whole vocabulary, which stay as they are: those of kvant_session_step, or of an
/// engine of one's own. With a seed the same logits give the same tokens, and those of a generation with that seed.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sampler_sample(
    sampler: *const KvantSampler,
    logits: *const f32,
    length: usize,
    token: *mut u32,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (sampler, logits, token) =
            unsafe { (borrow(sampler, "sampler")?, list(logits, length, "logits")?, out(token, "token")?) };
        let mut sampler = sampler.lock()?;
        let chosen =
            sampler.sample(logits).map_err(|e| Failure::new(KvantStatus::BadNumber, e.to_string()))?;
        sampler.accept(chosen);
        token.set(chosen);
        Ok(())
    })
}

/// Frees a sampler. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sampler_free(sampler: *mut KvantSampler) {
    // SAFETY: the caller's contract.
    unsafe { release(sampler) }
}
