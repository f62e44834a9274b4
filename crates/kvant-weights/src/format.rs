//! How packed weights lie in memory, so that a product reads them front to back.
//!
//! Sixteen rows make a *panel*, one row to a lane. Along the inputs a panel is a run of *blocks* of 32. In a block,
//! four neighbouring inputs of all rows are one vector of 64 bytes: lane r has inputs 4j … 4j + 3 of row r, which is
//! what an integer dot product meets with four activations in every lane. Eight such *quads* make the block:
//!
//! | bits | bytes of a block | what they are |
//! |---|---|---|
//! | 4 | 4 × 64 | vector v: quad v in the low nibbles, quad v + 4 in the high ones |
//! | 5 | 4 × 64 + 64 | the same, then the fifth bits: a mask of 64 bits per quad |
//! | 6 | 4 × 64 + 2 × 64 | the same, then the fifth bits and the sixth bits |
//! | 8 | 8 × 64 | a vector per quad, each code + 128 |
//!
//! (Files keep the nibbles of inputs i and i + 16 in one byte. That is why quads v and v + 4 share a vector: four
//! bytes of the file go to a lane unchanged.)
//!
//! Scales lie in a second run behind the codes of the panel, so that vectors of codes stay on cache lines. A *unit*
//! of inputs has one f16 scale per row, and one f16 minimum where the format has minima. In units of 256 these are
//! multiplied by a byte per row and group of 16 or 32 inputs, which follow.

use crate::Layout;
use kvant_simd::LANES;

/// Rows of a panel.
pub(crate) const PANEL: usize = LANES;
/// Inputs of a block of codes, and of activations under one scale.
pub(crate) const BLOCK: usize = 32;

/// A packed format. Weight = scale · (code − CENTRE) + minimum.
pub(crate) trait Format: 'static {
    /// Bits of a code.
    const BITS: usize;
    /// Inputs under one f16 scale.
    const UNIT: usize;
    /// Inputs under one scale.
    const GROUP: usize;
    /// What is subtracted from a code; zero where there are minima.
    const CENTRE: i32;
    /// Whether groups have a minimum.
    const MINIMA: bool;
    /// Whether the byte scales of a unit are signed.
    const SIGNED: bool;
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $bits:literal bits, unit $unit:literal, group $group:literal,
        centre $centre:literal, minima $minima:literal, signed $signed:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;
            impl Format for $name {
                const BITS: usize = $bits;
                const UNIT: usize = $unit;
                const GROUP: usize = $group;
                const CENTRE: i32 = $centre;
                const MINIMA: bool = $minima;
                const SIGNED: bool = $signed;
            }
        )*
    };
}
formats! {
    /// Of `Q4_0`.
    F4: 4 bits, unit 32, group 32, centre 8, minima false, signed false;
    /// Of `Q4_1`.
    F4Min: 4 bits, unit 32, group 32, centre 0, minima true, signed false;
    /// Of `Q5_0`.
    F5: 5 bits, unit 32, group 32, centre 16, minima false, signed false;
    /// Of `Q5_1`.
    F5Min: 5 bits, unit 32, group 32, centre 0, minima true, signed false;
    /// Of `Q8_0`.
    F8: 8 bits, unit 32, group 32, centre 128, minima false, signed false;
    /// Of `Q4_K`.
    F4K: 4 bits, unit 256, group 32, centre 0, minima true, signed false;
    /// Of `Q5_K`.
    F5K: 5 bits, unit 256, group 32, centre 0, minima true, signed false;
    /// Of `Q6_K`.
    F6K: 6 bits, unit 256, group 16, centre 32, minima false, signed true;
}

/// Bytes of the codes of a block of a panel.
pub(crate) const fn code_bytes<F: Format>() -> usize {
    BLOCK * PANEL * F::BITS / 8
}

/// f16 vectors of a unit: scales, and minima where there are any.
const fn kinds<F: Format>() -> usize {
    if F::MINIMA { 2 } else { 1 }
}

/// Bytes of the scales of a unit of a panel.
pub(crate) const fn scale_bytes<F: Format>() -> usize {
    let bytes = if F::UNIT == F::GROUP { 0 } else { F::UNIT / F::GROUP * PANEL };
    kinds::<F>() * (2 * PANEL + bytes)
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
        }
    };
}
pub(crate) use with_format;

/// The sizes of a panel of a layout's format.
pub(crate) fn panel_size(layout: Layout, columns: usize) -> PanelSize {
    with_format!(layout, F => PanelSize::of::<F>(columns))
}
