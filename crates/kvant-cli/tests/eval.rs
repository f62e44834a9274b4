//! `kvant eval` as a person uses it, on a tiny model whose tokens are bytes.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The model fixture with a tokenizer beside it that takes every byte as a token.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/llama");
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("tokenizer.json"), byte_tokenizer().to_string()).unwrap();
        fs::write(folder.path().join("text.txt"), "It was the best of times, it was the worst. ".repeat(10))
            .unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn eval(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvant"));
        command.arg("eval").arg(self.folder.path()).args(arguments).env("KVANT_CACHE", self.path("cache"));
        command.output().unwrap()
    }

    /// On the text, with JSON read back.
    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.path("text.txt");
        let output = self.eval(&[&["--text", text.to_str().unwrap(), "--json"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "a pipe gets no progress bar");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The same for caches: one object for each.
    fn rows(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.path("text.txt");
        let output = self.eval(&[&["--text", text.to_str().unwrap(), "--json"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// On any text, expected to fail.
    fn refusal(&self, text: &str, arguments: &[&str]) -> String {
        let text = self.path(text);
        let output = self.eval(&[&["--text", text.to_str().unwrap()], arguments].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Ids are bytes, written in the alphabet of byte-level vocabularies: printable bytes as they are, the others as
/// the characters from U+0100 on.
fn byte_tokenizer() -> Value {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let vocab: serde_json::Map<String, Value> = (0..256)
        .map(|byte| {
            let point = if printable(byte) { byte } else { others.next().unwrap() };
            (char::from_u32(point).unwrap().to_string(), byte.into())
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": []},
    })
}

#[test]
fn json_holds_everything_a_ledger_needs() {
    let place = Place::new();
    let report = place.json(&["--ctx", "64", "--chunks", "3", "--threads", "1"]);
    assert_eq!(report["model"], place.folder.path().to_str().unwrap());
    assert_eq!(report["text"], place.path("text.txt").to_str().unwrap());
    let expected = json!({"ctx": 64, "chunks": 3, "score": "second-half", "tokens": 3 * 31, "kv": "f32",
                          "activations": "f32", "threads": 1, "version": env!("CARGO_PKG_VERSION"),
                          "architecture": "llama"});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&report[key], value, "{key}");
    }
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!((number("ppl") - number("nll_mean").exp()).abs() < 1e-9 * number("ppl"));
    assert!((number("ppl_stderr") - number("ppl") * number("nll_stderr")).abs() < 1e-9 * number("ppl"));
    assert!(number("ppl") > 1.0 && number("ppl_stderr") > 0.0 && number("seconds") > 0.0);
    assert_eq!(report["ids_sha256"].as_str().unwrap().len(), 64);
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
}

#[test]
fn options_change_what_they_name_and_nothing_else() {
    let place = Place::new();
    let base = place.json(&["--ctx", "64", "--chunks", "3", "--threads", "1"]);
    let threads = place.json(&["--ctx", "64", "--chunks", "3", "--threads", "3"]);
    assert_eq!((&threads["ppl"], &threads["threads"]), (&base["ppl"], &json!(3)));
    let all = place.json(&["--ctx", "64", "--chunks", "3", "--score", "all"]);
    assert_eq!(all["tokens"], 3 * 63);
    assert_eq!(all["ids_sha256"], base["ids_sha256"]);
}

#[test]
fn caches_are_compared_with_the_exact_one() {
    let place = Place::new();
    let size = ["--ctx", "140", "--chunks", "2", "--threads", "1"];
    let caches = ["--kv", "f32,f16,k=f16,v=f32", "--kv", "f32;sinks=2"];
    let rows = place.rows(&[&size[..], &caches, &["--no-keep"]].concat());
    let specs: Vec<&Value> = rows.iter().map(|row| &row["spec"]).collect();
    assert_eq!(specs, ["f32", "f16", "k=f16,v=f32", "f32;sinks=2"]);
    let exact = place.json(&[&size[..], &["--score", "all"]].concat());
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
        assert_eq!(
            (&row["mode"], &row["tokens"], &row["score"]),
            (&json!("deployed"), &json!(2 * 139), &json!("all"))
        );
        assert_eq!(row["ids_sha256"], exact["ids_sha256"]);
        assert!((number("ppl_reference") / exact["ppl"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        let growth = 100.0 * (number("ppl") / number("ppl_reference") - 1.0);
        assert!((number("dppl_percent") - growth).abs() < 1e-6);
        assert!(
            number("kl_p999") >= number("kl_mean")
                && number("kl_max") >= number("kl_p999")
                && (0.9..=1.0).contains(&number("top1"))
        );
        assert!(number("bits_per_value") >= 16.0 && number("bits_total") >= 16.0);
        // Other sinks, other sums: the same numbers, added up in another order.
        let bound = match row["spec"].as_str().unwrap() {
            "f32" => 0.0,
            "f32;sinks=2" => 1e-9,
            _ => 1e-3,
        };
        assert!((0.0..=bound).contains(&number("kl_mean")), "{row}");
        assert_eq!(number("kl_mean") == 0.0, row["spec"] == "f32", "{row}");
    }

    let strict = place.rows(&[&size[..], &["--kv", "f16", "--strict"]].concat());
    assert_eq!(strict[0]["mode"], "strict");
    let text = place.path("text.txt");
    let arguments = [&size[..], &["--kv", "f16", "--text", text.to_str().unwrap()]].concat();
    let table = String::from_utf8(place.eval(&arguments).stdout).unwrap();
    assert!(table.contains("mean KL") && table.contains("278 compared with an f32 cache"), "{table}");
    let decoded =
        String::from_utf8(place.eval(&[&arguments[..], &["--against", "decoded"]].concat()).stdout).unwrap();
    assert!(
        decoded.contains("compared with the same cache on the CPU, its pages decoded to f32"),
        "{decoded}"
    );
    assert!(table.lines().take(2).all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn without_a_text_the_one_that_comes_with_it_is_used() {
    let place = Place::new();
    let output = place.eval(&["--ctx", "64", "--chunks", "2", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["text"].as_str().unwrap().starts_with("built-in text"), "{report}");
}

#[test]
fn what_was_computed_is_used_again_unless_it_is_damaged() {
    let place = Place::new();
    let arguments = ["--ctx", "140", "--chunks", "2", "--kv", "f16,k=f16,v=f32"];
    let first = place.rows(&arguments);
    let files = |ending: &str| -> Vec<PathBuf> {
        let folders = fs::read_dir(place.path("cache/eval")).unwrap().map(|entry| entry.unwrap().path());
        let files =
            folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        files.filter(|path| path.extension().is_some_and(|e| e == ending)).collect()
    };
    assert_eq!((files("kvref").len(), files("kvcmp").len(), files("part").len()), (2, 4, 0));
    assert_eq!(place.rows(&arguments), first);

    // Another cache is compared with what was kept; a damaged file is computed anew, with a note.
    fs::remove_file(&files("kvcmp")[0]).unwrap();
    let mut bytes = fs::read(&files("kvref")[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&files("kvref")[0], &bytes).unwrap();
    fs::write(&files("kvref")[1], &bytes[..100]).unwrap();
    let text = place.path("text.txt");
    let output =
        place.eval(&[&arguments[..], &["--json", "--kv", "f32", "--text", text.to_str().unwrap()]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("damaged record; it is computed anew") && said.contains("100 bytes where"),
        "{said}"
    );
    let rows: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(rows[..2], first);
    // The reference against itself: what is left is the rounding of what is kept.
    let floor = rows[2]["kl_mean"].as_f64().unwrap();
    assert!((0.0..1e-7).contains(&floor), "{floor}");
}

#[test]
fn speed_and_the_fast_path_stand_beside_the_rest() {
    let place = Place::new();
    let rows = place.rows(&["--ctx", "140", "--chunks", "1", "--kv", "f16,f32", "--fast", "--speed"]);
    let number =
        |row: usize, key: &str| rows[row][key].as_f64().unwrap_or_else(|| panic!("{key} of {}", rows[row]));
    assert_eq!(number(0, "decode_vs_f16"), 1.0);
    assert!(number(1, "decode_vs_f16") > 0.0 && number(1, "decode_ms") > 0.0);
    assert_eq!(number(1, "fast_kl_mean"), number(1, "fast_floor_kl_mean"));
    assert!(number(0, "fast_kl_mean") > 0.0 && number(0, "kl_median") <= number(0, "kl_p999"));
    // Two layers of two kv heads with 16 channels each.
    assert_eq!(number(0, "kv_bytes") * 2.0, number(1, "kv_bytes"));
    let alone = place.eval(&["--speed"]);
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn layers_and_pictures_come_with_the_rest() {
    let place = Place::new();
    let (text, html) = (place.path("text.txt"), place.path("report.html"));
    let arguments =
        ["--ctx", "140", "--chunks", "1", "--kv", "f16", "--layers", "--html", html.to_str().unwrap()];
    let rows = place.rows(&arguments);
    assert_eq!((rows.len(), &rows[1]["caches"][0]["spec"]), (2, &json!("f16")));
    assert!(
        rows[1]["layers"][0]["key_kurtosis"].is_number()
            && rows[1]["caches"][0]["layers"][1]["output_error"].is_number()
    );
    let page = fs::read_to_string(&html).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.matches("<svg").count() == 3,
        "divergence and two of layers"
    );
    let output = place.eval(&[&arguments[..], &["--text", text.to_str().unwrap()]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("f16: errors, layer by layer") && !said.contains('\x1b'), "{said}");
    let nowhere = place.refusal(
        "text.txt",
        &["--ctx", "80", "--chunks", "1", "--kv", "f16", "--html", "no/such/folder.html"],
    );
    assert!(nowhere.contains("no/such/folder.html"), "{nowhere}");
}

#[test]
fn tasks_tell_right_and_as_exact() {
    let place = Place::new();
    let questions = place.path("questions.jsonl");
    fs::write(
        &questions,
        "{\"query\": \"It was the\", \"choices\": [\"best\", \"zebra crossing\"], \"gold\": 0}\n",
    )
    .unwrap();
    let data = questions.to_str().unwrap();
    for (task, rows_expected, more) in [
        ("needle", 6, &["--ctx", "500", "--cases", "1"][..]),
        ("choice", 2, &["--data", data, "--strict"]),
        ("trajectory", 2, &["--ctx", "100", "--cases", "1", "--steps", "8"]),
    ] {
        let arguments = [&["--task", task, "--kv", "f16"][..], more].concat();
        let text = place.path("text.txt");
        let output = place.eval(&[&arguments[..], &["--json", "--text", text.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            (rows.len(), &rows[0]["spec"], &rows[0]["same"]),
            (rows_expected, &json!("f32"), &json!(1.0)),
            "{task}"
        );
        assert!(rows.iter().all(|row| row["task"] == task && row["cases"].as_u64().unwrap() > 0));
        // Others are paired with f16 where it is there, and it with nothing.
        for row in &rows {
            match row["spec"] == "f16" {
                true => assert!(row.get("against").is_none(), "{row}"),
                false => {
                    assert_eq!((&row["against"], row["gained"].is_u64()), (&json!("f16"), true), "{row}");
                    let error = row["difference_stderr"].as_f64().unwrap();
                    assert!(row["difference"].as_f64().unwrap().abs() <= 1.0 && error <= 1.0, "{row}");
                }
            }
        }
    }
    let html = place.path("task.html");
    let report = ["--html", html.to_str().unwrap()];
    let table = place.eval(&[&["--task", "choice", "--data", data, "--kv", "int4"][..], &report].concat());
    let page = fs::read_to_string(&html).unwrap();
    assert!(
        page.matches("<svg").count() == 1 && page.contains("<td>int4</td>") && page.contains("McNemar"),
        "{page}"
    );
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("gained") && table.contains("less that with f32"), "{table}");
    // Bytes are short tokens: a record of lines does not fit into a quarter of what this model was made for.
    let short = place.refusal("text.txt", &["--task", "lines", "--ctx", "500"]);
    assert!(short.contains("125 tokens is too short for this task"), "{short}");
    for task in ["needles", "variables", "words", "calls"] {
        let short = place.refusal("text.txt", &["--task", task, "--ctx", "500"]);
        assert!(short.contains("125 tokens is too short for this task"), "{task}: {short}");
    }
    for task in ["choice", "code"] {
        assert_eq!(place.eval(&["--task", task]).status.code(), Some(2), "{task} without data");
    }
    for task in ["json", "calls", "code"] {
        let strict = place.eval(&["--task", task, "--kv", "f16", "--strict"]);
        assert_eq!(strict.status.code(), Some(2), "{task}");
    }
}

#[test]
fn all_are_the_caches_that_fit_the_model() {
    let place = Place::new();
    let rows = place.rows(&["--ctx", "80", "--chunks", "1", "--all"]);
    assert!(rows.iter().any(|row| row["spec"] == "f16") && rows.iter().all(|row| row["spec"] != "f32"));
}

#[test]
fn people_get_a_table() {
    let place = Place::new();
    let text = place.path("text.txt");
    let output = place.eval(&["--text", text.to_str().unwrap(), "--ctx", "64", "--chunks", "2"]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("windows     2 × 64 tokens, 62 scored (second-half)"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("perplexity") && line.contains('±')), "{table}");
}

#[test]
fn mistakes_are_explained() {
    let place = Place::new();
    let short = place.refusal("text.txt", &[]);
    assert!(short.contains("text.txt: the text has 440 tokens, and 8 × 512 need 4096"), "{short}");
    fs::write(place.path("long.txt"), "word ".repeat(300)).unwrap();
    let beyond = place.refusal("long.txt", &["--ctx", "1024", "--chunks", "1"]);
    assert!(beyond.contains("1024 tokens is beyond the 512"), "{beyond}");
    let absent = place.refusal("absent.txt", &[]);
    assert!(absent.contains("absent.txt: cannot read the text"), "{absent}");

    let planned = place.refusal("text.txt", &["--ctx", "64", "--chunks", "1", "--kv", "klt"]);
    assert!(planned.contains("klt") && planned.contains("plan"), "{planned}");
    let beyond = place.refusal("text.txt", &["--ctx", "64", "--chunks", "1", "--kv", "f16;layers 9:k=f32"]);
    assert!(beyond.contains("layer 9"), "{beyond}");
    let strict = place.eval(&["--text", "x", "--strict"]);
    assert_eq!(strict.status.code(), Some(2));
    for alone in [&["--against", "cpu", "--kv", "int4"][..], &["--against", "cpu", "--device", "gpu"]] {
        let refused = place.eval(alone);
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--kv and --device"));
    }
    let no_spec = place.eval(&["--text", "x", "--kv", "nonsense"]);
    assert_eq!(no_spec.status.code(), Some(2));
}

#[test]
fn a_model_that_is_not_here_names_the_next_step() {
    let place = Place::new();
    let ask = |model: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvant"));
        command.args(["eval", model, "--text"]).arg(place.path("text.txt"));
        let output = command.env("KVANT_CACHE", place.folder.path().join("cache")).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(ask("smollm2-135m").contains("kvant pull smollm2-135m"));
    assert!(ask("nowhere.gguf").contains("nowhere.gguf: no such file"));
}
