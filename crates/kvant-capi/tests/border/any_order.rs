//! Calls in any order, with numbers that make no sense: a program whose handles live gets a status from every call, and all memory back.

use crate::cache::{cache_with, sequence};
use crate::engine::{Home, generate_options};
use crate::support::{message, ok, output, rows};
use kvant::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

const DIM: usize = 64;
const CALLS: usize = 1500;

/// Numbers that look random, and how often calls were accepted and refused.
struct Program {
    words: Box<dyn Iterator<Item = u64>>,
    accepted: usize,
    refused: usize,
}

impl Program {
    fn new(seed: u64) -> Self {
        Self { words: Box::new(kvant_codec::split_mix(seed)), accepted: 0, refused: 0 }
    }

    fn below(&mut self, count: usize) -> usize {
        (self.words.next().unwrap() >> 33) as usize % count
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A number that is mostly right.
    fn or_absurd(&mut self, right: usize) -> usize {
        let absurd = [0, right + 1, 1 << 40, usize::MAX];
        if self.below(8) == 0 { self.pick(&absurd) } else { right }
    }

    fn count(&mut self, status: KvantStatus) {
        if status == KvantStatus::Ok {
            self.accepted += 1;
        } else {
            assert!(!message().is_empty(), "{status:?} says nothing");
            self.refused += 1;
        }
    }

    fn both_happened(&self) {
        println!("{} calls accepted, {} refused", self.accepted, self.refused);
        assert!(self.accepted > CALLS / 10 && self.refused > CALLS / 50);
    }
}

/// A pass that was begun, and its tokens of each sequence.
struct Begun {
    pass: *mut KvantPass,
    tokens: Vec<usize>,
}

#[test]
fn caches_sequences_and_passes_take_calls_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("saved").to_str().unwrap()).unwrap();
    for seed in 0..4 {
        let mut program = Program::new(seed);
        let cache = cache_with(c"int4;recent=32", |options| options.capacity = 600).unwrap();
        let (mut sequences, mut begun) = (vec![sequence(cache)], None);
        for _ in 0..CALLS {
            one_call(&mut program, cache, &path, &mut sequences, &mut begun);
        }
        program.both_happened();
        // SAFETY: each was made above and is freed once.
        unsafe {
            if let Some(Begun { pass, .. }) = begun {
                kvant_pass_abandon(pass);
            }
            sequences.into_iter().for_each(|sequence| kvant_sequence_free(sequence));
            assert_eq!(kvant_cache_bytes(cache), 0, "pages are given back");
            kvant_cache_free(cache);
        }
    }
}

fn one_call(
    program: &mut Program,
    cache: *const KvantCache,
    path: &CString,
    sequences: &mut Vec<*mut KvantSequence>,
    begun: &mut Option<Begun>,
) {
    let (at, kind) = (program.below(sequences.len()), program.below(16));
    let (one, mut made) = (sequences[at], null_mut());
    // SAFETY: handles live until the end or until they are freed here, and lists are as long as they are said to be.
    unsafe {
        match (kind, &*begun) {
            (0, _) if sequences.len() < 6 => program.count(kvant_sequence_new(cache, &mut made)),
            (1, _) if sequences.len() < 6 => program.count(kvant_sequence_fork(one, &mut made)),
            (2, _) if sequences.len() < 6 => {
                program.count(kvant_sequence_load(cache, path.as_ptr(), c"model".as_ptr(), &mut made));
            }
            (3, _) => program.count(kvant_sequence_save(one, path.as_ptr(), c"model".as_ptr())),
            (4, _) => {
                let (mut left, to) = (0, program.below(400));
                program.count(kvant_sequence_rollback(one, to, &mut left));
            }
            (5, None) if sequences.len() > 1 => kvant_sequence_free(sequences.swap_remove(at)),
            (6, Some(_)) => kvant_pass_abandon(begun.take().unwrap().pass),
            (7 | 8, Some(_)) => program.count(kvant_pass_end(begun.take().unwrap().pass)),
            (9.., None) => {
                let most = 1 + program.below(3);
                let members: Vec<*const KvantSequence> =
                    (0..most).map(|_| program.pick(sequences).cast_const()).collect();
                let tokens: Vec<usize> = (0..most)
                    .map(|_| {
                        let right = 1 + program.below(90);
                        program.or_absurd(right)
                    })
                    .collect();
                let mut pass = null_mut();
                let status = kvant_pass_begin(cache, members.as_ptr(), tokens.as_ptr(), most, &mut pass);
                program.count(status);
                if status == KvantStatus::Ok {
                    *begun = Some(Begun { pass, tokens });
                }
            }
            (9.., Some(Begun { pass, tokens })) => {
                let numbers = |tokens: usize, heads: usize, spoilt: bool| -> Vec<f32> {
                    let count = tokens.min(700) * heads * DIM;
                    let mut numbers: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin()).collect();
                    if let Some(last) = numbers.last_mut().filter(|_| spoilt) {
                        *last = f32::NAN;
                    }
                    numbers
                };
                let layer = program.pick(&[0, 0, 1, 1, 2, usize::MAX]);
                let spoilt = program.below(40) == 0;
                let (kv_heads, heads) = (program.pick(&[2, 2, 2, 1]), program.pick(&[6, 6, 2, 0, 5]));
                let given: Vec<Vec<f32>> =
                    tokens.iter().map(|tokens| numbers(*tokens, kv_heads, spoilt)).collect();
                let asked: Vec<Vec<f32>> =
                    tokens.iter().map(|tokens| numbers(*tokens, heads, false)).collect();
                let mut answers = asked.clone();
                let mut given: Vec<KvantRows> = given.iter().map(|one| rows(one)).collect();
                if program.below(20) == 0 {
                    given[0].dtype = 77;
                }
                program.count(kvant_pass_append(*pass, layer, given.as_ptr(), given.as_ptr()));
                let asked: Vec<KvantRows> = asked.iter().map(|one| rows(one)).collect();
                let answers: Vec<KvantOutput> = answers.iter_mut().map(|one| output(one)).collect();
                let heads = program.or_absurd(heads);
                program.count(kvant_pass_attend(
                    *pass,
                    layer,
                    heads,
                    asked.as_ptr(),
                    answers.as_ptr(),
                    null(),
                ));
            }
            _ => {
                let mut tokens = 0;
                program.count(kvant_sequence_size(one, &mut tokens, null_mut()));
                assert!(tokens <= 600);
            }
        }
    }
    if !made.is_null() {
        sequences.push(made);
    }
}

