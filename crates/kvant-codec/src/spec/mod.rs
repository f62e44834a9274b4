//! Codec specs: one grammar for the command line, files, servers and bindings.
//!
//! ```text
//! spec    = part | "k=" part ",v=" part
//! part    = name [bits] [group] [":" option {"," option}]
//! ```
//!
//! A *name* is a [`Family`](crate::Family) (`ch`, `rot`, `srft`, `tq`, `f16` …) with its width, or a preset, of which a side takes its
//! own half: `k=f16,v=int4` has int4's values. `rot4g32` is short for `rot4:g32`. The widths of `klt` and `trellis` are those on
//! average, with up to two decimals: `klt4.25`, which is also what `klt` means. A part on its own is used for both
//! sides, and the options of a preset are for both of its halves: `q4_1:plain`.
//!
//! | class | options |
//! |---|---|
//! | rotation | `plain` `srht` `srft` `had64` `haar` |
//! | scaling | `token` `g16` `g32` `g64` `g128` `ch` `chg16` `chg32` `chg64` `chg128` |
//! | body | `trellis` |
//! | rule | `sym` `max` `asym` `lm` |
//! | scales | `s16` `s32` |
//! | page | `p32` `p64` `p128` |
//! | from a plan | `lambda` `mean` `balanced` |
//! | learned for this very spec, from a plan | `scaled` `cayley` `householder` |
//! | seed | `seed=N` |
//!
//! Printing is canonical: the preset if there is one, else the parts, each with the family that needs the fewest
//! options. What is printed parses back to the same spec.
//!
//! ```
//! use kvant_codec::KvSpec;
//! let spec: KvSpec = "k=ch4,v=rot4g32".parse().unwrap();
//! assert_eq!(spec.to_string(), "int4");
//! let error = "k=ch4,v=rut4".parse::<KvSpec>().unwrap_err();
//! assert_eq!(error.position(), 8);
//! ```

mod catalogue;
mod parse;
mod preset;
mod print;

pub use catalogue::{Shown, catalogue};
pub use parse::SpecError;
pub use preset::{PRESETS, Preset};

pub use crate::codec::CodecSpec;

use crate::error::BuildError;
use crate::format::Side;
use std::str::FromStr;

/// The codecs of keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Keys.
    pub key: CodecSpec,
    /// Values.
    pub value: CodecSpec,
}

impl KvSpec {
    /// The same codec on both sides.
    pub fn both(codec: CodecSpec) -> KvSpec {
        KvSpec { key: codec.clone(), value: codec }
    }

    /// The codec of a side.
    pub fn side(&self, side: Side) -> &CodecSpec {
        match side {
            Side::Key => &self.key,
            Side::Value => &self.value,
        }
    }

    /// Mean bits per value over keys and values for heads of `dim` channels, everything counted.
    ///
    /// # Errors
    /// As [`CodecSpec::build`].
    pub fn bits_per_value(&self, dim: usize) -> Result<f64, BuildError> {
        Ok(0.5 * (self.key.bits_per_value(Side::Key, dim)? + self.value.bits_per_value(Side::Value, dim)?))
    }

    /// Parses a list such as `f16,int4,k=ch8,v=tq3,srft4:g64,lambda`: after a comma, an option goes on with the spec
    /// before it, `v=` with the `k=` before it, and anything else starts a new spec.
    ///
    /// # Errors
    /// Points at the first offending character of the whole list.
    pub fn parse_list(text: &str) -> Result<Vec<KvSpec>, SpecError> {
        parse::list(text)
    }
}

impl FromStr for KvSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<KvSpec, SpecError> {
        parse::whole(text)
    }
}
