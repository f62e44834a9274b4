//! What was typed after `cargo xtask`, and the text that teaches it.

use crate::named::NAMED;
use crate::steps::CHECKS;

/// Seconds each fuzz target runs unless `--seconds` says otherwise.
const FUZZ_SECONDS: u32 = 60;

/// What `gpu-check` benches unless `--like` says otherwise: a file of 80 MB.
const GPU_CHECK_MODEL: &str = "smollm2-135m";

/// One chore.
#[derive(Debug, PartialEq)]
pub enum Command {
    Help,
    Test(TestOptions),
    /// Arguments for `cargo test`.
    Aarch64(Vec<String>),
    /// Arguments for `cargo miri test`.
    Miri(Vec<String>),
    /// Arguments for `cargo test`.
    Asan(Vec<String>),
    /// Arguments for `cargo test`.
    Tsan(Vec<String>),
    Fuzz(FuzzOptions),
    /// Tell us how a GPU fares.
    GpuCheck(GpuCheckOptions),
    /// Make what is handed out, for these triples.
    Dist(Vec<String>),
    /// Write the bill of materials.
    Sbom,
    /// Bring all tables up to date.
    Ledger,
    /// Fail when a table of the ledger is not what its figures say.
    LedgerCheck,
    /// Take new figures into the ledger.
    Record(RecordOptions),
}

/// Figures to take in.
#[derive(Debug, PartialEq)]
pub struct RecordOptions {
    /// The file of results, without folder and ending.
    pub name: String,
    /// A file of JSON lines.
    pub lines: String,
    /// The command that made them.
    pub command: String,
}

/// How `test` runs.
#[derive(Debug, Default, PartialEq)]
pub struct TestOptions {
    /// A step that cannot run here counts as failed.
    pub strict: bool,
    /// The steps that take long too.
    pub all: bool,
    /// Only these steps; all of them when empty.
    pub only: Vec<String>,
}

/// How `gpu-check` runs.
#[derive(Debug, PartialEq)]
pub struct GpuCheckOptions {
    /// A part of the adapter's name; the first one without it.
    pub adapter: Option<String>,
    /// The command to bench; built without it.
    pub kvant: Option<String>,
    /// The model whose shape is benched.
    pub like: String,
    /// Leave speed out.
    pub no_bench: bool,
}

/// How `fuzz` runs.
#[derive(Debug, PartialEq)]
pub struct FuzzOptions {
    /// One target, or every one.
    pub target: Option<String>,
    /// Time for each target.
    pub seconds: u32,
}

/// Reads the arguments; the error is one sentence for the person who typed them.
pub fn parse(args: &[String]) -> Result<Command, String> {
    let Some((name, rest)) = args.split_first() else { return Ok(Command::Help) };
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(Command::Help);
    }
    match name.as_str() {
        "help" | "--help" | "-h" => Ok(Command::Help),
        "test" => test_options(rest).map(Command::Test),
        "aarch64" => Ok(Command::Aarch64(rest.to_vec())),
        "miri" => Ok(Command::Miri(rest.to_vec())),
        "asan" => Ok(Command::Asan(rest.to_vec())),
        "tsan" => Ok(Command::Tsan(rest.to_vec())),
        "fuzz" => fuzz_options(rest).map(Command::Fuzz),
        "gpu-check" => gpu_check_options(rest).map(Command::GpuCheck),
        "dist" => dist_options(rest),
        "sbom" if rest.is_empty() => Ok(Command::Sbom),
        "sbom" => Err("`sbom` stands alone".to_string()),
        "ledger" => ledger(rest),
        other => Err(format!("there is no command `{other}`")),
    }
}

fn dist_options(args: &[String]) -> Result<Command, String> {
    match args.iter().find(|arg| !arg.contains('-') || arg.starts_with('-')) {
        Some(other) => Err(format!("`dist` takes triples such as x86_64-unknown-linux-gnu, not `{other}`")),
        None => Ok(Command::Dist(args.to_vec())),
    }
}

fn test_options(args: &[String]) -> Result<TestOptions, String> {
    let mut options = TestOptions::default();
    for arg in args {
        match arg.as_str() {
            "--strict" => options.strict = true,
            "--all" => options.all = true,
            flag if flag.starts_with('-') => {
                return Err(format!("`test` has no option `{flag}` (it has --all and --strict)"));
            }
            name if step_names().any(|known| known == name) => options.only.push(name.to_string()),
            name => {
                let known: Vec<&str> = step_names().collect();
                return Err(format!("there is no step `{name}`; the steps are {}", known.join(", ")));
            }
        }
    }
    if options.all && !options.only.is_empty() {
        return Err("--all and the name of a step contradict each other".to_string());
    }
    Ok(options)
}

/// Every step of `test`, quick and long.
fn step_names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|check| check.name).chain(NAMED.iter().map(|named| named.name))
}

