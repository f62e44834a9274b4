//! Which function multiplies: one per format and instruction set, chosen when a matrix is packed.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
pub(crate) mod product;

use crate::Layout;
use crate::format::{Format, with_format};
use kvant_simd::{Tier, with_tier};
use product::{Panel, panel};
use std::sync::OnceLock;

/// Multiplies a panel with tokens.
pub(crate) type Product = unsafe fn(&Panel<'_>);

/// The function for a layout's format.
pub(crate) fn of(layout: Layout, tier: Tier) -> Product {
    with_format!(layout, F => of_format::<F>(tier))
}

fn of_format<F: Format>(tier: Tier) -> Product {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if tier == Tier::Avx512 && *Amx::status() == Amx::Used {
        return amx::tiled::<F>;
    }
    with_tier!(tier, S => panel::<S, F>)
}

/// The environment variable that turns the tile unit off: `KVANT_AMX=off`.
pub const AMX_VARIABLE: &str = "KVANT_AMX";

/// Whether products use the tile unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amx {
    /// They do.
    Used,
    /// The processor has none, or another tier was asked for.
    Absent,
    /// [`AMX_VARIABLE`] says so.
    TurnedOff,
    /// The kernel does not let this program use it, for this reason.
    Refused(String),
}

impl Amx {
    /// Asks once per process.
    pub fn status() -> &'static Amx {
        static STATUS: OnceLock<Amx> = OnceLock::new();
        STATUS.get_or_init(|| {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            if Tier::Avx512.is_available() && amx::is_present() {
                if std::env::var(AMX_VARIABLE).is_ok_and(|value| value == "off") {
                    return Amx::TurnedOff;
                }
                return match amx::permission() {
                    Ok(()) => Amx::Used,
                    Err(error) => Amx::Refused(error.to_string()),
                };
            }
            Amx::Absent
        })
    }
}
