//! The tensors of a file that does not exist yet, from those of one that does.
//!
//! **Invariant:** every number in the two descriptions agrees, or the file is refused with the name of the one that does not; and
//! every row of every tensor comes from exactly one row of the source.

use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::parts::{Form, Part, Parts};
use crate::recipe::Role;
use crate::rows::{Dealt, Made, Rows, Source, Turned};
use kvant_model::error::LoadError;
use kvant_model::{Checkpoint, DType};
use std::collections::HashMap;

/// The most by which numbers may differ, relative to the larger: metadata are f32.
const TOLERANCE: f64 = 1e-5;
/// Numbers below it are nothing: a pair of channels that does not turn has the frequency zero, or one over a huge divisor.
const NOTHING: f64 = 1e-20;

/// A file to be made out of another.
pub(crate) struct Assembly<'a> {
    pub checkpoint: &'a Checkpoint,
    pub importance: Option<&'a Importance>,
    /// What the file that is to be made is, for messages.
    pub what: String,
    /// Where an output goes that has to be apart from the embeddings.
    pub output_name: Option<&'a str>,
}

type Pair<'p> = (&'p Part, &'p Part);

impl Assembly<'_> {
    /// Every tensor, in the order in which the description names them; `dtype` gives a matrix of a role, a row length and a
    /// name its type.
    pub fn tensors(
        &self,
        from: &Parts,
        to: &Parts,
        dtype: impl Fn(Role, usize, &str) -> DType,
    ) -> Result<Vec<Made>> {
        self.agree(from, to)?;
        let untied = self.untied(from, to)?;
        let mut groups: Vec<(&str, Vec<Pair<'_>>)> = Vec::new();
        let mut places = HashMap::new();
        let pairs = from.list.iter().zip(&to.list).chain(untied.as_ref().map(|(from, to)| (from, to)));
        for pair in pairs {
            let name = pair.1.tensor.name.as_str();
            let place = *places.entry(name).or_insert_with(|| {
                groups.push((name, Vec::new()));
                groups.len() - 1
            });
            // Two branches may read the same norm.
            let group = &mut groups[place].1;
            if matches!(pair.1.form, Form::Matrix { .. }) || !group.contains(&pair) {
                group.push(pair);
            }
        }
        groups.into_iter().map(|(name, pairs)| self.made(name, &pairs, &dtype)).collect()
    }

    fn refused(&self, why: &str) -> ConvertError {
        ConvertError::Refused(format!("{} cannot say what this model is: {why}", self.what))
    }

    /// Refuses two descriptions that differ in a number.
    fn agree(&self, from: &Parts, to: &Parts) -> Result<()> {
        for ((what, ours), (other, theirs)) in from.numbers.iter().zip(&to.numbers) {
            if what != other {
                return Err(self.refused(&format!("{what} is where it has {other}")));
            }
            let room = TOLERANCE * ours.abs().max(theirs.abs()) + NOTHING;
            if (ours - theirs).abs() > room {
                return Err(self.refused(&format!("{what} is {ours}, and would be read as {theirs}")));
            }
        }
        let same = from.numbers.len() == to.numbers.len()
            && from.list.len() == to.list.len()
            && from.tied.is_some() == to.tied.is_some();
        if same { Ok(()) } else { Err(self.refused("its parts are others")) }
    }

    /// What a part is multiplied with on the way.
    fn scale(&self, from: f32, to: f32, name: &str) -> Result<f32> {
        if f64::from((from - to).abs()) <= TOLERANCE * f64::from(from.abs().max(to.abs())) {
            return Ok(1.0);
        }
        if to == 1.0 {
            return Ok(from);
        }
        Err(self.refused(&format!("the multiplier of tensor {name:?} is {from}, and would be read as {to}")))
    }

    /// An output that is the embeddings once more, yet multiplied with something else than they are.
    fn untied(&self, from: &Parts, to: &Parts) -> Result<Option<(Part, Part)>> {
        let (Some(ours), Some(theirs)) = (from.tied, to.tied) else { return Ok(None) };
        let (table, wanted) = (&from.list[0], &to.list[0]);
        let of_table = self.scale(table.scale, wanted.scale, &wanted.tensor.name)?;
        let of_output = self.scale(ours, theirs, &wanted.tensor.name)?;
        if of_table == of_output {
            return Ok(None);
        }
        let Some(name) = self.output_name else {
            return Err(
                self.refused("the output is multiplied with another number than the embeddings it is")
            );
        };
        let from = Part { role: Role::Output, scale: of_output, ..table.clone() };
        let mut to = Part { role: Role::Output, scale: 1.0, ..wanted.clone() };
        to.tensor.name = name.to_owned();
        Ok(Some((from, to)))
    }

    fn made(
        &self,
        name: &str,
        pairs: &[Pair<'_>],
        dtype: &impl Fn(Role, usize, &str) -> DType,
    ) -> Result<Made> {
        let layout = || self.refused(&format!("tensor {name:?} has another layout"));
        let first = pairs[0].1;
        let shape = first.tensor.shape.clone();
        let name = name.to_owned();
        let alike = |(from, to): &Pair<'_>| match (&from.form, &to.form) {
            (Form::Matrix { inputs, .. }, Form::Matrix { inputs: wanted, .. }) => inputs == wanted,
            (Form::Vector { width, .. }, Form::Vector { width: wanted, .. }) => width == wanted,
            _ => false,
        };
        if !pairs.iter().all(|pair| pair.0.count == pair.1.count && alike(pair)) {
            return Err(layout());
        }
        let Form::Matrix { transposed, inputs, .. } = first.form else {
            let numbers = self.numbers(pairs, shape.iter().product())?.ok_or_else(layout)?;
            return Ok(Made { name, dtype: DType::F32, shape, rows: Rows::Numbers(numbers) });
        };
        let slices = if first.expert.is_some() { shape[0] } else { 1 };
        let mut by_slice: Vec<Vec<Pair<'_>>> = vec![Vec::new(); slices];
        for pair in pairs {
            by_slice.get_mut(pair.1.expert.unwrap_or(0)).ok_or_else(layout)?.push(*pair);
        }
        let values: usize = shape.iter().product();
        let outputs = values / slices.max(1) / inputs.max(1);
        let mut matrices = Vec::with_capacity(slices);
        for pairs in by_slice {
            matrices.push(self.dealt(&pairs, outputs)?.ok_or_else(layout)?);
        }
        let dtype = dtype(first.role, shape.last().copied().unwrap_or(1), &name);
        let rows = match transposed {
            false => Rows::Matrices(matrices),
            true => Rows::Turned(Turned::new(matrices, inputs)),
        };
        Ok(Made { name, dtype, shape, rows })
    }

    /// The rows of one matrix; `None` where some are missing or there twice.
    fn dealt(&self, pairs: &[Pair<'_>], outputs: usize) -> Result<Option<Dealt>> {
        let mut sources = Vec::with_capacity(pairs.len());
        let mut next = 0;
        let mut in_order = true;
        for (from, to) in pairs {
            let inputs = |part: &Part| match part.form {
                Form::Matrix { inputs, .. } => inputs,
                Form::Vector { .. } => 0,
            };
            let weight = self.importance.and_then(|all| {
                let own = all.of(&from.tensor.name, from.expert, inputs(from));
                // A file may speak of the tensor that is written.
                let theirs = || all.of(&to.tensor.name, to.expert, inputs(to));
                own.or_else(|| theirs().filter(|_| from.form == to.form))
            });
            let weight = weight.filter(|_| !is_transposed(from) && !is_transposed(to));
            let scale = self.scale(from.scale, to.scale, &to.tensor.name)?;
            sources.push(Source::of(from, to, scale, self.checkpoint, weight)?);
            in_order &= matches!(to.rows, crate::parts::Order::Run(first) if first == next);
            next += to.count;
        }
        if next != outputs {
            return Ok(None);
        }
        if in_order {
            return Ok(Some(Dealt { sources, turns: None }));
        }
        const NOBODY: (u32, u32) = (u32::MAX, 0);
        let mut turns = vec![NOBODY; outputs];
        for (source, (_, to)) in (0u32..).zip(pairs) {
            for row in 0..to.count {
                match turns.get_mut(to.rows.at(row)) {
                    Some(place @ &mut NOBODY) => *place = (source, row as u32),
                    _ => return Ok(None),
                }
            }
        }
        Ok(Some(Dealt { sources, turns: Some(turns) }))
    }

    /// The numbers of a vector, `len` in all; `None` where some are missing.
    fn numbers(&self, pairs: &[Pair<'_>], len: usize) -> Result<Option<Vec<f32>>> {
        let mut out = vec![None; len];
        for (from, to) in pairs {
            let stored = stored(from, self.checkpoint)?;
            let scale = self.scale(from.scale, to.scale, &to.tensor.name)?;
            let experts = to.expert.map_or(1, |_| to.tensor.shape.first().copied().unwrap_or(1));
            let first = to.expert.unwrap_or(0) * (len / experts.max(1));
            let Form::Vector { width, .. } = from.form else { return Ok(None) };
            for row in 0..from.count {
                for tap in 0..width {
                    let Some(&x) = stored.get(from.rows.at(row) * width + tap) else { return Ok(None) };
                    let Some(place) = out.get_mut(first + to.rows.at(row) * width + tap) else {
                        return Ok(None);
                    };
                    *place = Some(translated(x, &from.form, &to.form, scale));
                }
            }
        }
        Ok(out.into_iter().collect())
    }
}

fn is_transposed(part: &Part) -> bool {
    matches!(part.form, Form::Matrix { transposed: true, .. })
}

/// All numbers of the vector that a part is of.
fn stored(part: &Part, checkpoint: &Checkpoint) -> std::result::Result<Vec<f32>, LoadError> {
    let tensor = part.tensor.read(checkpoint)?;
    match part.expert {
        Some(expert) => tensor.index(expert)?.to_f32(),
        None => tensor.to_f32(),
    }
}

/// A number of a vector as the other file has it.
fn translated(x: f32, from: &Form, to: &Form, scale: f32) -> f32 {
    let (
        Form::Vector { offset: left_out, is_log, .. },
        Form::Vector { offset: leaves_out, is_log: becomes_log, .. },
    ) = (from, to)
    else {
        return x;
    };
    let x = match (is_log, becomes_log) {
        (true, false) => -x.exp(),
        (false, true) => (-x).ln(),
        _ => x,
    };
    // Not where there is nothing to do: minus zero less zero is another number.
    let x = if left_out == leaves_out { x } else { x + left_out - leaves_out };
    if scale == 1.0 { x } else { x * scale }
}
