//! The canonical form.

use super::{Clause, Policy};
use crate::exact_window::DEFAULT_SINKS;
use crate::recurrent::StateType;
use kvant_codec::KvSpec;
use std::fmt;
use std::ops::RangeInclusive;

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        if self.rule.sinks != DEFAULT_SINKS {
            write!(f, ";sinks={}", self.rule.sinks)?;
        }
        if self.rule.recent != 0 {
            write!(f, ";recent={}", self.rule.recent)?;
        }
        if let Some(threshold) = self.sparse_v {
            write!(f, ";sparse-v={threshold}")?;
        }
        if self.state != StateType::default() {
            write!(f, ";state={}", self.state)?;
        }
        self.clauses.iter().try_for_each(|clause| write!(f, ";{clause}"))
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (word, ranges) in [("layers", &self.layers), ("heads", &self.heads)] {
            if !ranges.is_empty() {
                write!(f, "{space}{word} {}", list(ranges))?;
                space = " ";
            }
        }
        f.write_str(":")?;
        match (&self.key, &self.value) {
            (Some(key), Some(value)) => write!(f, "{}", KvSpec { key: key.clone(), value: value.clone() }),
            (Some(key), None) => write!(f, "k={key}"),
            (None, Some(value)) => write!(f, "v={value}"),
            (None, None) => Ok(()),
        }
    }
}

fn list(ranges: &[RangeInclusive<usize>]) -> String {
    let one = |range: &RangeInclusive<usize>| match (range.start(), range.end()) {
        (start, end) if start == end => start.to_string(),
        (start, end) => format!("{start}-{end}"),
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}
