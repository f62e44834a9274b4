//! Speculative decoding changes nothing but time: with guesses that are right, wrong, long, short or none, and whatever is cut off after
//! them, tokens, text, probabilities and caches have the same bits.
//!
//! `KVANT_SPECULATION_CASES` sets how many generations are compared; a few hundred by default.

#[path = "../../kvant-model/tests/support/mtp.rs"]
mod mtp;
#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_codec::split_mix;
use kvant_cpu::Cpu;
use kvant_engine::grammar::{Grammar, GrammarCompiler, GrammarConstraint};
use kvant_engine::scheduler::{Job, JobEvent, JobUsage, Listener, Logprobs, Scheduler, SchedulerOptions};
use kvant_engine::speculation::{
    DraftModel, DraftProposer, MakeProposer, MtpHead, MtpSequence, ProposalLimits, Proposer,
};
use kvant_engine::{
    Arena, Constraint, DeviceChoice, Engine, Finish, KvCache, LoadOptions, OpenOptions, Policy, Request,
    SamplingParams, Snapshot,
};
use kvant_model::gguf::Gguf;
use kvant_model::{Checkpoint, Model};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

const CONTEXT: usize = 300;

/// Attention with and without windows, recurrent state, and the tiny model that has words.
const MODELS: [&str; 6] = ["tiny", "tiny", "gemma3", "lfm2", "qwen3_next", "falcon_h1"];

/// Models that get a head for further tokens: recurrent state, latents, experts with an output of the head's own.
const HEADS: [&str; 5] = ["qwen3_next", "qwen3_5", "deepseek_v3", "glm4_moe", "mimo_v2_flash"];

const POLICIES: [&str; 5] =
    ["int4", "f16", "int8;recent=20", "k=ch4:p128,v=rot4g32;recent=70;sinks=1", "int4;sinks=0"];

fn cases(usually: usize) -> usize {
    std::env::var("KVANT_SPECULATION_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(usually)
}

/// Random numbers of a seed.
struct Dice(Box<dyn Iterator<Item = u64> + Send>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Box::new(split_mix(seed)))
    }

    fn below(&mut self, end: usize) -> usize {
        (self.0.next().unwrap() >> 20) as usize % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Prompts with their true answers.
type Truths = Arc<Mutex<Vec<Vec<u32>>>>;

/// Guesses the truth for a while, and then something else.
struct Guesser {
    truths: Truths,
    dice: Dice,
}

impl Proposer for Guesser {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        let truths = self.truths.lock().unwrap();
        let truth = truths
            .iter()
            .find(|truth| truth.starts_with(tokens))
            .map_or(&[][..], |truth| &truth[tokens.len()..]);
        let count = self.dice.below(limits.most + 1);
        let right = self.dice.below(count + 3);
        let wrong = (0..count).map(|_| self.dice.below(256) as u32).collect::<Vec<_>>();
        proposal.extend(truth.iter().take(right.min(count)));
        proposal.extend(&wrong[proposal.len()..]);
    }
}

/// A draft model whose guesses are worth any time.
struct EagerDraft(DraftProposer);

impl Proposer for EagerDraft {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        let limits = ProposalLimits { least_chance: 0.01, seconds_per_token: Some(1e9), ..limits };
        self.0.propose(tokens, limits, proposal);
    }
}

/// A model with the same words as one of [`MODELS`], itself or another, and little room for all texts together.
fn draft(target: &Engine, name: &str) -> DraftModel {
    let engine = load(if name == "lfm2" { "gemma3" } else { name }).without_speculation();
    let policy: Policy = "int4".parse().unwrap();
    let empty = KvCache::new(&policy, engine.model().slots(), CONTEXT).unwrap();
    let store = Arena::with_cap(2 * empty.sequence().layout().arena_bytes(CONTEXT, 256)).into();
    let words = (target.tokenizer(), target.model().vocabulary());
    DraftModel::new(Arc::new(engine), (policy, CONTEXT - 20, store), words).unwrap()
}

