//! How products are dealt to threads: which kernel serves how many tokens, and its constants.
//!
//! | kernel | tokens | arithmetic |
//! |---|---|---|
//! | `matmul.wgsl` | up to eight | f32 in the order of `product.wgsl` |
//! | `tile.wgsl` | more | the same bits |
//! | `dots.wgsl` | up to eight, the same bits for each | activations of 16 bits, products of bytes ([`Arithmetic::dots`]) |
//! | `matrices.wgsl` | more | weights and activations of f16, f32 sums by cooperative matrices ([`Arithmetic::matrices`]) |
//!
//! [`Arithmetic::dots`]: crate::Arithmetic::dots
//! [`Arithmetic::matrices`]: crate::Arithmetic::matrices

use crate::arithmetic::Arithmetic;
use crate::device::WORKGROUP_BYTES;

/// Lanes that share the rows of a team, and teams of a workgroup.
pub(crate) const LANES: usize = 32;
pub(crate) const TEAMS: usize = 8;

/// Workgroups that a product should have at least before a team takes two rows, or a tile is a large one: some for every processor of a
/// large card.
const MANY_GROUPS: usize = 256;

/// The most tokens that are multiplied by lanes, and how many of them at once.
pub(crate) const BY_LANES: usize = 8;
const LANE_TOKENS: usize = 4;

/// Outputs of a tile.
const TILE_OUTPUTS: usize = 64;

/// Groups of inputs, of all tokens together, that lie in workgroup memory at once as f32.
const STAGE: usize = 128;

/// Bytes of workgroup memory that a group of a token's numbers takes as integers: high and low bytes, scales and sums.
const DOTS_BYTES: usize = 80;

/// How a product is dealt to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cut {
    /// So many tokens, and rows of a team.
    Lanes { tokens: usize, rows: usize },
    /// The same in integers.
    Dots { tokens: usize, rows: usize },
    /// So many tokens to a thread.
    Tile { tokens: usize },
    /// Matrices of so many rows and columns; tiles of so many of outputs and tokens.
    Matrices { side: usize, tile: usize },
}

/// What a product is to the one who deals it.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub tokens: usize,
    pub outputs: usize,
    pub gated: bool,
    pub visits: bool,
    /// Rows of the tiles that visits were put in.
    pub tile: Option<usize>,
    /// Whether weights are codes that meet integers.
    pub has_codes: bool,
}

impl Cut {
    pub(crate) fn new(of: Demand, arithmetic: Arithmetic) -> Cut {
        let Demand { tokens, outputs, gated, visits, tile, has_codes } = of;
        if let Some(tile) = tile {
            return match arithmetic.matrices {
                Some(side) => Cut::Matrices { side: side as usize, tile },
                None => Cut::Tile { tokens: tile / 8 },
            };
        }
        if tokens > BY_LANES && !visits {
            return match arithmetic.matrices {
                Some(side) => {
                    let large = outputs.div_ceil(128) * tokens.div_ceil(128) >= MANY_GROUPS;
                    Cut::Matrices { side: side as usize, tile: if large { 128 } else { 64 } }
                }
                None => Cut::Tile { tokens: if tokens > 32 { 8 } else { 4 } },
            };
        }
        // Gates come with their ups.
        let is_dots = arithmetic.dots && has_codes;
        let many = outputs >= if is_dots { TEAMS * MANY_GROUPS } else { 2 * TEAMS * MANY_GROUPS };
        let rows = if gated || ((tokens == 1 || visits) && many) { 2 } else { 1 };
        let at_once = [1, 2].into_iter().find(|at_once| *at_once >= tokens || visits);
        let tokens = at_once.unwrap_or(LANE_TOKENS);
        match is_dots {
            true => Cut::Dots { tokens, rows },
            false => Cut::Lanes { tokens, rows },
        }
    }

