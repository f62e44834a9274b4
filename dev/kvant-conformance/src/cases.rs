//! The models that a subject is held to.

use crate::fixture::Fixture;
use crate::policies::CACHES;
use crate::reading::tokens;
use crate::subject::{ModelSet, Subject};
use crate::wide::{self, Group};
use kvant_model::{Checkpoint, Description};

/// A model, and what it is compared with.
pub(crate) struct Case {
    pub name: String,
    pub checkpoint: Checkpoint,
    pub fixture: Option<Fixture>,
    /// Caches that are compared with the CPU's.
    pub caches: &'static [&'static str],
    /// Whether rounding may send a token to another expert: then the median of rows counts.
    pub jumps: bool,
}

impl Case {
    /// Tokens to read: those of the reference first.
    pub fn tokens(&self, count: usize, vocabulary: usize) -> Vec<u32> {
        let mut ids = tokens(count, vocabulary);
        let own = self.fixture.as_ref().map_or_else(Vec::new, |fixture| fixture.sequence(0));
        ids.iter_mut().zip(own).for_each(|(id, own)| *id = own);
        ids
    }

    pub fn description(&self) -> Description {
        Description::of(&self.checkpoint).unwrap()
    }

    pub fn is_recurrent(&self) -> bool {
        self.description().slots.state_slots().next().is_some()
    }
}

/// Caches of fixtures: windows, wider heads, latents and keys that are made of values. `llama` has all.
fn fixture_caches(name: &str) -> &'static [&'static str] {
    match name {
        "llama" => &CACHES,
        "gemma3" => &["int4", "srft4g32", "k=klt4:p64,v=klt5"],
        "mistral" => &["int8", "k=klt5,v=tq4"],
        "qwen3" => &["f16;sinks=6;window=96"],
        "llama_hd" | "gemma4_dense" => &["int4"],
        "deepseek_v3" => &["int8"],
        _ => &[],
    }
}

fn wide_caches(group: Group, first: bool, short: bool) -> &'static [&'static str] {
    match (group, short) {
        (Group::Dense, _) if first => &CACHES,
        (Group::Dense, true) => &["int4", "k8v4"],
        (Group::Dense, false) => {
            &["int4", "int4;sinks=0;recent=100", "int8", "k8v4", "f16;sinks=7;recent=70"]
        }
        (Group::Latents, true) => &["int8", "int4"],
        (Group::Folded, true) => &["int4"],
        (Group::Latents | Group::Folded, false) => &["int8", "int4", "k8v4", "int8;sinks=20;recent=70"],
        (Group::Families | Group::Attending | Group::Recurrent, _) => &[],
    }
}

impl Subject {
    /// Every model that it runs.
    pub(crate) fn cases(&self) -> Vec<Case> {
        match self.models {
            ModelSet::Fixtures => fixtures(self),
            ModelSet::Wide => {
                let case = |(at, (group, name, checkpoint)): (usize, (Group, &str, Checkpoint))| Case {
                    name: name.to_owned(),
                    checkpoint,
                    fixture: None,
                    caches: wide_caches(group, at == 0, self.short),
                    jumps: group != Group::Dense,
                };
                // And the fixtures that are wide enough.
                let others = fixtures(self).into_iter().map(|case| Case { caches: &[], ..case });
                wide::all(self.short).into_iter().enumerate().map(case).chain(others).collect()
            }
        }
    }

    /// The model that caches, pages and memory are tried on.
    pub(crate) fn plain(&self) -> Case {
        let is_plain = |case: &Case| case.caches == CACHES;
        self.cases().into_iter().find(is_plain).expect("a Llama")
    }
}

fn fixtures(subject: &Subject) -> Vec<Case> {
    let all = Fixture::all().into_iter().filter(|fixture| subject.refusal(&fixture.name).is_none());
    let case = |fixture: Fixture| Case {
        name: fixture.name.clone(),
        checkpoint: fixture.checkpoint("config.json").unwrap(),
        caches: fixture_caches(&fixture.name),
        jumps: false,
        fixture: Some(fixture),
    };
    all.map(case).collect()
}