fn drafting(target: Engine, name: &str) -> Engine {
    let draft = Arc::new(draft(&target, name));
    let make: MakeProposer = Arc::new(move || Box::new(EagerDraft(DraftProposer::new(Arc::clone(&draft)))));
    target.with_proposers(Some(make)).unwrap()
}

/// The model's own head, whose guesses are worth any time.
struct EagerHead(DraftProposer<MtpSequence>);

impl Proposer for EagerHead {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        let limits = ProposalLimits { least_chance: 0.01, seconds_per_token: Some(1e9), ..limits };
        self.0.propose(tokens, limits, proposal);
    }

    fn watches(&self) -> bool {
        self.0.watches()
    }

    fn watch(&mut self, at: usize, tokens: &[u32], left: &[f32]) {
        self.0.watch(at, tokens, left);
    }
}

/// A fixture with a head, in a folder.
fn folder_with_head(name: &str) -> tempfile::TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name);
    let read = |file: &str| std::fs::read(fixture.join(file)).unwrap();
    let config = serde_json::from_slice(&read("config.json")).unwrap();
    let (bytes, config) = mtp::with_head(&read("model.safetensors"), &config);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), byte_tokenizer().to_string()).unwrap();
    folder
}

/// A model with and without its head's guesses; for all texts together the head has little room.
fn with_and_without_head(name: &str) -> [Arc<Engine>; 2] {
    let folder = folder_with_head(name);
    let options = LoadOptions { mtp: true, ..LoadOptions::default() };
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let pool = kvant_threads::Pool::new(1);
    let load = || Engine::load_on(pool.clone(), &checkpoint, options).unwrap();
    let model = Arc::new(Model::load(&Cpu::new(options).unwrap(), &checkpoint).unwrap());
    let policy: Policy = "int4".parse().unwrap();
    let empty = KvCache::new(&policy, &model.mtp().unwrap().slots, CONTEXT).unwrap();
    let store = Arena::with_cap(3 * empty.sequence().layout().arena_bytes(CONTEXT, 256)).into();
    let head = Arc::new(MtpHead::new(model, pool.clone(), (policy, CONTEXT - 20, store)).unwrap());
    let make: MakeProposer =
        Arc::new(move || Box::new(EagerHead(DraftProposer::with(MtpSequence::new(Arc::clone(&head))))));
    [load().without_speculation(), load().with_proposers(Some(make)).unwrap()].map(Arc::new)
}

struct Models {
    off: Vec<Arc<Engine>>,
    guessing: Vec<Arc<Engine>>,
    suffix: Vec<Arc<Engine>>,
    drafting: Vec<Arc<Engine>>,
    truths: Truths,
    schema: GrammarConstraint,
}

fn load(name: &str) -> Engine {
    if name == "tiny" {
        let file = Gguf::from_bytes(tiny::model_bytes(true)).unwrap();
        return Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap();
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("tokenizer.json"), byte_tokenizer().to_string()).unwrap();
    Engine::load(&Checkpoint::open(folder.path()).unwrap(), LoadOptions::default()).unwrap()
}

fn byte_tokenizer() -> Value {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let vocab: serde_json::Map<String, Value> = (0..256)
        .map(|byte| {
            let point = if printable(byte) { byte } else { others.next().unwrap() };
            (char::from_u32(point).unwrap().to_string(), byte.into())
        })
        .collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "post_processor": null, "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": []},
    })
}

fn models() -> Models {
    let truths = Truths::default();
    let shared = Arc::clone(&truths);
    let guesser: MakeProposer =
        Arc::new(move || Box::new(Guesser { truths: Arc::clone(&shared), dice: Dice::new(5) }));
    let all = |change: &dyn Fn(Engine, &str) -> Engine| {
        MODELS.iter().map(|name| Arc::new(change(load(name), name))).collect::<Vec<_>>()
    };
    let off = all(&|engine, _| engine.without_speculation());
    let schema = Grammar::JsonSchema(json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "sizes": {"type": "array", "items": {"enum": [1, 22, 333]}, "maxItems": 4}},
        "required": ["name", "sizes"],
        "additionalProperties": false,
    }));
    let schema = GrammarCompiler::new(off[0].tokenizer()).unwrap().compile(&schema).unwrap();
    let guessing = all(&|engine, _| engine.with_proposers(Some(Arc::clone(&guesser))).unwrap());
    Models { off, guessing, suffix: all(&|engine, _| engine), drafting: all(&drafting), truths, schema }
}

