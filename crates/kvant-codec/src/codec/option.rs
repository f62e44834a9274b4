//! The words of options: one table for parsing, printing and error messages.

use super::{GroupSize, Learned, Options, Scaling};
use crate::format::{PageSize, Rotation, ScaleFormat};
use crate::quant::Rule;

/// One word that sets one option.
pub(crate) struct Word {
    /// What is written.
    pub text: &'static str,
    /// The class it belongs to; families list the classes they take.
    pub class: &'static str,
    /// Sets it.
    pub set: fn(&mut Options),
}

const fn word(text: &'static str, class: &'static str, set: fn(&mut Options)) -> Word {
    Word { text, class, set }
}

/// The class of `seed=N`, the only option that is not a word.
pub(crate) const SEED: &str = "seed";

/// Every word, in the order in which they are printed.
pub(crate) static WORDS: [Word; 33] = [
    // First: after a comma it would be the family of that name.
    word("trellis", "body", |o| o.trellis = true),
    word("plain", "rotation", |o| o.rotation = Rotation::Identity),
    word("srht", "rotation", |o| o.rotation = Rotation::Srht),
    word("srft", "rotation", |o| o.rotation = Rotation::Srft),
    word("had64", "rotation", |o| o.rotation = Rotation::Hadamard64),
    word("haar", "rotation", |o| o.rotation = Rotation::Haar),
    word("token", "scaling", |o| o.scaling = Scaling::Token),
    word("g16", "scaling", |o| o.scaling = Scaling::Group(GroupSize::G16)),
    word("g32", "scaling", |o| o.scaling = Scaling::Group(GroupSize::G32)),
    word("g64", "scaling", |o| o.scaling = Scaling::Group(GroupSize::G64)),
    word("g128", "scaling", |o| o.scaling = Scaling::Group(GroupSize::G128)),
    word("ch", "scaling", |o| o.scaling = Scaling::Channel),
    word("chg16", "scaling", |o| o.scaling = Scaling::ChannelGroup(GroupSize::G16)),
    word("chg32", "scaling", |o| o.scaling = Scaling::ChannelGroup(GroupSize::G32)),
    word("chg64", "scaling", |o| o.scaling = Scaling::ChannelGroup(GroupSize::G64)),
    word("chg128", "scaling", |o| o.scaling = Scaling::ChannelGroup(GroupSize::G128)),
    word("sym", "rule", |o| o.rule = Rule::Symmetric),
    word("max", "rule", |o| o.rule = Rule::SignedMax),
    word("asym", "rule", |o| o.rule = Rule::Asymmetric),
    word("fitmax", "rule", |o| o.rule = Rule::FittedMax),
    word("fitasym", "rule", |o| o.rule = Rule::FittedRange),
    word("lm", "rule", |o| o.rule = Rule::LloydMax),
    word("s16", "scales", |o| o.scales = ScaleFormat::F16),
    word("s32", "scales", |o| o.scales = ScaleFormat::F32),
    word("p32", "page", |o| o.page = PageSize::P32),
    word("p64", "page", |o| o.page = PageSize::P64),
    word("p128", "page", |o| o.page = PageSize::P128),
    word("lambda", "lambda", |o| o.lambda = true),
    word("mean", "mean", |o| o.mean = true),
    word("balanced", "balanced", |o| o.balanced = true),
    word("scaled", "learned", |o| o.learned = Some(Learned::Scaled)),
    word("cayley", "learned", |o| o.learned = Some(Learned::Cayley)),
    word("householder", "learned", |o| o.learned = Some(Learned::Householder)),
];

/// The words (and `seed=N`) that turn `from` into `to`, in canonical order; `None` if no words can.
pub(crate) fn difference(from: Options, to: &Options) -> Option<Vec<String>> {
    // A budget is said by the name.
    let mut now = Options { budget: to.budget, ..from };
    let mut words = Vec::new();
    for word in &WORDS {
        let mut with = now;
        (word.set)(&mut with);
        // A word helps when it changes something and the result agrees with the goal where it changed.
        if with != now && class_agrees(word.class, &with, to) && !class_agrees(word.class, &now, to) {
            now = with;
            words.push(word.text.to_owned());
        }
    }
    if now.seed != to.seed {
        now.seed = to.seed;
        words.push(format!("seed={}", to.seed));
    }
    (now == *to).then_some(words)
}

fn class_agrees(class: &str, a: &Options, b: &Options) -> bool {
    match class {
        "rotation" => a.rotation == b.rotation,
        "scaling" => a.scaling == b.scaling,
        "rule" => a.rule == b.rule,
        "scales" => a.scales == b.scales,
        "page" => a.page == b.page,
        "lambda" => a.lambda == b.lambda,
        "mean" => a.mean == b.mean,
        "balanced" => a.balanced == b.balanced,
        "body" => a.trellis == b.trellis,
        "learned" => a.learned == b.learned,
        _ => a.seed == b.seed,
    }
}
