//! A record of what kvant computes, to the bit, and the comparison with it: whoever rebuilds something shows that nothing
//! has changed.
//!
//!     cargo run --release -p kvant-eval --example record -- check docs/results/record.json [--model FILE.gguf …]
//!     cargo run --release -p kvant-eval --example record -- write docs/results/record.json [--model FILE.gguf …]
//!     cargo run --release -p kvant-eval --example record -- sessions FOLDER
//!
//! Recorded are SHA-256 of logits and of encoded pages, of every fixture and of real models, and of how saved sequences of
//! old formats go on; for real models KL figures too. Every sequence is computed in one chunk, in odd chunks, batched, resumed
//! from a file, after a prefix hit and after a rollback, with one and with two threads: where these disagree there is nothing
//! to record. Bits differ between instruction sets, so lines begin with the name of one (`KVANT_SIMD` forces it), and only
//! those of the present one are compared. `--text FILE` is what real models read.
//!
//! `sessions` writes saved sequences in the formats of the present program. Those in the repository are of earlier ones, and
//! stay as they are.

mod book;
mod fixtures;
mod modes;
mod real;
mod sessions;
mod subject;

use book::{Book, Lines};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: record write|check FILE [--fixtures DIR] [--sessions DIR] [--model PATH]… [--text FILE], \
                     or record sessions DIR";

struct Arguments {
    verb: String,
    file: PathBuf,
    fixtures: PathBuf,
    sessions: PathBuf,
    models: Vec<PathBuf>,
    text: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, Failure> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (verb, file) = (words.next().ok_or(USAGE)?, words.next().ok_or(USAGE)?);
        let mut arguments = Arguments {
            verb,
            file: file.into(),
            fixtures: crates.join("kvant-model/tests/fixtures"),
            sessions: crates.join("kvant-engine/tests/fixtures/sessions"),
            models: Vec::new(),
            text: None,
        };
        while let Some(option) = words.next() {
            let value = PathBuf::from(words.next().ok_or(USAGE)?);
            match option.as_str() {
                "--fixtures" => arguments.fixtures = value,
                "--sessions" => arguments.sessions = value,
                "--model" => arguments.models.push(value),
                "--text" => arguments.text = Some(value),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(arguments)
    }

    fn compute(&self) -> Result<Lines, Failure> {
        let mut lines = Lines::new(subject::tier()?);
        let scratch = tempfile::tempdir()?;
        fixtures::record(&self.fixtures, scratch.path(), &mut lines)?;
        sessions::record(&self.fixtures, &self.sessions, scratch.path(), &mut lines)?;
        let text = match &self.text {
            Some(path) => fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?,
            None => subject::own_text().to_owned(),
        };
        for model in &self.models {
            lines.put(
                &format!("model {} text", real::name(model)),
                book::hex(&Sha256::digest(text.as_bytes())),
            );
            real::record(model, &text, scratch.path(), &mut lines)?;
        }
        Ok(lines)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("record: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    match arguments.verb.as_str() {
        "sessions" => sessions::write(&arguments.fixtures, &arguments.file)?,
        "write" => {
            let mut book = Book::open(&arguments.file)?;
            book.replace(arguments.compute()?);
            book.write(&arguments.file)?;
        }
        "check" => {
            let book = Book::read(&arguments.file)?;
            let (compared, differences) = book.compare(&arguments.compute()?);
            differences.iter().for_each(|difference| println!("{difference}"));
            println!("{compared} lines of {} compared, {} differ", subject::tier()?, differences.len());
            if !differences.is_empty() || compared == 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(ExitCode::SUCCESS)
}
