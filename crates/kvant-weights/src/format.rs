//! How packed weights lie in memory, so that a product reads them front to back.
//!
//! Sixteen rows make a *panel*, one row to a lane. Along the inputs a panel is a run of *blocks* of 32. In a block,
//! four neighbouring inputs of all rows are one vector of 64 bytes: lane r has inputs 4j … 4j + 3 of row r, which is
//! what an integer dot product meets with four activations in every lane. Eight such *quads* make the block:
//!
//! | bits | bytes of a block | what they are |
//! |---|---|---|
//! | 2 | 8 × 16 | 16 bytes per quad: rows 4l … 4l + 3 in the bits 2l and 2l + 1 of its bytes |
//! | 3 | 8 × 16 + 64 | the same, then the third bits: a mask of 64 bits per quad |
//! | 4 | 4 × 64 | vector v: quad v in the low nibbles, quad v + 4 in the high ones |
//! | 5 | 4 × 64 + 64 | the same, then the fifth bits: a mask of 64 bits per quad |
//! | 6 | 4 × 64 + 2 × 64 | the same, then the fifth bits and the sixth bits |
//! | 8 | 8 × 64 | a vector per quad, each code + 128 |
//!
//! (Files keep the nibbles of inputs i and i + 16 in one byte. That is why quads v and v + 4 share a vector: four
//! bytes of the file go to a lane unchanged.)
//!
//! Scales lie in a second run behind the codes of the panel, so that vectors of codes stay on cache lines. A *unit*
//! of inputs has one f16 scale per row, and one f16 minimum where the format has minima; MXFP4 has a byte instead, the
//! exponent of a power of two. In units of 256 these are multiplied by a byte per row and group of 16 or 32 inputs, which
//! follow. A unit of 32 with groups of 16 has two scales; one of 64 has one for both its blocks.
//!
//! Codes of four bits may be numbers of *levels*: a table of sixteen signed bytes, which a shuffle looks up on the way to
//! the dot product. Nothing else of a format changes by that.

use crate::Layout;
use kvant_simd::LANES;

/// Rows of a panel.
pub(crate) const PANEL: usize = LANES;
/// Inputs of a block of codes, and of activations under one scale.
pub(crate) const BLOCK: usize = 32;

/// A packed format. Weight = scale · (code − CENTRE) + minimum, or scale · LEVELS\[code\].
pub(crate) trait Format: 'static {
    /// Bits of a code.
    const BITS: usize;
    /// Inputs under one f16 scale.
    const UNIT: usize;
    /// Inputs under one scale.
    const GROUP: usize;
    /// What is subtracted from a code, or was added to a level, to be a byte without sign; zero where there are minima. A
    /// centre of 128 says that bytes have their full range.
    const CENTRE: i32;
    /// What the codes of a block stand for, where they are no integers themselves.
    const LEVELS: Option<&'static [i8; 16]>;
    /// Whether groups have a minimum.
    const MINIMA: bool;
    /// Whether the byte scales of a unit are signed.
    const SIGNED: bool;
    /// Whether the scale of a unit is a byte e for 2^(e − 128).
    const EXPONENT: bool;
}

/// The levels of IQ4_NL and IQ4_XS: denser near zero, as weights are.
const IQ4: &[i8; 16] = &[-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of a 4-bit float, sign first.
const TWICE_E2M1: &[i8; 16] = &[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $bits:literal bits, unit $unit:literal, group $group:literal, centre $centre:literal
        $(, minima $minima:literal)? $(, signed $signed:literal)? $(, levels $levels:ident)? $(, exponent $exponent:literal)?;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;
            impl Format for $name {
                const BITS: usize = $bits;
                const UNIT: usize = $unit;
                const GROUP: usize = $group;
                const CENTRE: i32 = $centre;
                const LEVELS: Option<&'static [i8; 16]> = formats!(@levels $($levels)?);
                const MINIMA: bool = formats!(@flag $($minima)?);
                const SIGNED: bool = formats!(@flag $($signed)?);
                const EXPONENT: bool = formats!(@flag $($exponent)?);
            }
        )*
    };
    (@flag) => { false };
    (@flag $flag:literal) => { $flag };
    (@levels) => { None };
    (@levels $levels:ident) => { Some($levels) };
}
formats! {
    /// Of `Q4_0`.
    F4: 4 bits, unit 32, group 32, centre 8;
    /// Of `Q4_1`.
    F4Min: 4 bits, unit 32, group 32, centre 0, minima true;
    /// Of `Q5_0`.
    F5: 5 bits, unit 32, group 32, centre 16;
    /// Of `Q5_1`.
    F5Min: 5 bits, unit 32, group 32, centre 0, minima true;
    /// Of `Q8_0`.
    F8: 8 bits, unit 32, group 32, centre 128;
    /// Of `Q2_K`.
    F2K: 2 bits, unit 256, group 16, centre 0, minima true;
    /// Of `Q3_K`.
    F3K: 3 bits, unit 256, group 16, centre 4, signed true;
    /// Of `Q4_K`.
    F4K: 4 bits, unit 256, group 32, centre 0, minima true;
    /// Of `Q5_K`.
    F5K: 5 bits, unit 256, group 32, centre 0, minima true;
    /// Of `Q6_K`.
    F6K: 6 bits, unit 256, group 16, centre 32, signed true;
    /// Of `IQ4_NL`.
    F4Levels: 4 bits, unit 32, group 32, centre 128, levels IQ4;
    /// Of `IQ4_XS`.
    F4LevelsK: 4 bits, unit 256, group 32, centre 128, signed true, levels IQ4;
    /// Of `MXFP4`.
    F4Float: 4 bits, unit 32, group 32, centre 12, levels TWICE_E2M1, exponent true;
    /// Of `int4g16`.
    F4By16: 4 bits, unit 32, group 16, centre 8;
    /// Of `int4g64`: blocks are summed up one by one, under the same scale.
    F4By64: 4 bits, unit 64, group 32, centre 8;
    /// Of `int8g16`.
    F8By16: 8 bits, unit 32, group 16, centre 128;
    /// Of `int8g64`.
    F8By64: 8 bits, unit 64, group 32, centre 128;
}

