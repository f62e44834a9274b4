//! Tasks on a tiny model whose tokens are bytes: against naive generation, and caches against each other.

use kvant_cpu::LoadOptions;
use kvant_engine::{Engine, KvCache, Policy};
use kvant_eval::divergence::Mode;
use kvant_eval::tasks::calls::{self, Transcript};
use kvant_eval::tasks::code::{self, Problem};
use kvant_eval::tasks::lines::{self, Record};
use kvant_eval::tasks::{choice, json, needle, trajectory, variables, words};
use kvant_eval::{EvalError, Score, Windows};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn engine() -> Engine {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/smollm2");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("tokenizer.json"), byte_tokenizer().to_string()).unwrap();
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

fn policies(names: &[&str]) -> Vec<Policy> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

/// The most likely tokens one by one, from a fresh cache.
fn greedy(model: &Model, policy: &str, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut kv = KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), 500).unwrap();
    let (mut found, mut next) = (Vec::new(), prompt.to_vec());
    for _ in 0..count {
        let wanted = next.len() - 1..next.len();
        let logits = model
            .forward(Pass::new(&[Chunk::new(&next, wanted)]), &mut [kv.sequence_mut()])
            .unwrap()
            .into_logits();
        let row = logits.row(0);
        let top = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        found.push(top);
        next = vec![top];
    }
    found
}

#[test]
fn a_record_is_answered_right_exactly_when_greedy_generation_is() {
    let engine = engine();
    let (model, tokenizer) = (engine.model(), engine.tokenizer());
    let mut record = Record::new(tokenizer, 400, 4, 7).unwrap();
    assert!(record.tokens.len() <= 400 && record.questions.len() == 4);
    // One answer is what the model says itself: that one is right, and the others of this random model are not.
    let prompt = [&record.tokens[..], &record.questions[2].0].concat();
    record.questions[2].1 = greedy(model, "f32", &prompt, 5);
    for mode in [Mode::Deployed, Mode::Strict] {
        let scores = record.scores(model, &policies(&["f32", "tq2"]), mode, &mut |_| ()).unwrap();
        assert_eq!((scores[0].cases(), scores[0].right(), scores[0].same), (4, 1.0, 4));
        assert_eq!(scores[0].rights, [0.0, 0.0, 1.0, 0.0], "case by case");
        assert_eq!(scores[1], scores[0]);
        assert!(scores[2].nll.0 != scores[0].nll.0 && scores[2].nll.1 == scores[0].nll.1);
    }
}

#[test]
fn what_prompts_share_is_read_once_and_changes_nothing() {
    let engine = engine();
    let record = Record::new(engine.tokenizer(), 400, 3, 7).unwrap();
    let together = record.scores(engine.model(), &policies(&["int4"]), Mode::Deployed, &mut |_| ()).unwrap();
    let mut apart = 0.0;
    for question in &record.questions {
        let one = Record { questions: vec![question.clone()], ..record.clone() };
        let scores = one.scores(engine.model(), &policies(&["int4"]), Mode::Deployed, &mut |_| ()).unwrap();
        apart += scores[1].nll.0;
    }
    assert_eq!(together[1].nll.0, apart);
}

#[test]
fn records_hold_what_is_asked_for() {
    let engine = engine();
    let tokenizer = engine.tokenizer();
    let record = Record::new(tokenizer, 480, 3, 1).unwrap();
    let text = tokenizer.decode(&record.tokens).unwrap();
    for (question, answer) in &record.questions {
        let (question, answer) = (tokenizer.decode(question).unwrap(), tokenizer.decode(answer).unwrap());
        let name = question.trim_start_matches("\nThe REGISTER_CONTENT in ").trim_end_matches(" is <");
        assert!(
            text.contains(&format!("{name}: REGISTER_CONTENT is <{answer}\n")),
            "{question}{answer} in {text}"
        );
    }
    assert_ne!(record, Record::new(tokenizer, 480, 3, 2).unwrap());
    assert!(matches!(Record::new(tokenizer, 100, 3, 1), Err(EvalError::ContextTooShort { .. })));

    let hay = "It was the best of times. ".repeat(20);
    let needles = needle::records(tokenizer, &hay, 300, 3, 1).unwrap();
    let places: Vec<usize> =
        needles.iter().map(|r| tokenizer.decode(&r.tokens).unwrap().find("secret").unwrap()).collect();
    assert!(places.is_sorted() && places[0] < 60 && places[2] > 120, "{places:?}");
    for record in &needles {
        let all = [&record.tokens[..], &record.questions[0].0, &record.questions[0].1].concat();
        assert!(all.len() <= 300);
        let text = tokenizer.decode(&all).unwrap();
        let last = text.rsplit(' ').next().unwrap();
        assert_eq!(text.matches(last).count(), 2, "{text}");
    }
    assert!(needle::records(tokenizer, &hay, 9000, 3, 1).is_err());
    assert!(needle::records(tokenizer, &hay, 50, 3, 1).is_err());
}

