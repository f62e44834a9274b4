//! Tokens chosen from logits step by step, held against whole generations.

use crate::engine::{Home, generate_options, prompt, tokens_of};
use crate::support::{fails, ok};
use kvant::*;
use std::ptr::{null, null_mut};

fn sampling() -> KvantGenerateOptions {
    let (temperature, top_k, top_p, seed) = (0.9, 40, 0.95, 7);
    let whole = generate_options();
    KvantGenerateOptions { temperature, top_k, top_p, seed, repetition_penalty: 1.3, max_tokens: 0, ..whole }
}

fn sampler(options: *const KvantGenerateOptions) -> *mut KvantSampler {
    let mut sampler = null_mut();
    // SAFETY: everything lives.
    ok(unsafe { kvant_sampler_new(options, &mut sampler) });
    sampler
}

#[test]
fn steps_with_a_sampler_are_a_generation() {
    let home = Home::new();
    let (whole, stepped) = (home.session(), home.session());
    let prompt = prompt(3, 20);
    let asked = KvantGenerateOptions { max_tokens: 12, ..sampling() };
    // SAFETY: everything lives; logits are read before the session is used again.
    unsafe {
        let (tokens, count) = (prompt.as_ptr(), prompt.len());
        ok(kvant_session_generate(whole, tokens, count, &asked, None, null_mut(), null_mut()));
        let sampler = sampler(&sampling());
        ok(kvant_sampler_accept(sampler, tokens, count));
        let (mut logits, mut length, mut token, mut chosen) = (null(), 0, 0, Vec::new());
        ok(kvant_session_prefill(stepped, tokens, count, &mut logits, &mut length));
        for _ in 0..12 {
            ok(kvant_sampler_sample(sampler, logits, length, &mut token));
            chosen.push(token);
            ok(kvant_session_step(stepped, token, &mut logits, &mut length));
        }
        kvant_sampler_free(sampler);
        // The session may have left the last token unread, and a model may end a text before its time.
        let expected = &tokens_of(whole)[count..];
        assert!(expected.len() >= 3 && chosen.starts_with(expected), "{expected:?} for {chosen:?}");
        let distinct: std::collections::BTreeSet<u32> = chosen.iter().copied().collect();
        assert!(distinct.len() > 2, "{chosen:?}");
    }
    home.free(&[whole, stepped]);
}

#[test]
fn no_options_take_the_most_likely_token() {
    let sampler = sampler(null());
    let mut token = 9;
    // SAFETY: everything lives.
    unsafe {
        ok(kvant_sampler_sample(sampler, [0.5f32, -1.0, 3.0, 2.9].as_ptr(), 4, &mut token));
        kvant_sampler_free(sampler);
        kvant_sampler_free(null_mut());
    }
    assert_eq!(token, 2);
}

#[test]
fn bad_settings_and_logits_are_refused_by_name() {
    let mut made = null_mut();
    let refused = |options: KvantGenerateOptions, made: &mut *mut KvantSampler, word: &str| {
        // SAFETY: everything lives.
        fails(unsafe { kvant_sampler_new(&options, made) }, KvantStatus::InvalidArgument, &[word]);
        assert!(made.is_null());
    };
    refused(KvantGenerateOptions { temperature: -1.0, ..sampling() }, &mut made, "temperature");
    refused(KvantGenerateOptions { top_p: 1.5, ..sampling() }, &mut made, "top_p");
    refused(KvantGenerateOptions { max_tokens: 3, ..sampling() }, &mut made, "max_tokens");
    let sampler = sampler(&sampling());
    let mut token = 0;
    // SAFETY: everything lives.
    unsafe {
        let broken = [0.0f32, f32::NAN];
        let status = kvant_sampler_sample(sampler, broken.as_ptr(), 2, &mut token);
        fails(status, KvantStatus::BadNumber, &["token 1"]);
        fails(kvant_sampler_sample(sampler, null(), 0, &mut token), KvantStatus::BadNumber, &["no token"]);
        fails(
            kvant_sampler_sample(sampler, null(), 3, &mut token),
            KvantStatus::InvalidArgument,
            &["logits"],
        );
        let status = kvant_sampler_sample(sampler, broken.as_ptr(), 1, null_mut());
        fails(status, KvantStatus::InvalidArgument, &["token"]);
        fails(
            kvant_sampler_sample(null(), broken.as_ptr(), 1, &mut token),
            KvantStatus::InvalidArgument,
            &["sampler"],
        );
        kvant_sampler_free(sampler);
    }
}