/// A request of any kind, a text of few different tokens, so that it repeats itself.
fn request(dice: &mut Dice, longest: usize) -> Request {
    let kinds = [2, 5, 250];
    let kind = dice.of(&kinds);
    let prompt = (0..1 + dice.below(longest)).map(|_| 3 + dice.below(kind) as u32).collect();
    let sampling = SamplingParams {
        temperature: dice.of(&[0.0, 0.3, 1.0]),
        top_k: dice.of(&[0, 3, 40]),
        top_p: dice.of(&[1.0, 0.9]),
        repetition_penalty: dice.of(&[1.0, 1.0, 1.3]),
        frequency_penalty: dice.of(&[0.0, 0.0, 0.2]),
        seed: Some(dice.below(1000) as u64),
        ..SamplingParams::default()
    };
    let sampling = if dice.one_in(3) { unusual(dice, sampling) } else { sampling };
    let stop = if dice.one_in(4) { vec!["e".to_owned(), "tt".into()] } else { Vec::new() };
    let max_tokens = if dice.one_in(8) { None } else { Some(dice.below(50)) };
    Request { prompt, sampling, stop, max_tokens, ..Request::default() }
}

/// Settings with samplers that have a state, or draw more than once.
fn unusual(dice: &mut Dice, sampling: SamplingParams) -> SamplingParams {
    SamplingParams {
        mirostat: dice.of(&[0, 2]),
        dry_multiplier: dice.of(&[0.0, 0.8]),
        xtc_probability: dice.of(&[0.0, 0.5]),
        typical_p: dice.of(&[1.0, 0.8]),
        top_n_sigma: dice.of(&[0.0, 1.5]),
        dynatemp_range: dice.of(&[0.0, 0.3]),
        ..sampling
    }
}

/// What a session made of some turns of a conversation, one after another: tokens, text, end, logits and tokens held.
type Said = Vec<(Vec<u32>, String, Finish, Vec<u32>, Vec<u32>)>;

