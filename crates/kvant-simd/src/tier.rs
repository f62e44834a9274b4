//! Which instruction set runs: decided once, forced by an environment variable.

use crate::{MatrixUnit, Simd};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that forces a tier, by its name: `scalar`, `avx2`, `avx512vnni`, `avx512`, `neon-base` or `neon`.
pub const TIER_VARIABLE: &str = "KVANT_SIMD";

/// An instruction-set tier. All tiers exist on all targets as names; [`Tier::available`] lists those that this
/// CPU can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Portable Rust: the oracle, and the fallback.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (Haswell, Zen 1 and later).
    Avx2,
    /// x86-64 with AVX-512 F/BW/DQ/VL and VNNI (Cascade Lake, Cooper Lake).
    Avx512Vnni,
    /// x86-64 with AVX-512 F/BW/DQ/VL, VNNI and VBMI (Ice Lake, Sapphire Rapids, Zen 4 and later).
    Avx512,
    /// AArch64 NEON without the dot-product extension (Cortex-A53 and A72: Raspberry Pi 3 and 4).
    NeonBase,
    /// AArch64 NEON with the dot-product extension (Apple M1, Cortex-A76, Graviton 2 and later).
    Neon,
}

/// A forced tier that does not exist or that this CPU cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value}: {reason}; this machine runs: {available}")]
pub struct TierError {
    variable: &'static str,
    value: String,
    reason: &'static str,
    available: String,
}

impl Tier {
    /// Every tier, slowest first.
    pub const ALL: [Tier; 6] =
        [Tier::Scalar, Tier::Avx2, Tier::Avx512Vnni, Tier::Avx512, Tier::NeonBase, Tier::Neon];

    /// The name used by the environment variable and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            Tier::Avx2 => "avx2",
            Tier::Avx512Vnni => "avx512vnni",
            Tier::Avx512 => "avx512",
            Tier::NeonBase => "neon-base",
            Tier::Neon => "neon",
        }
    }

    /// Whether this CPU can run the tier.
    pub fn is_available(self) -> bool {
        match self {
            Tier::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Vnni => {
                Tier::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => Tier::Avx512Vnni.is_available() && is_x86_feature_detected!("avx512vbmi"),
            #[cfg(target_arch = "aarch64")]
            Tier::NeonBase => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon => Tier::NeonBase.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            _ => false,
        }
    }

    /// The unit that kernels of this tier use for whole blocks of dot products, if there is one.
    pub fn matrix_unit(self) -> Option<&'static str> {
        with_tier!(self, S => {
            type Unit = <S as Simd>::Matrix;
            <Unit as MatrixUnit<S>>::is_there().then_some(<Unit as MatrixUnit<S>>::NAME)
        })
    }

    /// The tiers this CPU can run, slowest first.
    pub fn available() -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(|tier| tier.is_available())
    }

    /// The tier that kernels use: the best available one, or the one that [`TIER_VARIABLE`] names. Decided once
    /// per process.
    ///
    /// # Errors
    /// When the variable names no tier, or one that this CPU cannot run.
    pub fn select() -> Result<Tier, TierError> {
        static CHOICE: OnceLock<Result<Tier, TierError>> = OnceLock::new();
        CHOICE
            .get_or_init(|| match std::env::var(TIER_VARIABLE) {
                Ok(value) if !value.is_empty() => Tier::forced(&value),
                _ => Ok(Tier::available().last().unwrap_or(Tier::Scalar)),
            })
            .clone()
    }

    fn forced(value: &str) -> Result<Tier, TierError> {
        let error = |reason| TierError {
            variable: TIER_VARIABLE,
            value: value.to_owned(),
            reason,
            available: Tier::available().map(Tier::name).collect::<Vec<_>>().join(", "),
        };
        let tier: Tier = value.parse().map_err(|()| error("no such instruction set"))?;
        if tier.is_available() { Ok(tier) } else { Err(error("this CPU cannot run it")) }
    }
}

impl FromStr for Tier {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        Tier::ALL.into_iter().find(|tier| tier.name() == s).ok_or(())
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tier_is_refused_with_the_list() {
        let message = Tier::forced("sse9").unwrap_err().to_string();
        assert!(message.contains("KVANT_SIMD=sse9") && message.contains("scalar"), "{message}");
    }

    #[test]
    fn a_tier_of_another_machine_is_refused() {
        let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        assert!(Tier::forced(foreign).unwrap_err().to_string().contains("cannot run"));
    }

    #[test]
    fn names_round_trip() {
        for tier in Tier::ALL {
            assert_eq!(tier.name().parse(), Ok(tier));
        }
    }
}