#[test]
fn trajectories_agree_with_themselves_and_coarse_caches_leave_them() {
    let engine = engine();
    let ids: Vec<u32> = (0..400).map(|i| (i * i / 7 + i * 37 + 5) % 256).collect();
    let windows = Windows::of_ids(&[], &ids, 100, 2, Score::All).unwrap();
    let caches = policies(&["f32", "tq2"]);
    let scores =
        trajectory::scores(engine.model(), &windows, trajectory::LENGTH, &caches, &mut |_| ()).unwrap();
    assert_eq!((scores[0].right(), scores[0].same, scores[1].right()), (2.0, 2, 2.0));
    let expected: f64 = windows
        .iter()
        .map(|window| {
            let [exact, coarse] =
                ["f32", "tq2"].map(|kv| greedy(engine.model(), kv, window, trajectory::LENGTH));
            exact.iter().zip(&coarse).take_while(|(a, b)| a == b).count() as f64 / trajectory::LENGTH as f64
        })
        .sum();
    assert_eq!(scores[2].right(), expected);
}

#[test]
fn choices_follow_the_least_surprise_per_byte() {
    let engine = engine();
    let (model, tokenizer) = (engine.model(), engine.tokenizer());
    let prompt = tokenizer.encode("Once upon a", Default::default()).unwrap();
    let likely = tokenizer.decode(&greedy(model, "f32", &prompt, 1)).unwrap();
    let lines: Vec<Value> = ["Q", "Z"]
        .iter()
        .map(|other| json!({"request": {"context": "Once upon a", "continuation": other}, "doc_id": 0, "idx": 1, "label": 0}))
        .collect();
    // Only an ending that is a character can be put into a line.
    if !likely.contains('\u{fffd}') {
        let right = json!({"request": {"context": "Once upon a", "continuation": likely}, "doc_id": 0, "idx": 0, "label": 0});
        let text = format!("{right}\n{}\n", lines[0]);
        let questions = choice::questions(&text, 5).unwrap();
        let caches = policies(&["f16"]);
        let scores =
            choice::scores(model, tokenizer, &questions, &caches, Mode::Strict, &mut |_| ()).unwrap();
        assert_eq!((scores[0].right(), scores[1].right(), scores[1].same), (1.0, 1.0, 1));
    }
    let empty = r#"{"query": "a", "choices": ["b", ""], "gold": 0}"#;
    let questions = choice::questions(empty, 5).unwrap();
    assert!(
        choice::scores(model, tokenizer, &questions, &[], Mode::Deployed, &mut |_| ()).is_ok(),
        "a space is an ending"
    );
}

#[test]
fn a_model_that_babbles_writes_no_json_but_the_same_with_f32() {
    let engine = engine();
    let prompts = &json::prompts()[..2];
    let mut steps = 0;
    let scores = json::scores(&Arc::new(engine), prompts, &policies(&["f32"]), &mut |_| steps += 1).unwrap();
    assert_eq!((scores[0].right(), scores[1].same, steps), (0.0, 2, 4));
}

/// What a document says, and what is asked with what is right.
fn texts(engine: &Engine, record: &Record) -> (String, Vec<(String, String)>) {
    let text = |ids: &[u32]| engine.tokenizer().decode(ids).unwrap();
    let questions = record.questions.iter().map(|(question, answer)| (text(question), text(answer)));
    (text(&record.tokens), questions.collect())
}

