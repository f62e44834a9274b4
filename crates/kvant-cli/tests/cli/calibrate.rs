//! `kvant calibrate`, and what uses its plans.

use crate::support::{Home, model_bytes};

/// A text of the characters that the model knows.
fn text(home: &Home, name: &str, turn: usize) -> String {
    let letters = "the rain in outer lands has turned and stood on line ";
    let words: Vec<&str> = letters.split_inclusive(' ').collect();
    let text: String = (0..900).map(|n| words[(n * n + turn * n / 3) % words.len()]).collect();
    home.write(name, text.as_bytes())
}

fn calibrate(home: &Home, model: &str, more: &[&str]) -> String {
    let text = text(home, "text.txt", 1);
    home.run(&[&["calibrate", model, "--text", &text, "--tokens", "1024"], more].concat()).ok()
}

#[test]
fn the_plan_beside_a_model_is_used_and_said() {
    let home = Home::new();
    let model = home.model();
    let before = home.run(&["run", "-m", &model, "--kv", "auto", "-n", "4", "--greedy", "one"]);
    assert!(before.err.contains("int4: the family's own") && before.err.contains("calibrate"), "{before:?}");

    let told = calibrate(&home, &model, &[]);
    assert!(told.contains("model.kvplan: from 1024 tokens of") && told.contains("bits per value"), "{told}");
    for flags in [&[][..], &["--kv", "auto"], &["--kv", "model.kvplan"]] {
        let run = home.run(&[&["run", "-m", &model, "-n", "4", "--greedy", "one"], flags].concat());
        assert!(run.err.contains("k=klt4.25,v=rot4g32") && run.err.contains("model.kvplan"), "{run:?}");
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    let doctor = home.run(&["doctor", "-m", &model]).ok();
    assert!(doctor.contains("model.kvplan beside the model (made from 1024"), "{doctor}");
    let doctor = home.run(&["doctor", "-m", &model, "--kv", "int4"]).ok();
    assert!(doctor.contains("int4, asked for"), "{doctor}");

    // What memory is foretold for counts the plan.
    let plan = home.run(&["fit", &model, "--ctx", "256", "--json"]).json();
    assert_eq!(plan["caches"][0]["kv"], "k=klt4.25,v=rot4g32", "{plan}");
    let inspect = home.run(&["inspect", &model, "--ctx", "256", "--json"]).json();
    assert!(inspect["memory"]["run"]["plan"].as_u64() > Some(1000), "{inspect}");

    // Other specs that need a plan take their numbers from it, in every command.
    let eval = ["eval", &model, "--text", "text.txt", "--ctx", "128", "--chunks", "1", "--no-keep"];
    let lists = ["auto,k=klt5.5,v=f16,k=rot4:mean,balanced,v=rot4:mean", "--json"];
    let rows = home.run(&[&eval[..], &["--kv"], &lists].concat()).ok();
    assert_eq!(rows.lines().count(), 3, "{rows}");
    let bench = ["bench", &model, "-p", "0", "-n", "2", "-d", "40", "-r", "1", "--kv", "auto,int4"];
    assert!(home.run(&bench).ok().contains("k=klt4.25,v=rot4g32"));
}

#[test]
fn bases_of_fewer_positions_than_the_model_reads_are_told() {
    let home = Home::new();
    let (model, text) = (home.model(), text(&home, "text.txt", 1));
    let run = |more: &[&str]| {
        home.run(&[&["calibrate", &model, "--text", &text, "--tokens", "128"], more].concat())
    };
    let near = run(&[]);
    assert!(near.err.contains("positions below 128") && near.err.contains("--reach"), "{near:?}");
    let far = run(&["--reach", "256"]);
    assert!(far.code == Some(0) && !far.err.contains("--reach"), "{far:?}");
}

#[test]
fn plans_that_are_damaged_or_of_another_model_are_refused() {
    let home = Home::new();
    let model = home.model();
    calibrate(&home, &model, &["-o", "plan.kvplan", "--kv", "k=klt4:p32,v=rot4g32"]);
    assert!(!home.path("model.kvplan").exists());
    let run = |model: &str, plan: &str| home.run(&["run", "-m", model, "--kv", plan, "-n", "1", "x"]);
    run(&model, "plan.kvplan").ok();
    run(&model, "none.kvplan").fails(1, &["none.kvplan", "kvant calibrate"]);
    let mut bytes = std::fs::read(home.path("plan.kvplan")).unwrap();
    home.write("cut.kvplan", &bytes[..bytes.len() - 9]);
    run(&model, "cut.kvplan").fails(1, &["cut.kvplan", "cut off"]);
    bytes[300] ^= 1;
    home.write("flipped.kvplan", &bytes);
    run(&model, "flipped.kvplan").fails(1, &["flipped.kvplan", "checksum"]);
    let other = home.write("other.gguf", &model_bytes(false));
    run(&other, "plan.kvplan").fails(1, &["plan.kvplan", "another model", "kvant calibrate"]);
    // Also where nobody asked for it.
    std::fs::copy(home.path("plan.kvplan"), home.path("other.kvplan")).unwrap();
    home.run(&["run", "-m", &other, "-n", "1", "x"]).fails(1, &["other.kvplan", "another model"]);
}

#[test]
fn a_session_goes_on_under_its_own_plan_alone() {
    let home = Home::new();
    let model = home.model();
    let short = text(&home, "short.txt", 2);
    calibrate(&home, &model, &["-o", "one.kvplan"]);
    home.run(&["calibrate", &model, "-o", "two.kvplan", "--text", &short, "--tokens", "600"]).ok();
    let go_on = |plan: &str| {
        home.run(&["run", "-m", &model, "--session", "talk.kvant", "--kv", plan, "-n", "3", "one"])
    };
    go_on("one.kvplan").ok();
    go_on("one.kvplan").ok();
    go_on("two.kvplan").fails(1, &["talk.kvant"]);
}

#[test]
fn what_cannot_be_calibrated_is_refused_with_the_reason() {
    let home = Home::new();
    let model = home.model();
    let few = home.write("few.txt", b"too short");
    home.run(&["calibrate", &model, "--text", &few])
        .fails(1, &["few.txt", "longer text, or calibrate on fewer tokens"]);
    home.run(&["calibrate", &model, "--kv", "int5"]).fails(2, &["int5"]);
    let text = text(&home, "text.txt", 1);
    let usual = ["calibrate", &model, "--text", &text, "--tokens", "512"];
    let refused =
        |more: &[&str], code, words: &[&str]| home.run(&[&usual[..], more].concat()).fails(code, words);
    refused(
        &["--kv", "k=ch4,v=srft4:cayley"],
        1,
        &["values of kv head 0", "basis learned for it", "--learn"],
    );
    refused(&["--learn", "int4"], 1, &["none of scaled, cayley, householder"]);
    refused(&["--learn", "k=ch4:cayley,v=f16"], 1, &["ch4:cayley", "not for channels"]);
    refused(&["--learn", "srft4:calley"], 2, &["calley"]);
    refused(&["--ranges", "last=3"], 2, &["first=N"]);
}

#[test]
fn what_was_learned_serves_its_codec() {
    let home = Home::new();
    let model = home.model();
    let learn =
        ["--learn", "srft4:cayley,k=sym4:scaled,v=f16", "--ranges", "first=64", "--kv", "srft4:cayley"];
    let told = calibrate(&home, &model, &learn);
    assert!(told.contains("the first 64 positions, learned srft4g32:cayley sym4g32:scaled"), "{told}");
    let eval = ["eval", &model, "--text", "text.txt", "--ctx", "128", "--chunks", "1", "--no-keep", "--json"];
    let rows = home.run(&[&eval[..], &["--kv", "auto,k=sym4:scaled,v=f16,srft4:lambda"]].concat()).ok();
    assert_eq!(rows.lines().count(), 3, "{rows}");
    let other = home.run(&[&eval[..], &["--kv", "srft4:householder"]].concat());
    other.fails(1, &["learned for", "srft4g32:cayley"]);
}

#[test]
fn bits_go_where_they_gain_most() {
    let home = Home::new();
    let model = home.model();
    home.run(&["tune", &model, "--bits", "4"]).fails(1, &["model.kvplan", "kvant calibrate"]);
    calibrate(&home, &model, &[]);
    let spend = |goal: &[&str]| {
        let usual = ["tune", &model, "--text", "text.txt", "--tokens", "192", "--json"];
        home.run(&[&usual[..], goal].concat())
    };
    let searched = spend(&["--bits", "4.2", "-o", "small.kvplan"]);
    assert!(searched.err.contains("the search takes about"), "{searched:?}");
    let small = searched.json();
    let large = spend(&["--bits", "5.4"]).json();
    let number = |json: &serde_json::Value, key: &str| json[key].as_f64().unwrap();
    assert!(number(&small, "bits_per_value") <= 4.2 && number(&large, "bits_per_value") <= 5.4);
    assert!(number(&large, "kl_predicted") < number(&small, "kl_predicted"));
    assert!(number(&large, "kl_measured") < number(&small, "kl_measured"));
    // What was asked for is kept where it is measured.
    let kl = number(&small, "kl_measured");
    let kept = spend(&["--kl", &kl.to_string()]).json();
    assert!(number(&kept, "kl_measured") <= kl && number(&kept, "bits_per_value") < 5.4, "{kept}");
    let run = home.run(&["run", "-m", &model, "-n", "1", "--kv", "small.kvplan", "x"]);
    // A tuned plan has a policy of a kilobyte: its name is shown, once for what it is and once in the closing line.
    assert!(!run.err.contains(small["kv"].as_str().unwrap()), "{run:?}");
    assert!(
        run.err.contains("KV cache: plan small.kvplan") && run.err.contains("KV plan small.kvplan"),
        "{run:?}"
    );
    spend(&["--bits", "1"]).fails(2, &["--bits 1", "at least"]);
    let unreachable = home.run(&["tune", &model, "--text", "text.txt", "--tokens", "193", "--kl", "1e-6"]);
    assert!(!unreachable.err.contains("takes about"), "{unreachable:?}");
    unreachable.fails(1, &["no policy is expected to reach"]);
    for goal in [["--kl", "0"], ["--kl", "nan"], ["--bits", "0.1"], ["--bits", "99"], ["--bits", "nan"]] {
        spend(&goal).fails(2, &[goal[0], "from"]);
    }
    spend(&["--kl", "0.1", "--ram", "1G"]).fails(2, &["--ram"]);
}