    /// Outputs and tokens of a workgroup.
    pub(crate) fn per_group(self, gated: bool) -> (usize, usize) {
        match self {
            Cut::Lanes { tokens, rows } | Cut::Dots { tokens, rows } => {
                (TEAMS * if gated { rows / 2 } else { rows }, tokens)
            }
            Cut::Tile { tokens } => (TILE_OUTPUTS, 8 * tokens),
            Cut::Matrices { tile, .. } => (tile, tile),
        }
    }

    /// Groups of inputs that are in workgroup memory at once, of rows of so many; none where a kernel goes group by group.
    pub(crate) fn stage(self, groups: usize) -> Option<usize> {
        match self {
            Cut::Lanes { tokens, .. } => Some(groups.next_multiple_of(LANES).min(STAGE / tokens)),
            Cut::Dots { tokens, rows } => {
                let others = 4 * (33 * TEAMS * rows * tokens + TEAMS * LANES + TEAMS * tokens);
                let room = (WORKGROUP_BYTES as usize - others) / (DOTS_BYTES * tokens) / LANES * LANES;
                Some(groups.div_ceil(groups.div_ceil(room)).next_multiple_of(LANES))
            }
            Cut::Tile { .. } | Cut::Matrices { .. } => None,
        }
    }

    /// Whether integers of a whole row of so many groups are in workgroup memory at once, which is where one token is normed.
    pub(crate) fn norms_in_dots(groups: usize) -> bool {
        Cut::Dots { tokens: 1, rows: 2 }.stage(groups).is_some_and(|stage| groups <= stage)
    }

    pub(crate) fn is_dots(self) -> bool {
        matches!(self, Cut::Dots { .. })
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Cut::Lanes { .. } => "matmul",
            Cut::Dots { .. } => "dots",
            Cut::Tile { .. } => "tile",
            Cut::Matrices { .. } => "matrices",
        }
    }
}

/// The head and the counts of `matrices.wgsl`. `is_wide` where matrices can be loaded from memory of vectors.
pub(crate) fn matrices_text(side: usize, tile: usize, is_wide: bool) -> (String, Vec<(&'static str, usize)>) {
    // Subgroups across outputs and along tokens.
    let (across, along) = (2, 2);
    let threads = 32 * across * along;
    let (half, i, j) = (threads / 2, tile / across / side, tile / along / side);
    let kind = if is_wide { "vec4<f16>" } else { "f16" };
    let mut text = format!(
        "alias Element = {kind};\nalias Sums = coop_mat{side}x{side}<f32, C>;\nalias Weights = coop_mat{side}x{side}<f16, A>;\n\
         alias Inputs = coop_mat{side}x{side}<f16, B>;\nconst WIDE = {}u;\nconst SIDE = {side}u;\nconst ROWS = {tile}u;\n\
         const COLUMNS = {tile}u;\nconst ACROSS = {across}u;\nconst THREADS = {threads}u;\nconst HALF = {half}u;\nconst I = {i}u;\n\
         const J = {j}u;\n",
        if is_wide { 4 } else { 1 },
    );
    for (name, memory) in [("put_weights", "ws"), ("put_x", "xs")] {
        text += &match is_wide {
            true => {
                format!("fn {name}(at: u32, v: vec4<f32>) {{\n    {memory}[at / 4u] = vec4<f16>(v);\n}}\n")
            }
            false => format!(
                "fn {name}(at: u32, v: vec4<f32>) {{\n    {memory}[at] = f16(v.x);\n    {memory}[at + 1u] = f16(v.y);\n    \
                 {memory}[at + 2u] = f16(v.z);\n    {memory}[at + 3u] = f16(v.w);\n}}\n"
            ),
        };
    }
    let counts = vec![
        ("I", i),
        ("J", j),
        ("DEPTH", 32 / side),
        ("ROW_STEPS", tile / half),
        ("X_STEPS", tile * 8 / half),
    ];
    (text, counts)
}
