//! One sequence, computed in every way that must not matter.

use crate::Failure;
use crate::subject::{Held, Kind, Row, Share, Subject, set_threads};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Tokens chosen after the prompt.
pub const STEPS: usize = 8;
/// The chunk that divides nothing.
const ODD_CHUNK: usize = 7;
/// Tokens that are read after the prompt and taken back; more than steps.
pub const TAKEN_BACK: usize = 9;

/// What is computed: a prompt, and [`STEPS`] greedy steps after it.
pub struct Goal {
    pub prompt: Vec<u32>,
    /// Another prompt, for the sequence beside it in a batch.
    pub other: Vec<u32>,
    /// The position from which on logits count.
    pub first: usize,
}

impl Goal {
    pub fn end(&self) -> usize {
        self.prompt.len() + STEPS
    }

    /// Room for what any mode holds.
    pub fn capacity(&self) -> usize {
        self.prompt.len() + TAKEN_BACK
    }
}

/// A sequence under way, with the logits of its positions.
pub struct Run<'r> {
    subject: &'r Subject,
    prompt: &'r [u32],
    first: usize,
    pub held: Held,
    pub rows: BTreeMap<usize, Row>,
}

/// What a sequence came to.
#[derive(PartialEq, Eq)]
pub struct Outcome {
    pub logits: [u8; 32],
    pub pages: [u8; 32],
}

impl<'r> Run<'r> {
    pub fn new(subject: &'r Subject, prompt: &'r [u32], first: usize, held: Held) -> Run<'r> {
        Run { subject, prompt, first, held, rows: BTreeMap::new() }
    }

    /// Reads the prompt in chunks and takes greedy steps after it, up to `end` tokens.
    pub fn advance(&mut self, end: usize, chunk: usize) -> Result<(), Failure> {
        while self.held.tokens.len() < end {
            let count = chunk.min(end - self.held.tokens.len());
            let subject = self.subject;
            let rows = subject.pass(&mut [self.share(count)?])?.swap_remove(0);
            self.keep(rows);
        }
        Ok(())
    }

    /// The next tokens: at most `count` of the prompt, or the one that the last logits choose.
    fn share(&mut self, count: usize) -> Result<Share<'_>, Failure> {
        let at = self.held.tokens.len();
        let tokens = if at < self.prompt.len() {
            self.prompt[at..self.prompt.len().min(at.saturating_add(count))].to_vec()
        } else {
            let last = at.checked_sub(1).and_then(|last| self.rows.get(&last));
            vec![last.ok_or("there are no logits to choose a token from")?.best]
        };
        Ok(Share { held: &mut self.held, tokens, wanted: self.first })
    }

    /// Takes the logits of the last tokens held.
    fn keep(&mut self, rows: Vec<Row>) {
        let end = self.held.tokens.len();
        self.rows.extend((end - rows.len()..).zip(rows));
    }

    pub fn outcome(&self) -> Outcome {
        let mut hash = Sha256::new();
        self.rows.values().for_each(|row| hash.update(row.digest));
        Outcome { logits: hash.finalize().into(), pages: self.held.pages() }
    }
}

/// Computes the goal in every mode with each number of threads, and fails where one mode disagrees with the first.
pub fn outcome(
    subject: &Subject,
    kind: &Kind,
    goal: &Goal,
    threads: &[usize],
    folder: &Path,
) -> Result<Outcome, Failure> {
    let mut first: Option<Run<'_>> = None;
    for &threads in threads {
        set_threads(threads);
        let modes: [(&str, Mode); 6] = [
            ("in one chunk", one_chunk),
            ("in chunks of 7", odd_chunks),
            ("batched", batched),
            ("saved and resumed", resumed),
            ("after a prefix hit", prefix_hit),
            ("rolled back", rolled_back),
        ];
        for (name, mode) in modes {
            let run = mode(subject, kind, goal, folder).map_err(|e| format!("{name}: {e}"))?;
            match &first {
                None => first = Some(run),
                Some(first) => agree(first, &run).map_err(|what| {
                    format!("{name}, threads {threads}: {what} than in one chunk: modes must agree")
                })?,
            }
        }
    }
    Ok(first.ok_or("no number of threads was given")?.outcome())
}

