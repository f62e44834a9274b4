//! Real models: logits, pages and KL figures.

use crate::Failure;
use crate::book::{Lines, hex};
use crate::modes::{Goal, outcome};
use crate::subject::{Kind, Subject};
use std::path::Path;

/// Tokens of a prompt: five whole pages and a tail.
const PROMPT: usize = 330;
/// Positions before its end whose logits count: a whole page.
const COUNTED: usize = 64;
/// Keys in the basis that attention sees them in, values rotated.
const PLANNED: &str = "k=klt4.25,v=rot4g32";

/// The name of a model in the record: its file's, without the ending.
pub fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Records one model.
pub fn record(path: &Path, text: &str, scratch: &Path, lines: &mut Lines) -> Result<(), Failure> {
    let name = name(path);
    eprintln!("model {name}");
    let subject = Subject::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let ids = subject.prompt(text, 2 * PROMPT)?;
    if ids.len() < 2 * PROMPT {
        return Err(format!("the text has {} tokens, and {} are needed", ids.len(), 2 * PROMPT).into());
    }
    let (prompt, other) = (ids[..PROMPT].to_vec(), ids[PROMPT..PROMPT * 5 / 3].to_vec());
    let goal = Goal { prompt, other, first: PROMPT - COUNTED };
    let (planned, plan) = subject.planned("klt", PLANNED)?;
    lines.put(&format!("model {name} klt plan"), hex(&plan));
    let kinds = [Kind::new("int4", None)?, Kind::new("int8", None)?, planned];
    for kind in &kinds {
        let key = format!("model {name} {}", kind.name);
        eprintln!("{key}");
        let found = outcome(&subject, kind, &goal, &[2, 1], scratch).map_err(|e| format!("{key}: {e}"))?;
        lines.put(&format!("{key} logits"), hex(&found.logits));
        lines.put(&format!("{key} pages"), hex(&found.pages));
    }
    for (kind, figures) in kinds.iter().zip(subject.figures(&kinds, text)?) {
        lines.put(&format!("model {name} {} strict", kind.name), figures);
    }
    Ok(())
}
