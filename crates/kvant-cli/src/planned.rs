//! Which cache a model gets: what was asked for, with the numbers of a plan where it takes some.

use crate::failure::Failure;
use crate::options::{Kv, PLAN_ENDING};
use kvant_engine::{FamilyDefault, Plan, Policy};
use kvant_model::{Checkpoint, Model};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the plan of a model lies: beside its file, or in its folder.
pub fn place(checkpoint: &Checkpoint) -> PathBuf {
    let path = checkpoint.path();
    match path.is_dir() {
        true => path.join("model").with_extension(PLAN_ENDING),
        false => path.with_extension(PLAN_ENDING),
    }
}

/// Plans for one model; the one beside it is opened when it is needed.
pub struct Plans<'c> {
    checkpoint: &'c Checkpoint,
    beside: OnceCell<Option<Arc<Plan>>>,
}

/// How keys and values are kept.
pub struct Chosen {
    pub policy: Policy,
    /// For people who ask why.
    pub reason: String,
    /// The plan that decides or lends its numbers, with its place.
    pub plan: Option<PathBuf>,
}

impl<'c> Plans<'c> {
    pub fn new(checkpoint: &'c Checkpoint) -> Self {
        Self { checkpoint, beside: OnceCell::new() }
    }

    /// The cache that was asked for, or the model's own.
    pub fn choose(&self, asked: Option<&Kv>, model: &Model) -> Result<Chosen, Failure> {
        let family = FamilyDefault::of(model);
        let beside = place(self.checkpoint);
        match asked {
            Some(Kv::Plan(path)) => Ok(by_plan(&open(path, self.checkpoint)?, path, "asked for")),
            Some(Kv::Policy(policy)) => {
                let reason = format!("asked for; the family's own is {}", family.kv);
                let plan = if policy.needs_plan() { self.beside()? } else { None };
                Ok(match plan {
                    Some(plan) => Chosen {
                        policy: plan.with(policy),
                        reason: format!("{reason}; its numbers are those of {}", beside.display()),
                        plan: Some(beside),
                    },
                    None => Chosen { policy: Policy::clone(policy), reason, plan: None },
                })
            }
            Some(Kv::Auto) | None => Ok(match self.beside()? {
                Some(plan) => by_plan(plan, &beside, "it lies beside the model"),
                None => Chosen {
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

    fn beside(&self) -> Result<Option<&Arc<Plan>>, Failure> {
        if self.beside.get().is_none() {
            let path = place(self.checkpoint);
            let plan = if path.is_file() { Some(open(&path, self.checkpoint)?) } else { None };
            let _ = self.beside.set(plan);
        }
        Ok(self.beside.get().and_then(Option::as_ref))
    }
}

/// Opens a plan that was made for this model.
pub fn open(path: &Path, checkpoint: &Checkpoint) -> Result<Arc<Plan>, Failure> {
    if !path.exists() {
        let path = path.display();
        return Err(Failure::new(format!(
            "{path}: no such file; `kvant calibrate` makes a plan for a model"
        )));
    }
    let refuse = |error| Failure::new(format!("{}: {error}", path.display()));
    let plan = Plan::open(path).map_err(refuse)?;
    plan.check(&checkpoint.signature().0).map_err(refuse)?;
    Ok(Arc::new(plan))
}

fn by_plan(plan: &Arc<Plan>, path: &Path, why: &str) -> Chosen {
    Chosen {
        policy: plan.with(plan.policy()),
        reason: format!("as {} says ({why}; made {})", path.display(), plan.made()),
        plan: Some(path.to_path_buf()),
    }
}
