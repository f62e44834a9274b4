//! The flag that names the caches to compare.

use crate::failure::Failure;
use crate::options::kv::{kv_choice, with_guess};
use kvant_codec::KvSpec;
use kvant_engine::open::Plans;
use kvant_engine::{KvChoice, Policy, SparseV, StateType};
use kvant_model::Description;
use std::str::FromStr;

/// Caches by their specs or plans: a list, some of whose members have commas of their own, or one with exceptions for layers
/// and heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Caches(Vec<KvChoice>);

impl Caches {
    /// The caches for a model, each with this threshold for values and these numbers of recurrent state where they are given.
    pub fn policies(
        &self,
        sparse_v: Option<SparseV>,
        state: Option<StateType>,
        plans: &Plans<'_>,
        description: &Description,
    ) -> Result<Vec<Policy>, Failure> {
        let policy = |kv: &KvChoice| {
            let policy = plans.choose(Some(kv), description)?.policy;
            let state = state.unwrap_or(policy.state);
            Ok(Policy { sparse_v: sparse_v.or(policy.sparse_v), state, ..policy })
        };
        self.0.iter().map(policy).collect()
    }
}

impl FromStr for Caches {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Exceptions have commas that mean something else, so what has them stands alone.
        if text.contains(';') {
            return kv_choice(text).map(|kv| Self(vec![kv]));
        }
        // Plans and `auto` stand between commas; what is between two of them is a list of specs.
        let mut found = Vec::new();
        let mut specs: Vec<&str> = Vec::new();
        let take = |specs: &mut Vec<&str>, found: &mut Vec<KvChoice>| {
            if specs.is_empty() {
                return Ok(());
            }
            let joined = specs.join(",");
            let list = KvSpec::parse_list(&joined).map_err(|e| match specs.len() {
                1 => with_guess(&joined, &e.to_string()),
                _ => e.to_string(),
            })?;
            found.extend(list.into_iter().map(|spec| Policy::from(spec).into()));
            specs.clear();
            Ok::<_, String>(())
        };
        for item in text.split(',') {
            match KvChoice::auto_or_plan(item) {
                Some(kv) => {
                    take(&mut specs, &mut found)?;
                    found.push(kv);
                }
                None => specs.push(item),
            }
        }
        take(&mut specs, &mut found)?;
        Ok(Self(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn plans_stand_among_specs() {
        let caches: Caches = "f16,k=ch8,v=tq3,auto,folder/a.kvplan,srft4:g64,lambda".parse().unwrap();
        let spec = |text: &str| text.parse::<KvChoice>().unwrap();
        let plan = KvChoice::Plan(PathBuf::from("folder/a.kvplan"));
        assert_eq!(
            caches.0,
            [spec("f16"), spec("k=ch8,v=tq3"), KvChoice::Auto, plan, spec("srft4:g64,lambda")]
        );
        assert_eq!("int4;layers 0:k=f16".parse::<Caches>().unwrap().0.len(), 1);
        assert!("auto,int5".parse::<Caches>().unwrap_err().contains("int5"));
        assert!("".parse::<Caches>().is_err() && "auto,".parse::<Caches>().is_err());
    }
}
