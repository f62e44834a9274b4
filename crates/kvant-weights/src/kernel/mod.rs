//! Which function multiplies: one per format and instruction set, chosen when a matrix is packed.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
pub(crate) mod product;

use crate::Layout;
use crate::format::{Format, with_format};
use kvant_simd::Tier;
use product::{Panel, panel};

/// Multiplies a panel with tokens.
pub(crate) type Product = unsafe fn(&Panel<'_>);

/// The function for a layout's format.
pub(crate) fn of(layout: Layout, tier: Tier) -> Product {
    with_format!(layout, F => of_format::<F>(tier))
}

fn of_format<F: Format>(tier: Tier) -> Product {
    match tier {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Tier::Avx512 if *amx::Amx::status() == amx::Amx::Used => amx::tiled::<F>,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 if tier.is_available() => panel::<kvant_simd::Avx512, F>,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 if tier.is_available() => panel::<kvant_simd::Avx2, F>,
        #[cfg(target_arch = "aarch64")]
        Tier::Neon if tier.is_available() => panel::<kvant_simd::Neon, F>,
        _ => panel::<kvant_simd::Scalar, F>,
    }
}
