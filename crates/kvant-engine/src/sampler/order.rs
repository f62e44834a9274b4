//! Which steps the chain has, and in which order.

use std::fmt;

/// A step of the chain between the logits and the draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerStep {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// Penalties of repeated sequences.
    Dry,
    /// Cuts logits far below the highest.
    TopNSigma,
    /// Temperature, also the dynamic one.
    Temperature,
    /// Cuts all but the most likely tokens.
    TopK,
    /// Cuts tokens whose surprisal is far from the entropy.
    Typical,
    /// Cuts what is beyond a sum of probabilities.
    TopP,
    /// Cuts what is much less likely than the most likely token.
    MinP,
    /// Sometimes cuts the most likely tokens.
    Xtc,
}

use SamplerStep::*;

impl SamplerStep {
    /// Every step with its name and llama.cpp's letter, in the usual order.
    const ALL: [(Self, &'static str, char); 9] = [
        (Penalties, "penalties", 'e'),
        (Dry, "dry", 'd'),
        (TopNSigma, "top_n_sigma", 's'),
        (Temperature, "temperature", 't'),
        (TopK, "top_k", 'k'),
        (Typical, "typical_p", 'y'),
        (TopP, "top_p", 'p'),
        (MinP, "min_p", 'm'),
        (Xtc, "xtc", 'x'),
    ];

    /// The step of a name; some have several.
    fn named(name: &str) -> Option<Self> {
        let name = match name {
            "typ_p" | "typical" => "typical_p",
            "temp" => "temperature",
            "top_nsigma" => "top_n_sigma",
            name => name,
        };
        Self::ALL.iter().find(|(_, own, _)| *own == name).map(|(step, ..)| *step)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(step, ..)| *step == self).map_or("", |(_, name, _)| name)
    }
}

/// Steps in the order in which they are done. One that is not among them is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOrder {
    steps: [Option<SamplerStep>; 9],
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self::USUAL
    }
}

impl SamplerOrder {
    /// Every step, in the order that the chain documents.
    pub const USUAL: Self = Self {
        steps: [
            Some(Penalties),
            Some(Dry),
            Some(TopNSigma),
            Some(Temperature),
            Some(TopK),
            Some(Typical),
            Some(TopP),
            Some(MinP),
            Some(Xtc),
        ],
    };

    /// The steps.
    pub fn steps(&self) -> impl Iterator<Item = SamplerStep> {
        self.steps.into_iter().flatten()
    }

    /// Reads names with `;` or `,` between them, or llama.cpp's letters; `default` is the usual order.
    ///
    /// # Errors
    /// Names what is not a step, or is there twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "default" {
            return Ok(Self::USUAL);
        }
        let letter = |c: char| SamplerStep::ALL.iter().find(|(_, _, own)| *own == c).map(|(step, ..)| *step);
        let by_letters = || text.chars().map(letter).collect::<Option<Vec<_>>>();
        let names = || text.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
        let is_name = names().any(|name| SamplerStep::named(name).is_some());
        match by_letters().filter(|_| !is_name) {
            Some(steps) => Self::of(&steps),
            None => {
                let step = |name: &str| {
                    let known: Vec<&str> = SamplerStep::ALL.iter().map(|(_, name, _)| *name).collect();
                    let refused = || format!("`{name}` is not a sampler; there are {}", known.join(", "));
                    SamplerStep::named(name).ok_or_else(refused)
                };
                Self::of(&names().map(step).collect::<Result<Vec<_>, _>>()?)
            }
        }
    }

    fn of(given: &[SamplerStep]) -> Result<Self, String> {
        let mut steps = [None; 9];
        for (place, step) in given.iter().enumerate() {
            if given[..place].contains(step) {
                return Err(format!("`{}` is given twice", step.name()));
            }
            steps[place] = Some(*step);
        }
        Ok(Self { steps })
    }
}

impl fmt::Display for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.steps().map(SamplerStep::name).collect();
        f.write_str(&names.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_by_names_and_by_letters() {
        let steps = |text: &str| SamplerOrder::parse(text).map(|order| order.steps().collect::<Vec<_>>());
        assert_eq!(steps("top_k;typ_p;temperature"), Ok(vec![TopK, Typical, Temperature]));
        assert_eq!(steps("kyt"), Ok(vec![TopK, Typical, Temperature]));
        assert_eq!(steps("xtc"), Ok(vec![Xtc]), "a name goes before letters");
        assert_eq!(steps(""), Ok(vec![]));
        assert_eq!(SamplerOrder::parse("default"), Ok(SamplerOrder::USUAL));
        assert_eq!(SamplerOrder::parse(&SamplerOrder::USUAL.to_string()), Ok(SamplerOrder::USUAL));
        assert!(steps("top_k;warmth").unwrap_err().contains("`warmth` is not a sampler"));
        assert!(steps("top_k,top_k").unwrap_err().contains("twice"));
    }
}
