//! Whether a checkpoint is sound, told without running it.

use crate::checkpoint::Checkpoint;
use crate::description::Description;
use crate::error::{LoadError, LoadErrorKind};
use crate::tensor::Tensor;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Something that is wrong with a file, or that kvant cannot use in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The tensor or part it is about.
    pub place: String,
    /// What it is, in words.
    pub what: String,
    /// Whether the file is broken. Otherwise it is only of a kind that kvant does not read.
    pub is_fault: bool,
}

impl Finding {
    /// What an error says of a part: a fault, unless kvant merely does not support it.
    pub fn of(place: &str, error: &LoadError) -> Self {
        let is_fault = error.kind() != LoadErrorKind::Unsupported;
        Self { place: place.to_owned(), what: error.to_string(), is_fault }
    }

    fn fault(place: &str, what: String) -> Self {
        Self { place: place.to_owned(), what, is_fault: true }
    }
}

impl Checkpoint {
    /// Reads everything and tells what is wrong: names, sizes that contradict each other, and
    /// values or scales that are not numbers. The vocabulary and the chat template are checked by `kvant-text`. Directory, sizes and offsets were checked when it was opened. `done` is called with the
    /// number of bytes of each tensor that was read. Takes `threads` threads.
    pub fn findings(&self, threads: usize, done: &(dyn Fn(u64) + Sync)) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(Description::of(self).err().map(|error| Finding::of("architecture", &error)));
        let names: Vec<&str> = self.names().collect();
        let odd = names.iter().filter(|name| name.is_empty() || name.chars().any(char::is_control));
        findings.extend(
            odd.map(|name| {
                Finding::fault(&format!("{name:?}"), "the name has no letters, or controls".into())
            }),
        );
        let next = AtomicUsize::new(0);
        let read = || {
            let mut found = Vec::new();
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.tensor(name) {
                    Ok(tensor) => {
                        found.extend(not_numbers(&tensor).map(|what| Finding::fault(name, what)));
                        done(tensor.bytes().len() as u64);
                        tensor.bytes().release();
                    }
                    Err(error) => found.push(Finding::of(name, &error)),
                }
            }
            found
        };
        let mut values: Vec<Finding> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(read)).collect();
            let joined = |worker: std::thread::ScopedJoinHandle<'_, Vec<Finding>>| match worker.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            workers.into_iter().flat_map(joined).collect()
        });
        values.sort_by(|a, b| a.place.cmp(&b.place));
        findings.extend(values);
        findings.extend(self.intact().err().map(|error| Finding::of("file", &error)));
        findings
    }
}

/// Which values of a tensor are not numbers, if any; a scale that is none makes its whole block so.
fn not_numbers(tensor: &Tensor) -> Option<String> {
    if tensor.dtype().is_integer() || tensor.is_empty() {
        return None;
    }
    let mut row = vec![0.0; tensor.columns()];
    let (mut count, mut first) = (0_usize, None);
    for at in 0..tensor.rows() {
        if let Err(error) = tensor.row_f32(at, &mut row) {
            return Some(error.to_string());
        }
        let bad = row.iter().filter(|value| !value.is_finite()).count();
        if bad > 0 {
            count += bad;
            first = first.or_else(|| Some((at, row.iter().position(|value| !value.is_finite())?)));
        }
    }
    let (row, column) = first?;
    let (all, dtype) = (tensor.len(), tensor.dtype());
    Some(format!(
        "{count} of {all} values ({dtype}) are NaN or infinite, the first in row {row}, column {column}"
    ))
}