fn ledger(args: &[String]) -> Result<Command, String> {
    match args {
        [] => Ok(Command::Ledger),
        [word] if word == "check" => Ok(Command::LedgerCheck),
        [word, name, lines, command @ ..] if word == "record" && !command.is_empty() => {
            Ok(Command::Record(RecordOptions {
                name: name.clone(),
                lines: lines.clone(),
                command: command.join(" "),
            }))
        }
        _ => Err("`ledger` stands alone, or goes on with `check` or `record NAME ROWS.jsonl COMMAND...`"
            .to_string()),
    }
}

fn gpu_check_options(args: &[String]) -> Result<GpuCheckOptions, String> {
    let mut options =
        GpuCheckOptions { adapter: None, kvant: None, like: GPU_CHECK_MODEL.to_string(), no_bench: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a word after it"));
        match arg.as_str() {
            "--adapter" => options.adapter = Some(value()?),
            "--kvant" => options.kvant = Some(value()?),
            "--like" => options.like = value()?,
            "--no-bench" => options.no_bench = true,
            other => {
                return Err(format!(
                    "`gpu-check` has no option `{other}` (it has --adapter, --kvant, --like and --no-bench)"
                ));
            }
        }
    }
    Ok(options)
}

fn fuzz_options(args: &[String]) -> Result<FuzzOptions, String> {
    let mut options = FuzzOptions { target: None, seconds: FUZZ_SECONDS };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if let Some(value) = arg.strip_prefix("--seconds=") {
            options.seconds = seconds(value)?;
        } else if arg == "--seconds" {
            options.seconds = seconds(args.next().ok_or("--seconds needs a number after it")?)?;
        } else if arg.starts_with('-') {
            return Err(format!("`fuzz` has no option `{arg}` (it has --seconds N)"));
        } else if options.target.is_some() {
            return Err(format!("`fuzz` takes one target at most, `{arg}` is a second one"));
        } else {
            options.target = Some(arg.clone());
        }
    }
    Ok(options)
}

/// Zero is refused because libFuzzer takes it to mean "for ever".
fn seconds(value: &str) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| format!("--seconds needs a whole number above 0, not `{value}`"))
}