#[test]
fn sessions_and_samplers_take_calls_in_any_order() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("talk").to_str().unwrap()).unwrap();
    let mut program = Program::new(9);
    let mut sessions = vec![home.session()];
    let options = KvantGenerateOptions { max_tokens: 3, ..generate_options() };
    for _ in 0..CALLS {
        let (at, kind) = (program.below(sessions.len()), program.below(12));
        let (one, mut made) = (sessions[at], null_mut());
        let (mut logits, mut length) = (null(), 0);
        let tokens: Vec<u32> = (0..program.below(30)).map(|_| program.below(260) as u32).collect();
        // SAFETY: sessions live until the end or until they are freed here, and lists are as long as they are said to be.
        unsafe {
            match kind {
                0 if sessions.len() < 5 => program.count(kvant_session_new(home.engine, &mut made)),
                1 if sessions.len() < 5 => program.count(kvant_session_fork(one, &mut made)),
                2 if sessions.len() > 1 => kvant_session_free(sessions.swap_remove(at)),
                3 => program.count(kvant_session_save(one, path.as_ptr())),
                4 => program.count(kvant_session_resume(one, path.as_ptr(), null_mut())),
                5 => {
                    let to = program.below(60);
                    program.count(kvant_session_rollback(one, to, null_mut()));
                }
                6 => kvant_session_cancel(one),
                7 => {
                    let (list, count) = (tokens.as_ptr(), tokens.len());
                    program.count(kvant_session_generate(
                        one,
                        list,
                        count,
                        &options,
                        None,
                        null_mut(),
                        null_mut(),
                    ));
                }
                8 => {
                    let (list, count) = (tokens.as_ptr(), tokens.len());
                    program.count(kvant_session_prefill(one, list, count, &mut logits, &mut length));
                }
                _ => {
                    let token = program.pick(&[1, 7, 200, 255, 256, u32::MAX]);
                    let status = kvant_session_step(one, token, &mut logits, &mut length);
                    program.count(status);
                    if status == KvantStatus::Ok {
                        let mut sampler = null_mut();
                        ok(kvant_sampler_new(null(), &mut sampler));
                        let mut token = 0;
                        ok(kvant_sampler_sample(sampler, logits, length, &mut token));
                        assert!((token as usize) < length);
                        let cut = program.below(length);
                        program.count(kvant_sampler_sample(sampler, logits, cut, &mut token));
                        kvant_sampler_free(sampler);
                    }
                }
            }
        }
        if !made.is_null() {
            sessions.push(made);
        }
    }
    program.both_happened();
    home.free(&sessions);
}