#[test]
fn documents_hold_the_answers_to_all_their_questions() {
    let engine = engine();
    let tokenizer = engine.tokenizer();
    let hay: String = (0..600).map(|n| format!("It was the best of times, number {n}. ")).collect();
    let found = needle::documents(tokenizer, &hay, 3000, 2, 1).unwrap();
    assert!(found.len() == 2 && found[0] != found[1]);
    for record in &found {
        let (text, questions) = texts(&engine, record);
        assert_eq!(questions.len(), needle::NEEDLES);
        let places: Vec<usize> = questions
            .iter()
            .map(|(question, answer)| {
                text.find(&format!("{}{answer}. ", question.trim_start())).expect("the sentence")
            })
            .collect();
        assert!(places.is_sorted() && places[0] < 300 && places[9] > 2400, "{places:?}");
        assert!((2800..=3000).contains(&(record.tokens.len() + questions[0].0.len() + questions[0].1.len())));
    }

    for record in variables::documents(tokenizer, &hay, 3000, 2, 1).unwrap() {
        let (text, questions) = texts(&engine, &record);
        assert_eq!(questions.len(), variables::CHAINS);
        for (question, answer) in questions {
            let value = question.trim_end_matches(':').rsplit(' ').next().unwrap();
            // Whoever reads from the beginning knows which variables have a value.
            let mut having: Vec<&str> = Vec::new();
            for said in text.split("VAR ").skip(1).zip(text.split("VAR ").skip(2).chain([""])) {
                let (name, from) = (&said.0[..3], said.0[3..].trim());
                let follows = from == "=" && having.contains(&&said.1[..3.min(said.1.len())]);
                if from.starts_with(&format!("= {value}.")) || follows {
                    having.push(name);
                }
            }
            assert_eq!(answer, format!(" {}.", having.join(", ")), "{value}");
        }
    }

    for record in words::documents(tokenizer, 3000, 2, 1).unwrap() {
        let (text, questions) = texts(&engine, &record);
        let list: Vec<&str> = text.split("\n\n").nth(1).unwrap().split_whitespace().collect();
        let count = |word: &str| list.iter().filter(|found| **found == word).count();
        let asked: Vec<usize> = questions.iter().map(|(_, answer)| count(answer.trim())).collect();
        assert!(asked[0] > asked[1] && asked[1] > asked[2], "{asked:?}");
        let others = list.iter().filter(|word| !questions.iter().any(|(_, answer)| answer.trim() == **word));
        assert!(others.map(|word| count(word)).max().unwrap() < asked[2]);
        assert!(record.tokens.len() > 2500);
    }
    assert!(needle::documents(tokenizer, &hay, 300, 1, 1).is_err());
    assert!(variables::documents(tokenizer, "short", 3000, 1, 1).is_err());
    assert!(words::documents(tokenizer, 200, 1, 1).is_err());
}

#[test]
fn questions_about_one_document_are_told_apart_from_others() {
    let engine = engine();
    let records = [1, 2].map(|seed| Record::new(engine.tokenizer(), 400, 3, seed).unwrap());
    let mut last = None;
    let caches = policies(&["tq2"]);
    let all = lines::scores(&records, engine.model(), &caches, Mode::Deployed, &mut |step| last = Some(step))
        .unwrap();
    assert_eq!((all[1].documents.clone(), all[1].cases()), (vec![3, 3], 6));
    assert_eq!(last.map(|step| (step.done, step.total)), Some((12, 12)));
    let one = records[1].scores(engine.model(), &caches, Mode::Deployed, &mut |_| ()).unwrap();
    assert_eq!(all[1].rights[3..], one[1].rights[..]);
}

#[test]
fn continuations_do_not_depend_on_what_was_held() {
    let engine = engine();
    let ids: Vec<u32> = (0..400).map(|i| (i % 100 * 37 + 5) % 256).collect();
    // Every window is the same, and the last one of another model's making.
    let ids = [&ids[..300], &ids[..90], &[1; 10][..]].concat();
    let windows = Windows::of_ids(&[], &ids, 100, 4, Score::All).unwrap();
    let scores = trajectory::scores(engine.model(), &windows, 20, &policies(&["int4"]), &mut |_| ()).unwrap();
    for (place, window) in windows.iter().enumerate() {
        let [exact, coarse] = ["f32", "int4"].map(|kv| greedy(engine.model(), kv, window, 20));
        let same = exact.iter().zip(&coarse).take_while(|(a, b)| a == b).count();
        assert_eq!(scores[1].rights[place], same as f64 / 20.0, "{place}");
    }
}

#[test]
fn an_agent_is_asked_about_what_it_did() {
    let engine = engine();
    let transcript = Transcript::new(&engine, 2500, 3).unwrap();
    assert!(transcript.prompts.len() >= 2 && transcript.prompts.iter().all(|prompt| prompt.len() <= 2500));
    for (prompt, expected) in transcript.prompts.iter().zip(&transcript.expected) {
        let text = engine.tokenizer().decode(prompt).unwrap();
        for argument in expected["arguments"].as_object().unwrap().values().filter(|value| value.is_string())
        {
            assert!(text.contains(argument.as_str().unwrap()), "{argument} in {text}");
        }
    }
    assert!(Transcript::new(&engine, 300, 3).is_err());
    let short =
        [Transcript { prompts: vec![vec![5; 40], vec![5; 44]], expected: vec![json!({}), json!({})] }];
    let scores = calls::scores(&engine, &short, &policies(&["f32"]), &mut |_| ()).unwrap();
    assert_eq!((scores[1].cases(), scores[1].same, scores[1].right(), scores[1].valid), (2, 2, 0.0, (0, 2)));
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn functions_are_right_when_their_tests_pass() {
    let engine = engine();
    // Whatever this model writes after it is a comment.
    let problem = |result: i32| Problem {
        prompt: format!("def f():\n    return {result}\n#"),
        test: "def check(f):\n    assert f() == 1\n".to_owned(),
        entry_point: "f".to_owned(),
    };
    let scores = code::scores(&engine, &[problem(1), problem(2)], &policies(&["f32"]), &mut |_| ()).unwrap();
    assert_eq!((scores[0].rights[1], scores[1].rights[1], scores[1].same), (0.0, 0.0, 2));
}