type Mode = for<'r> fn(&'r Subject, &Kind, &'r Goal, &Path) -> Result<Run<'r>, Failure>;

/// A mode that begins after a prefix has fewer rows; those it has must be the same.
fn agree(first: &Run<'_>, run: &Run<'_>) -> Result<(), String> {
    if run.held.tokens != first.held.tokens {
        return Err("other tokens".into());
    }
    if let Some((position, _)) = run.rows.iter().find(|(position, row)| first.rows.get(position) != Some(row))
    {
        return Err(format!("other logits at position {position}"));
    }
    match run.held.pages() == first.held.pages() {
        true => Ok(()),
        false => Err("other pages".into()),
    }
}

fn start<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal) -> Result<Run<'r>, Failure> {
    Ok(Run::new(subject, &goal.prompt, goal.first, subject.empty(kind, goal.capacity())?))
}

fn one_chunk<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, _: &Path) -> Result<Run<'r>, Failure> {
    let mut run = start(subject, kind, goal)?;
    run.advance(goal.end(), usize::MAX)?;
    Ok(run)
}

fn odd_chunks<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, _: &Path) -> Result<Run<'r>, Failure> {
    let mut run = start(subject, kind, goal)?;
    run.advance(goal.end(), ODD_CHUNK)?;
    Ok(run)
}

/// Two sequences in every pass, each first in turn.
fn batched<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, _: &Path) -> Result<Run<'r>, Failure> {
    let mut run = start(subject, kind, goal)?;
    let beside = subject.empty(kind, goal.capacity())?;
    let mut beside = Run::new(subject, &goal.other, goal.other.len().saturating_sub(1), beside);
    let half = goal.prompt.len() / 2;
    let mut passes = vec![(half, 1), (usize::MAX, usize::MAX)];
    passes.resize(passes.len() + STEPS, (1, 1));
    for (number, (own, others)) in passes.into_iter().enumerate() {
        let mut shares = [run.share(own)?, beside.share(others)?];
        shares.rotate_left(number % 2);
        let mut rows = subject.pass(&mut shares)?;
        rows.rotate_right(number % 2);
        let [own, others]: [Vec<Row>; 2] = rows.try_into().map_err(|_| "a sequence is missing")?;
        run.keep(own);
        beside.keep(others);
    }
    Ok(run)
}

/// Through a file twice: in the middle of the prompt, and between steps.
fn resumed<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, folder: &Path) -> Result<Run<'r>, Failure> {
    let mut run = start(subject, kind, goal)?;
    let file = folder.join("session.kvant");
    for until in [goal.prompt.len() / 2, goal.prompt.len() + STEPS / 2] {
        run.advance(until, usize::MAX)?;
        subject.save(kind, &run.held, &file)?;
        run.held = subject.resume(kind, goal.capacity(), &file)?;
    }
    run.advance(goal.end(), usize::MAX)?;
    Ok(run)
}

fn prefix_hit<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, _: &Path) -> Result<Run<'r>, Failure> {
    let mut source = start(subject, kind, goal)?;
    source.advance(goal.prompt.len(), usize::MAX)?;
    // The last token is always read: its logits are what the first new one is chosen from.
    let held = subject.hit(&source.held, &goal.prompt[..goal.prompt.len() - 1])?;
    if held.tokens.is_empty() && kind.has_prefixes() {
        return Err("the prefix tree knows nothing of the prompt".into());
    }
    let mut run = Run::new(subject, &goal.prompt, goal.first, held);
    run.advance(goal.end(), usize::MAX)?;
    Ok(run)
}

/// Tokens after the prompt are read and taken back.
fn rolled_back<'r>(subject: &'r Subject, kind: &Kind, goal: &'r Goal, _: &Path) -> Result<Run<'r>, Failure> {
    let mut run = start(subject, kind, goal)?;
    run.advance(goal.prompt.len(), usize::MAX)?;
    let tokens = goal.other[..TAKEN_BACK].to_vec();
    subject.pass(&mut [Share { held: &mut run.held, tokens, wanted: usize::MAX }])?;
    run.held.truncate(goal.prompt.len());
    run.advance(goal.end(), usize::MAX)?;
    Ok(run)
}
