//! Which function multiplies: one per format and instruction set, chosen when a matrix is packed.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
pub(crate) mod product;

use crate::Layout;
use crate::format::{Format, with_format};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use kvant_simd::Amx;
use kvant_simd::{Tier, with_tier};
use product::{Panel, panel};

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