/// The text of `cargo xtask help`.
pub fn help() -> String {
    let mut text = String::from(
        "\
cargo xtask test [--all] [--strict] [STEP...]
    Everything a change has to pass. Installs what is missing (rustup components and targets; Debian
    packages through apt-get, with sudo where you are not root), runs every step even after one has
    failed, and closes with a table. A step that cannot run on this system is listed with the reason;
    with --strict, or with CI=true in the environment, that fails the run.
    Naming steps runs only those:
",
    );
    for check in CHECKS {
        text += &format!("        {:<13}{}\n", check.name, check.about);
    }
    text += "    These take long, and run when they are named, or with --all. Each leaves word in docs/results/checks.json
    of what became of it, and the closing table lists those that did not run, with what is known of them:
";
    for named in NAMED {
        text += &format!("        {:<13}{}\n", named.name, named.about);
    }
    text += "
cargo xtask aarch64 [ARGS for cargo test]
    Cross-compiles for 64-bit ARM Linux and runs under qemu. Default: the tests of the kernel crates.
    Example: cargo xtask aarch64 -p kvant-codec --lib simd

cargo xtask miri [ARGS for cargo miri test]
    The portable kernels and the thread pool under Miri (nightly). Default: every verb on small pages
    (tests/memory.rs), and all tests of the pool.

cargo xtask asan [ARGS for cargo test]
    The kernels with AddressSanitizer (nightly), leaks included. Default: all tests of the kernel crates.

cargo xtask tsan [ARGS for cargo test]
    What runs several threads with ThreadSanitizer (nightly, standard library and all). Default: pool, cache, attention,
    scheduler, grammars and server.

cargo xtask fuzz [TARGET] [--seconds N]
    cargo-fuzz on one target of fuzz/fuzz_targets, or on each in turn; N seconds each, 60 by default.
    Installs cargo-fuzz and the nightly toolchain. Seeds are read from fuzz/seeds/TARGET.

cargo xtask gpu-check [--adapter NAME] [--like MODEL] [--kvant PROGRAM] [--no-bench]
    Tells us how kvant fares on a GPU: adapters, every kernel against a naive loop, whole models against the
    oracle, and speed beside the processor's, on the first adapter or the one that has NAME in its name. What
    it found lies in target/gpu-check, as report.json and report.txt; docs/mac.md says where to send them.
    PROGRAM is a kvant with the feature gpu, which is built otherwise; MODEL is one that `kvant synth` knows.

cargo xtask ledger [check | record NAME ROWS.jsonl COMMAND...]
    Makes every table of README.md, BENCHMARKS.md, docs/memory.md and docs/results/*.md from docs/results/*.json.
    With check: writes nothing, fails if one differs, and lists pages whose code has changed since. With record: takes the rows that COMMAND printed (kvant eval
    --json, for instance) into docs/results/NAME.json.

cargo xtask dist [TRIPLE...]
    Everything to hand out in target/dist, for this machine or for each TRIPLE: an archive (command, kvant.h, libkvant, pkg-config, CMake,
    completions, manual pages, a bill of materials), a wheel that carries the command, packages for npm, a Homebrew formula, SHA256SUMS.
    For Linux by zig: x86_64 and aarch64, -unknown-linux-gnu (glibc 2.17 or newer) and -unknown-linux-musl (static, CPUs alone).
    KVANT_DIST_URL is the folder on the web where manifests find the archives.

cargo xtask sbom
    Which crates the command and the library are made of, with versions, licences and checksums: CycloneDX, in
    target/sbom.cdx.json.

Useful in the environment: KVANT_MODELS lists model files, as PATH does, for `test record`, and KVANT_TEXT is
the text they read; CARGO_BUILD_JOBS=1 leaves the machine usable; KVANT_SIMD forces one
instruction set; PROPTEST_CASES sets how many cases each property test tries.
";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_and_help_both_teach() {
        for line in ["", "help", "--help", "-h", "test --help", "fuzz -h"] {
            assert_eq!(parse_line(line), Ok(Command::Help), "{line}");
        }
    }

    #[test]
    fn test_takes_flags_and_step_names() {
        assert_eq!(parse_line("test"), Ok(Command::Test(TestOptions::default())));
        let strict = TestOptions { strict: true, all: true, only: vec![] };
        assert_eq!(parse_line("test --strict --all"), Ok(Command::Test(strict)));
        let only = TestOptions { only: vec!["fmt".into(), "house".into()], ..Default::default() };
        assert_eq!(parse_line("test fmt house"), Ok(Command::Test(only)));
        let long = TestOptions { only: vec!["record".into(), "miri".into()], ..Default::default() };
        assert_eq!(parse_line("test record miri"), Ok(Command::Test(long)));
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_list() {
        let message = parse_line("test fmtt").unwrap_err();
        assert!(message.contains("`fmtt`") && message.contains("clippy"), "{message}");
        assert!(parse_line("test --fast").unwrap_err().contains("--fast"));
        assert!(parse_line("test --all fmt").is_err());
        assert!(parse_line("tset").unwrap_err().contains("tset"));
    }

    #[test]
    fn arguments_for_cargo_pass_unchanged() {
        let args = vec!["-p".to_string(), "kvant-codec".into(), "--lib".into()];
        assert_eq!(parse_line("aarch64 -p kvant-codec --lib"), Ok(Command::Aarch64(args.clone())));
        assert_eq!(parse_line("miri -p kvant-codec --lib"), Ok(Command::Miri(args)));
    }

    #[test]
    fn fuzz_takes_a_target_and_a_time() {
        let fuzz = |target: Option<&str>, seconds| {
            Ok(Command::Fuzz(FuzzOptions { target: target.map(str::to_string), seconds }))
        };
        assert_eq!(parse_line("fuzz"), fuzz(None, FUZZ_SECONDS));
        assert_eq!(parse_line("fuzz spec --seconds 5"), fuzz(Some("spec"), 5));
        assert_eq!(parse_line("fuzz --seconds=7 spec"), fuzz(Some("spec"), 7));
        for line in ["fuzz --seconds", "fuzz --seconds x", "fuzz --seconds 0", "fuzz a b", "fuzz --fast"] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_gpu_is_checked_by_name() {
        let plain =
            GpuCheckOptions { adapter: None, kvant: None, like: GPU_CHECK_MODEL.into(), no_bench: false };
        assert_eq!(parse_line("gpu-check"), Ok(Command::GpuCheck(plain)));
        let named = GpuCheckOptions {
            adapter: Some("apple".into()),
            kvant: Some("kvant".into()),
            like: "llama-3.2-1b".into(),
            no_bench: true,
        };
        let line = "gpu-check --adapter apple --kvant kvant --like llama-3.2-1b --no-bench";
        assert_eq!(parse_line(line), Ok(Command::GpuCheck(named)));
        assert!(parse_line("gpu-check --adapter").is_err() && parse_line("gpu-check apple").is_err());
    }

    #[test]
    fn the_ledger_is_written_or_takes_rows_in() {
        assert_eq!(parse_line("ledger"), Ok(Command::Ledger));
        assert_eq!(parse_line("ledger check"), Ok(Command::LedgerCheck));
        let record =
            RecordOptions { name: "q".into(), lines: "r.jsonl".into(), command: "kvant eval m".into() };
        assert_eq!(parse_line("ledger record q r.jsonl kvant eval m"), Ok(Command::Record(record)));
        assert!(parse_line("ledger record q").is_err() && parse_line("ledger now").is_err());
    }

    #[test]
    fn dist_takes_triples_and_sbom_nothing() {
        assert_eq!(parse_line("dist"), Ok(Command::Dist(vec![])));
        let musl = "x86_64-unknown-linux-musl";
        assert_eq!(parse_line(&format!("dist {musl}")), Ok(Command::Dist(vec![musl.to_string()])));
        assert_eq!(parse_line("sbom"), Ok(Command::Sbom));
        assert!(parse_line("dist now").is_err() && parse_line("sbom now").is_err());
    }

    #[test]
    fn help_names_every_step() {
        let checks = CHECKS.iter().map(|check| (check.name, check.about));
        for (name, about) in checks.chain(NAMED.iter().map(|named| (named.name, named.about))) {
            assert!(help().contains(name) && help().contains(about), "{name}");
        }
    }
}