/// Bits of a code that lie together; those above are masks.
pub(crate) const fn low_bits<F: Format>() -> usize {
    match F::BITS {
        2 | 3 => 2,
        8 => 8,
        _ => 4,
    }
}

/// Whether bytes, as the dot product meets them, have their full range.
pub(crate) const fn is_full<F: Format>() -> bool {
    F::CENTRE == 128
}

/// Bytes of the codes of a block of a panel.
pub(crate) const fn code_bytes<F: Format>() -> usize {
    BLOCK * PANEL * F::BITS / 8
}

/// f16 vectors of a group: scales, and minima where there are any.
const fn kinds<F: Format>() -> usize {
    if F::MINIMA { 2 } else { 1 }
}

/// Whether every group of a unit has a byte that the unit's scale is multiplied with.
pub(crate) const fn has_byte_scales<F: Format>() -> bool {
    F::UNIT == 256
}

/// f16 vectors of a unit.
pub(crate) const fn halves<F: Format>() -> usize {
    kinds::<F>() * if F::UNIT == BLOCK { F::UNIT / F::GROUP } else { 1 }
}

/// Bytes of the scales of a unit of a panel.
pub(crate) const fn scale_bytes<F: Format>() -> usize {
    if F::EXPONENT {
        return PANEL;
    }
    let bytes = if has_byte_scales::<F>() { F::UNIT / F::GROUP * PANEL } else { 0 };
    2 * PANEL * halves::<F>() + kinds::<F>() * bytes
}

/// Where the byte scales of a group are inside the scales of a unit; its byte minima follow them.
pub(crate) const fn group_offset<F: Format>(group: usize) -> usize {
    kinds::<F>() * (2 * PANEL + group * PANEL)
}

/// The sizes of a panel, at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelSize {
    /// Bytes of all codes.
    pub codes: usize,
    /// Bytes of all scales, rounded up to a cache line.
    pub scales: usize,
}

impl PanelSize {
    pub fn of<F: Format>(columns: usize) -> Self {
        let scales = columns / F::UNIT * scale_bytes::<F>();
        Self { codes: columns / BLOCK * code_bytes::<F>(), scales: scales.next_multiple_of(64) }
    }

    pub fn bytes(self) -> usize {
        self.codes + self.scales
    }
}

/// Runs `$body` with `$format` standing for the format of a layout.
macro_rules! with_format {
    ($layout:expr, $format:ident => $body:expr) => {
        match $layout {
            Layout::Q4_0 => {
                type $format = $crate::format::F4;
                $body
            }
            Layout::Q4_1 => {
                type $format = $crate::format::F4Min;
                $body
            }
            Layout::Q5_0 => {
                type $format = $crate::format::F5;
                $body
            }
            Layout::Q5_1 => {
                type $format = $crate::format::F5Min;
                $body
            }
            Layout::Q8_0 => {
                type $format = $crate::format::F8;
                $body
            }
            Layout::Q4K => {
                type $format = $crate::format::F4K;
                $body
            }
            Layout::Q5K => {
                type $format = $crate::format::F5K;
                $body
            }
            Layout::Q6K => {
                type $format = $crate::format::F6K;
                $body
            }
            Layout::Q2K => {
                type $format = $crate::format::F2K;
                $body
            }
            Layout::Q3K => {
                type $format = $crate::format::F3K;
                $body
            }
            Layout::IQ4NL => {
                type $format = $crate::format::F4Levels;
                $body
            }
            Layout::IQ4XS => {
                type $format = $crate::format::F4LevelsK;
                $body
            }
            Layout::MXFP4 => {
                type $format = $crate::format::F4Float;
                $body
            }
            Layout::Int4G16 => {
                type $format = $crate::format::F4By16;
                $body
            }
            Layout::Int4G64 => {
                type $format = $crate::format::F4By64;
                $body
            }
            Layout::Int8G16 => {
                type $format = $crate::format::F8By16;
                $body
            }
            Layout::Int8G64 => {
                type $format = $crate::format::F8By64;
                $body
            }
        }
    };
}
pub(crate) use with_format;

/// The sizes of a panel of a layout's format.
pub(crate) fn panel_size(layout: Layout, columns: usize) -> PanelSize {
    with_format!(layout, F => PanelSize::of::<F>(columns))
}