fn conversation(
    engine: &Arc<Engine>,
    policy: &Policy,
    turns: &[Request],
    schema: Option<&GrammarConstraint>,
    truths: Option<&Truths>,
) -> (Said, [usize; 2]) {
    let mut session = engine.session(policy, CONTEXT).unwrap();
    let (mut said, mut counts) = (Vec::new(), [0, 0]);
    for (number, turn) in turns.iter().enumerate() {
        let mut request = turn.clone();
        if number > 0 {
            request.prompt = [session.tokens(), &turn.prompt[..]].concat();
            request.prompt.truncate(CONTEXT - 4);
        }
        let constraint = schema.map(|schema| Box::new(schema.clone()) as Box<dyn Constraint>);
        // Every third text is broken off.
        let mut left = if number == 2 { 9 } else { usize::MAX };
        let reply = session.generate_within(&request, constraint, &mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let reply = reply.unwrap();
        let logits = session.logits().iter().map(|logit| logit.to_bits()).collect();
        if let Some(truths) = truths {
            truths.lock().unwrap().push([&request.prompt[..], &reply.tokens].concat());
        }
        let stats = reply.stats;
        assert!(stats.passes <= stats.decoded && stats.speculation.accepted <= stats.speculation.proposed);
        counts = [counts[0] + stats.speculation.accepted, counts[1] + stats.speculation.rejected()];
        said.push((reply.tokens, reply.text, reply.finish, logits, session.tokens().to_vec()));
    }
    (said, counts)
}

#[test]
fn sessions_say_the_same_to_the_bit_whatever_was_guessed() {
    let (models, mut dice) = (models(), Dice::new(1));
    let (mut guessed, mut repeated, mut drafted) = ([0, 0], [0, 0], [0, 0]);
    for case in 0..cases(240) / 4 {
        let index = case % MODELS.len();
        let mut policy: Policy = dice.of(&POLICIES).parse().unwrap();
        policy.rule.streaming = dice.one_in(4).then_some(40);
        let turns: Vec<Request> = (0..3).map(|_| request(&mut dice, 120)).collect();
        let schema = (MODELS[index] == "tiny" && dice.one_in(2)).then_some(&models.schema);
        models.truths.lock().unwrap().clear();
        let (expected, none) =
            conversation(&models.off[index], &policy, &turns, schema, Some(&models.truths));
        assert_eq!(none, [0, 0]);
        let what = format!("case {case}: {}, {policy}, schema: {}", MODELS[index], schema.is_some());
        let (found, counts) = conversation(&models.guessing[index], &policy, &turns, schema, None);
        assert_eq!(found, expected, "{what}");
        guessed = [guessed[0] + counts[0], guessed[1] + counts[1]];
        let (found, counts) = conversation(&models.suffix[index], &policy, &turns, schema, None);
        assert_eq!(found, expected, "{what}, suffix");
        repeated = [repeated[0] + counts[0], repeated[1] + counts[1]];
        let (found, counts) = conversation(&models.drafting[index], &policy, &turns, schema, None);
        assert_eq!(found, expected, "{what}, draft");
        drafted = [drafted[0] + counts[0], drafted[1] + counts[1]];
    }
    assert!(guessed.iter().all(|count| *count > cases(240) / 2), "accepted and rejected: {guessed:?}");
    assert!(
        drafted.iter().all(|count| *count > cases(240) / 2),
        "accepted and rejected of drafts: {drafted:?}"
    );
    assert!(repeated[0] > 0, "accepted and rejected of repetitions: {repeated:?}");
}

/// What somebody heard of a job.
#[derive(Default, Debug, PartialEq)]
struct Heard {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<Logprobs>,
    finish: Option<Finish>,
}

#[derive(Clone, Default)]
struct JobSink {
    heard: Arc<Mutex<Heard>>,
    usage: Arc<Mutex<JobUsage>>,
}

impl Listener for JobSink {
    fn take(&mut self, event: JobEvent) {
        let mut heard = self.heard.lock().unwrap();
        match event {
            JobEvent::Token { token, text, logprobs } => {
                heard.tokens.push(token);
                heard.text.push_str(&text);
                heard.logprobs.extend(logprobs);
            }
            JobEvent::Finished { text, finish, usage } => {
                heard.text.push_str(&text);
                heard.finish = Some(finish);
                *self.usage.lock().unwrap() = usage;
            }
            JobEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// Jobs at the end of a batch that are asked for again, once all are answered.
const REPEATED: usize = 2;

/// What a batch of jobs heard, and the counters of the scheduler.
fn batch(
    engine: &Arc<Engine>,
    policy: &str,
    cap: Option<usize>,
    jobs: &[(Request, bool)],
    schema: &GrammarConstraint,
) -> (Vec<Heard>, [u64; 2]) {
    let arena = cap.map_or_else(Arena::new, Arena::with_cap);
    let empty =
        KvCache::in_arena(policy.parse::<Policy>().unwrap(), engine.model().slots(), CONTEXT, arena).unwrap();
    let mut scheduler = Scheduler::new(Arc::clone(engine), empty, SchedulerOptions::default());
    let (handle, mut sinks) = (scheduler.handle(), Vec::new());
    for (number, (request, is_bound)) in jobs.iter().enumerate() {
        if number == jobs.len() - REPEATED {
            // What comes now was answered before.
            while scheduler.step() {}
        }
        let sink = JobSink::default();
        let job = Job {
            logprobs: Some(2),
            constraint: is_bound.then(|| Box::new(schema.clone()) as _),
            ..Job::new(request.clone(), Box::new(sink.clone()))
        };
        handle.submit(vec![job]).unwrap();
        sinks.push(sink);
        scheduler.step();
    }
    while scheduler.step() {}
    let counters = handle.counters();
    let accepted: usize = sinks.iter().map(|sink| sink.usage.lock().unwrap().speculation.accepted).sum();
    assert_eq!(counters.accepted_tokens, accepted as u64);
    let heard = sinks.iter().map(|sink| std::mem::take(&mut *sink.heard.lock().unwrap())).collect();
    (heard, [counters.proposed_tokens, counters.accepted_tokens])
}

#[test]
fn batches_hear_the_same_to_the_bit_whatever_was_guessed() {
    let (models, mut dice) = (models(), Dice::new(2));
    let mut sums = [0, 0];
    for case in 0..cases(240) / 12 {
        let index = case % MODELS.len();
        let (engine, policy) = (&models.off[index], dice.of(&POLICIES));
        // Two of three batches begin alike, so that prefixes are found.
        let common = request(&mut dice, 150).prompt;
        let mut jobs: Vec<(Request, bool)> = (0..6 - REPEATED)
            .map(|_| {
                let mut request = request(&mut dice, 60);
                if case % 3 > 0 {
                    request.prompt = [&common[..], &request.prompt].concat();
                }
                (request, MODELS[index] == "tiny" && dice.one_in(2))
            })
            .collect();
        jobs.extend_from_within(..REPEATED);
        let whole = KvCache::new(policy.parse::<Policy>().unwrap(), engine.model().slots(), CONTEXT).unwrap();
        // Little memory: jobs wait, and a proposal may find no room.
        let cap = dice.one_in(2).then(|| whole.sequence().layout().arena_bytes(CONTEXT, 256));
        let (expected, none) = batch(engine, policy, cap, &jobs, &models.schema);
        assert_eq!(none, [0, 0]);
        let truth =
            |((request, _), heard): (&(Request, bool), &Heard)| [&request.prompt[..], &heard.tokens].concat();
        *models.truths.lock().unwrap() = jobs.iter().zip(&expected).map(truth).collect();
        for engine in [&models.guessing[index], &models.suffix[index], &models.drafting[index]] {
            let (found, counts) = batch(engine, policy, cap, &jobs, &models.schema);
            assert_eq!(found, expected, "case {case}: {}, {policy}, {cap:?}", MODELS[index]);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let [proposed, accepted] = sums;
    assert!(accepted > 100 && proposed > accepted, "{sums:?}");
}

#[test]
fn saved_sessions_go_on_alike_and_are_the_same_files_where_nothing_is_recurrent() {
    let (models, mut dice) = (models(), Dice::new(3));
    let folder = tempfile::tempdir().unwrap();
    for (index, name) in MODELS.iter().enumerate().skip(1) {
        let policy: Policy = "int4".parse().unwrap();
        let first = Request { max_tokens: Some(60), stop: Vec::new(), ..request(&mut dice, 90) };
        let second = Request { max_tokens: Some(20), ..request(&mut dice, 20) };
        let signature = [7; 32];
        models.truths.lock().unwrap().clear();
        let mut results = Vec::new();
        for engines in [&models.off, &models.guessing, &models.suffix, &models.drafting] {
            let engine = &engines[index];
            let mut session = engine.session(&policy, CONTEXT).unwrap();
            let go_on = &mut |_: kvant_engine::Event<'_>| ControlFlow::Continue(());
            let reply = session.generate(&first, go_on).unwrap();
            models.truths.lock().unwrap().push([&first.prompt[..], &reply.tokens].concat());
            let path = folder.path().join("saved");
            session.save(&path, signature, b"").unwrap();
            let mut resumed = engine.session(&policy, CONTEXT).unwrap();
            resumed.resume(&Snapshot::open(&path).unwrap(), &signature).unwrap();
            let prompt = [resumed.tokens(), &second.prompt[..]].concat();
            let next = resumed.generate(&Request { prompt, ..second.clone() }, go_on).unwrap();
            // Of recurrent state, chunks that only going back far would need may be forgotten a few tokens earlier.
            let is_recurrent = ["lfm2", "qwen3_next", "falcon_h1"].contains(name);
            let file = if is_recurrent { Vec::new() } else { std::fs::read(&path).unwrap() };
            results.push((reply.tokens, file, next.tokens, next.text));
        }
        assert!(results[1..].iter().all(|other| *other == results[0]), "{name}");
    }
}

#[test]
fn a_draft_with_other_words_is_refused_by_the_first_that_differs() {
    let (target, other) = (load("gemma3"), Arc::new(load("tiny")));
    let policy: Policy = "int4".parse().unwrap();
    let words = (target.tokenizer(), target.model().vocabulary());
    let error = DraftModel::new(other, (policy, CONTEXT, Arena::new().into()), words).err().unwrap();
    assert!(error.to_string().contains("a draft model with another tokenizer: its token 0 is"), "{error}");
}

#[test]
fn sessions_and_batches_say_the_same_to_the_bit_whatever_the_models_own_head_guessed() {
    let mut dice = Dice::new(4);
    let compiled = |engine: &Engine| {
        let words = Grammar::Regex("([a-f]{1,9}[ .]){1,9}".into());
        GrammarCompiler::new(engine.tokenizer()).unwrap().compile(&words).unwrap()
    };
    for name in HEADS {
        let [off, heads] = with_and_without_head(name);
        let schema = compiled(&off);
        // Latents want pages of one length.
        let policies = if name == "deepseek_v3" { &POLICIES[..3] } else { &POLICIES[..] };
        let (mut guessed, mut in_batches) = ([0, 0], [0, 0]);
        for case in 0..cases(240) / 40 {
            let mut policy: Policy = dice.of(policies).parse().unwrap();
            policy.rule.streaming = dice.one_in(4).then_some(40);
            let turns: Vec<Request> = (0..3).map(|_| request(&mut dice, 120)).collect();
            let schema = dice.one_in(3).then_some(&schema);
            let (expected, _) = conversation(&off, &policy, &turns, schema, None);
            let (found, counts) = conversation(&heads, &policy, &turns, schema, None);
            assert_eq!(found, expected, "case {case}: {name}, {policy}, grammar: {}", schema.is_some());
            guessed = [guessed[0] + counts[0], guessed[1] + counts[1]];
        }
        for case in 0..cases(240) / 120 {
            let policy = dice.of(policies);
            // They begin alike, so that prefixes are found: the head has not seen what the model left of them.
            let common = request(&mut dice, 150).prompt;
            let mut jobs: Vec<(Request, bool)> = (0..6 - REPEATED)
                .map(|_| {
                    let mut request = request(&mut dice, 60);
                    request.prompt = [&common[..], &request.prompt].concat();
                    (request, dice.one_in(3))
                })
                .collect();
            jobs.extend_from_within(..REPEATED);
            let whole =
                KvCache::new(policy.parse::<Policy>().unwrap(), off.model().slots(), CONTEXT).unwrap();
            let cap = dice.one_in(2).then(|| whole.sequence().layout().arena_bytes(CONTEXT, 256));
            let (expected, _) = batch(&off, policy, cap, &jobs, &schema);
            let (found, counts) = batch(&heads, policy, cap, &jobs, &schema);
            assert_eq!(found, expected, "case {case}: {name}, {policy}, {cap:?}");
            in_batches.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [proposed, accepted] = in_batches;
        assert!(
            guessed.iter().all(|count| *count > cases(240) / 40),
            "{name}: accepted and rejected {guessed:?}"
        );
        assert!(accepted > 0 && proposed > accepted, "{name}: proposed and accepted {in_batches:?}");
    }
}

#[test]
fn a_head_in_the_file_is_asked_unless_something_else_is_asked_for() {
    let folder = folder_with_head("glm4_moe");
    let open = |speculate: Option<&str>| {
        let speculate = speculate.map(|how| how.parse().unwrap());
        let device = DeviceChoice::Cpu;
        OpenOptions { speculate, device, threads: Some(1), ..OpenOptions::default() }.open(folder.path())
    };
    for (how, is_loaded) in [(None, true), (Some("mtp"), true), (Some("suffix"), false), (Some("off"), false)]
    {
        let opened = open(how).unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert_eq!(opened.engine().model().mtp().is_some(), is_loaded, "{how:?}");
        assert_eq!(opened.engine().speculates(), how != Some("off"));
    }
    let without = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/glm4_moe");
    std::fs::copy(without.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let error = open(Some("mtp")).err().unwrap().to_string();
    assert!(error.contains("it has no head for further tokens; use --speculate suffix"), "{error}");
    assert!(open(None).unwrap().engine().speculates());
}
