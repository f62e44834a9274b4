//! Plans: from a model and a text to a `.kvplan`, and from a goal to a policy.
//!
//! [`calibrate`] reads the text once with exact keys and values and writes down what every kv head's keys, queries and values are
//! like. What it finds serves every codec that takes numbers from a plan; the policy of the plan is the one that is used when nobody
//! asks for another.
//!
//! [`sensitivities`] measures what it costs to round one side of one layer at a time, and [`policy_for`] spends bits where they gain
//! most: for a number of bits, or for a divergence. [`search`] measures such policies on another part of the text.

mod calibrate;
mod choice;
mod families;
mod learning;
mod search;
mod sensitivity;
mod spending;

pub use calibrate::{PlanError, PlanRequest, Progress, calibrate, calibration_windows};
pub use choice::{Alternative, Goal};
pub use kvant_calibrate::Positions;
pub use search::{Check, SearchWindows, Tried, search, search_windows, spend_bits};
pub use sensitivity::{
    Part, fewest_bits, known_sensitivities, probed_policies, sensitivities, sensitivity_tokens,
};
pub use spending::{Chosen, evened, policy_for, uniform_for};
