//! How keys and values are asked for: by a spec, by a plan, or by what suits the model.

use kvant_cache::{Policy, PolicyError};
use std::path::PathBuf;
use std::str::FromStr;

/// The ending of plans.
pub const PLAN_EXTENSION: &str = "kvplan";

/// How keys and values are to be kept. Parses from `auto`, `FILE.kvplan`, or a policy.
#[derive(Clone, Debug, PartialEq)]
pub enum KvChoice {
    /// By the plan beside the model, if there is one, else by the model's family.
    Auto,
    /// As this plan says.
    Plan(PathBuf),
    /// Like this; numbers that it needs come from the plan beside the model.
    Policy(Box<Policy>),
}

impl KvChoice {
    /// `auto` or the name of a plan: what can be told from a policy without parsing one.
    pub fn auto_or_plan(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "auto" {
            return Some(Self::Auto);
        }
        let is_plan = text.rsplit_once('.').is_some_and(|(_, ending)| ending == PLAN_EXTENSION);
        is_plan.then(|| Self::Plan(PathBuf::from(text)))
    }
}

impl From<Policy> for KvChoice {
    fn from(policy: Policy) -> Self {
        Self::Policy(Box::new(policy))
    }
}

impl FromStr for KvChoice {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::auto_or_plan(text).map_or_else(|| text.parse().map(Policy::into), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_auto_are_told_from_policies() {
        let choice = |text: &str| text.parse::<KvChoice>().unwrap();
        assert_eq!(choice(" auto "), KvChoice::Auto);
        assert_eq!(choice("folder/a.kvplan"), KvChoice::Plan("folder/a.kvplan".into()));
        let policy: Policy = "int4;layers 0:k=f16".parse().unwrap();
        assert_eq!(choice("int4;layers 0:k=f16"), policy.into());
        assert!("int5".parse::<KvChoice>().unwrap_err().to_string().contains("int5"));
        assert!("kvplan".parse::<KvChoice>().is_err());
    }
}
