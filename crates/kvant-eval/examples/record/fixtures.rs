//! The tiny checkpoints of every architecture.

use crate::Failure;
use crate::book::{Lines, hex};
use crate::modes::{Goal, TAKEN_BACK, outcome};
use crate::subject::{Kind, Subject};
use std::fs;
use std::path::{Path, PathBuf};

/// Tokens of a prompt: two whole pages, and a third that fills while steps are taken.
const PROMPT: usize = 192;
/// Caches: presets, exact rows beyond the own page, and a streaming window.
const KINDS: [(&str, Option<usize>); 5] =
    [("int4", None), ("int8", None), ("f32", None), ("k8v4;recent=70;sinks=1", None), ("int4", Some(100))];

/// Tokens that depend on `number` and on nothing else.
pub fn tokens(subject: &Subject, number: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7919 + number * 104_729 + 13) % subject.vocabulary()) as u32).collect()
}

/// Records every fixture of a folder.
pub fn record(folder: &Path, scratch: &Path, lines: &mut Lines) -> Result<(), Failure> {
    let mut fixtures = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        fixtures.push(entry?.path());
    }
    fixtures.retain(|path: &PathBuf| path.join("config.json").is_file());
    fixtures.sort();
    if fixtures.is_empty() {
        return Err(format!("{} holds no fixtures", folder.display()).into());
    }
    for path in fixtures {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("fixture {name}");
        let subject = Subject::open(&path).map_err(|e| format!("{name}: {e}"))?;
        let count = subject.position_limit().map_or(PROMPT, |limit| PROMPT.min(limit - TAKEN_BACK));
        let (prompt, other) = (tokens(&subject, 0, count), tokens(&subject, 1, count * 2 / 3));
        let goal = Goal { prompt, other, first: 0 };
        for (policy, streaming) in KINDS {
            let kind = Kind::new(policy, streaming)?;
            let key = format!("fixture {name} {}", kind.name);
            if let Err(refusal) = subject.empty(&kind, goal.capacity()) {
                lines.put(&format!("{key} refused"), refusal.to_string());
                continue;
            }
            let found =
                outcome(&subject, &kind, &goal, &[1, 2], scratch).map_err(|e| format!("{key}: {e}"))?;
            lines.put(&format!("{key} logits"), hex(&found.logits));
            lines.put(&format!("{key} pages"), hex(&found.pages));
        }
    }
    Ok(())
}
