//! The flag that says how keys and values are kept: by a spec, or as a plan says.

use kvant_engine::Policy;
use std::path::PathBuf;
use std::str::FromStr;

/// How keys and values are to be kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Kv {
    /// By the plan beside the model, if there is one, else by the model's family.
    Auto,
    /// As this plan says.
    Plan(PathBuf),
    /// Like this; numbers that it needs come from the plan beside the model.
    Policy(Box<Policy>),
}

/// The ending of plans.
pub const PLAN_ENDING: &str = "kvplan";

impl Kv {
    /// What can be told from a policy without parsing one.
    pub fn other_than_policy(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "auto" {
            return Some(Self::Auto);
        }
        let is_plan = text.rsplit_once('.').is_some_and(|(_, ending)| ending == PLAN_ENDING);
        is_plan.then(|| Self::Plan(PathBuf::from(text)))
    }
}

impl FromStr for Kv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(kv) = Self::other_than_policy(text) {
            return Ok(kv);
        }
        text.parse().map(|policy| Self::Policy(Box::new(policy))).map_err(|e| format!("{e}"))
    }
}
