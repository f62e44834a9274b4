//! Which cache a model gets: what was asked for, with the numbers of a plan where it takes some.

use super::kv_choice::{KvChoice, PLAN_EXTENSION};
use crate::family::FamilyDefault;
use kvant_cache::{Plan, PlanError, Policy};
use kvant_model::{Checkpoint, Description};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A plan that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// It is not there.
    #[error("{}: no such file; make a plan with `kvant calibrate`", .0.display())]
    Missing(PathBuf),
    /// It cannot be read, or is that of another model.
    #[error("{}: {source}", .path.display())]
    Unusable {
        /// Where it lies.
        path: PathBuf,
        /// Why not.
        source: PlanError,
    },
}

/// Where the plan of a model lies: beside its file, or in its folder.
pub fn plan_path(checkpoint: &Checkpoint) -> PathBuf {
    let path = checkpoint.path();
    match path.is_dir() {
        true => path.join("model").with_extension(PLAN_EXTENSION),
        false => path.with_extension(PLAN_EXTENSION),
    }
}

/// Opens a plan that was made for this model. One that was made with the file's own rotary settings serves others too: what it
/// says about keys and values is less fitting then, and still sound.
///
/// # Errors
/// If it cannot be read, or was made for another model.
pub fn open_plan(path: &Path, checkpoint: &Checkpoint) -> Result<Arc<Plan>, PlanFileError> {
    if !path.exists() {
        return Err(PlanFileError::Missing(path.to_path_buf()));
    }
    let unusable = |source| PlanFileError::Unusable { path: path.to_path_buf(), source };
    let plan = Plan::open(path).map_err(unusable)?;
    let checked = plan.check(&checkpoint.signature().0);
    checked.or_else(|_| plan.check(&checkpoint.file_signature().0)).map_err(unusable)?;
    Ok(Arc::new(plan))
}

/// Plans for one model; the one beside it is opened when it is needed.
pub struct Plans<'c> {
    checkpoint: &'c Checkpoint,
    beside: OnceCell<Option<Arc<Plan>>>,
}

/// How keys and values are kept, and why.
#[derive(Debug, Clone)]
pub struct ChosenPolicy {
    /// The policy, with its plan where it takes numbers from one.
    pub policy: Policy,
    /// For people who ask why.
    pub reason: String,
    /// The plan that decides or lends its numbers.
    pub plan: Option<PathBuf>,
}

impl<'c> Plans<'c> {
    /// Of a model that is here.
    pub fn new(checkpoint: &'c Checkpoint) -> Self {
        Self { checkpoint, beside: OnceCell::new() }
    }

    /// The cache that was asked for, or the model's own: by the plan beside it, or by its family.
    ///
    /// # Errors
    /// If a plan that is needed, or the one beside the model, cannot be used.
    pub fn choose(
        &self,
        asked: Option<&KvChoice>,
        description: &Description,
    ) -> Result<ChosenPolicy, PlanFileError> {
        let family = FamilyDefault::of(description);
        let beside = plan_path(self.checkpoint);
        match asked {
            Some(KvChoice::Plan(path)) => Ok(by_plan(&open_plan(path, self.checkpoint)?, path, "as asked")),
            Some(KvChoice::Policy(policy)) => {
                let reason = format!("asked for; the family's own is {}", family.kv);
                let plan = if policy.needs_plan() { self.beside()? } else { None };
                Ok(match plan {
                    Some(plan) => ChosenPolicy {
                        policy: plan.with(policy),
                        reason: format!("{reason}; its numbers are those of {}", beside.display()),
                        plan: Some(beside),
                    },
                    None => ChosenPolicy { policy: Policy::clone(policy), reason, plan: None },
                })
            }
            Some(KvChoice::Auto) | None => Ok(match self.beside()? {
                Some(plan) => by_plan(plan, &beside, "beside the model"),
                None => ChosenPolicy {
                    policy: family.policy(),
                    reason: format!(
                        "the family's own, {}; `kvant calibrate` would make a plan for this model",
                        family.basis
                    ),
                    plan: None,
                },
            }),
        }
    }

    fn beside(&self) -> Result<Option<&Arc<Plan>>, PlanFileError> {
        if self.beside.get().is_none() {
            let path = plan_path(self.checkpoint);
            let plan = if path.is_file() { Some(open_plan(&path, self.checkpoint)?) } else { None };
            let _ = self.beside.set(plan);
        }
        Ok(self.beside.get().and_then(Option::as_ref))
    }
}

fn by_plan(plan: &Arc<Plan>, path: &Path, why: &str) -> ChosenPolicy {
    ChosenPolicy {
        policy: plan.with(plan.policy()),
        reason: format!("plan {} {why} (made {})", path.display(), plan.made()),
        plan: Some(path.to_path_buf()),
    }
}
