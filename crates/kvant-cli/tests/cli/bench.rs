//! `kvant bench`. No test looks at how fast anything was.

use crate::support::Home;
use serde_json::Value;

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn json_has_a_row_for_every_configuration() {
    let home = Home::new();
    let model = home.model();
    let lists = ["-d", "0,30", "--kv", "f16,k=f32,v=f32", "--threads", "1,2"];
    let arguments =
        [&["bench", &model, "--json", "-p", "20", "-n", "3", "-r", "2"], lists.as_slice()].concat();
    let run = home.run(&arguments);
    assert_eq!(run.err, "", "a pipe gets no progress bar");
    let rows = rows(&run.ok());
    assert_eq!(rows.len(), 16);
    for (name, values) in [("test", ["pp", "tg"]), ("kv", ["f16", "f32"])] {
        assert!(values.iter().all(|value| rows.iter().filter(|row| row[name] == *value).count() == 8));
    }
    for (name, values) in [("tokens", [20, 3]), ("depth", [0, 30]), ("threads", [1, 2])] {
        assert!(values.iter().all(|value| rows.iter().filter(|row| row[name] == *value).count() == 8));
    }
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("tok_s_best") >= number("tok_s_median") && number("tok_s_median") > 0.0);
        assert!((number("ms_best") * number("tok_s_best") - 1000.0).abs() < 1e-6);
        assert_eq!(
            (&row["model"], &row["version"]),
            (&model.as_str().into(), &env!("CARGO_PKG_VERSION").into())
        );
        assert!(row["machine"]["cores"].as_u64().unwrap() > 0);
        assert_eq!((&row["architecture"], &row["repetitions"]), (&"qwen2".into(), &2.into()));
    }
}

#[test]
fn the_table_fits_a_terminal_and_fill_leaves_prompts_out() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["bench", &model, "-n", "2", "-d", "0,3000", "-r", "1", "--fill"]).ok();
    assert!(text.contains("tg2") && text.contains("3000") && !text.contains("pp"), "{text}");
    assert!(text.lines().take(3).all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_paced_run_announces_every_step_and_waits() {
    let home = Home::new();
    let model = home.model();
    let one = ["-p", "4", "-n", "2", "-d", "0", "-r", "2", "--kv", "f16"];
    let arguments = [&["bench", &model, "--json", "--paced"], &one[..]].concat();
    let run = home.run_with_input(&arguments, b"\n\n\n\n\n").ok();
    let rows = rows(&run);
    let timed: Vec<bool> = rows.iter().filter_map(|row| row["timed"].as_bool()).collect();
    assert_eq!(timed, [false, true, true, true, true]);
    assert!(rows[1]["next"].as_str().unwrap().starts_with("pp4 at 0, f16"));
    assert_eq!(rows.iter().filter(|row| row["tok_s_best"].is_number()).count(), 2);
    // Without a partner it goes on by itself.
    home.run(&arguments).ok();
    home.run(&["bench", &model, "--paced"]).fails(2, &["--json"]);
}

#[test]
fn a_summary_has_a_row_for_each_precision() {
    let home = Home::new();
    let model = home.model();
    let arguments = ["bench", &model, "--summary", "-p", "20", "-n", "3", "-r", "1", "--threads", "1"];
    let rows = rows(&home.run(&[&arguments[..], &["--json"]].concat()).ok());
    let weights: Vec<&str> = rows.iter().map(|row| row["weights"].as_str().unwrap()).collect();
    assert_eq!(weights[1..], ["int8g32", "int4g32"], "{weights:?}");
    for row in &rows {
        for name in ["prompt_tok_s", "tok_s", "first_token_ms", "load_ms"] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
        let first = row["first_token_ms"].as_f64().unwrap() * row["prompt_tok_s"].as_f64().unwrap();
        assert!((first - 20_000.0).abs() < 1e-3, "{row}");
        assert_eq!((&row["kv"], &row["threads"]), (&"int4".into(), &1.into()));
        assert!(row["machine"]["cores"].as_u64().unwrap() > 0);
        if cfg!(target_os = "linux") {
            assert!(row["memory_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        }
    }
    let text = home.run(&[&arguments[..], &["--weights", "int8", "--kv", "f16"]].concat()).ok();
    assert!(text.contains("int8g32") && !text.contains("int4g32") && text.contains("cache f16"), "{text}");
    assert!(text.lines().take(2).all(|line| line.chars().count() <= 80), "{text}");
    home.run(&["bench", &model, "--summary", "--kv", "f16,int4"]).fails(2, &["--kv"]);
    home.run(&["bench", &model, "--summary", "--fill"]).fails(2, &["--fill"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new();
    let model = home.model();
    let with = |arguments: &[&str]| home.run(&[&["bench", &model], arguments].concat());
    with(&["--kv", "f16,int5"]).fails(2, &["int5"]);
    with(&["--threads", "0"]).fails(2, &["--threads"]);
    with(&["-p", "0", "-n", "0"]).fails(1, &["nothing to time"]);
    home.run(&["bench", "nowhere.gguf"]).fails(1, &["nowhere.gguf"]);
}
