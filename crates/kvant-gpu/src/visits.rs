//! A prompt's visits to experts, sorted on the device: tiles of tokens that share a matrix.
//!
//! The router's list has a visit for every token and place. One workgroup counts the visits of each expert, lays the experts out one after
//! another, cuts each into tiles of as many visits as a product takes at once, and writes down which visits they are. Products of many
//! tokens then go over tiles in place of rows (`wgsl/grouped.wgsl`): a matrix is read once for a tile. In which order visits of one expert
//! lie decides nothing: every row has its own sum.

use crate::buffer::Buffer;
use crate::cut::BY_LANES;
use crate::recorder::Grid;
use crate::run::Run;

/// The fewest visits of a tile.
const LEAST_TILE: usize = 32;

/// Words before the tiles, and of each.
const HEAD: usize = 2;
const TILE_WORDS: usize = 3;

/// Rows that visit matrices, in tiles that share one.
#[derive(Clone, Copy)]
pub(crate) enum VisitTiles<'a> {
    /// As the device sorted them: tiles of so many, and how many there can be at most.
    Sorted { list: &'a Buffer, tokens: usize, count: usize },
    /// Every row of heads has the head's matrix.
    ByHead { heads: usize, tokens: usize, count: usize },
}

/// What tells kernels over tiles apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TileOrder {
    Sorted,
    ByHead { heads: usize },
}

impl<'a> VisitTiles<'a> {
    /// Rows of a tile.
    pub(crate) fn tokens(self) -> usize {
        match self {
            VisitTiles::Sorted { tokens, .. } | VisitTiles::ByHead { tokens, .. } => tokens,
        }
    }

    /// How many tiles there can be.
    pub(crate) fn count(self) -> usize {
        match self {
            VisitTiles::Sorted { count, .. } | VisitTiles::ByHead { count, .. } => count,
        }
    }

    pub(crate) fn order(self) -> TileOrder {
        match self {
            VisitTiles::Sorted { .. } => TileOrder::Sorted,
            VisitTiles::ByHead { heads, .. } => TileOrder::ByHead { heads },
        }
    }

    pub(crate) fn list(self) -> Option<&'a Buffer> {
        match self {
            VisitTiles::Sorted { list, .. } => Some(list),
            VisitTiles::ByHead { .. } => None,
        }
    }
}

/// Bytes of the list of so many visits.
pub(crate) fn list_bytes(visits: usize, experts: usize) -> usize {
    4 * (HEAD + TILE_WORDS * most_tiles(visits, experts, LEAST_TILE) + visits)
}

/// Every expert may have one tile that is not full.
fn most_tiles(visits: usize, experts: usize, tile: usize) -> usize {
    visits / tile + experts.min(visits)
}

impl<'a> Run<'a> {
    /// Whether visits of the pass's rows are put in tiles: where dense products go by tiles too.
    pub(crate) fn tiles_visits(&self) -> bool {
        self.rows > BY_LANES
    }

    /// Rows of a tile where each of `matrices` has so many rows on average: with larger ones half would be padding.
    fn tile_of(&self, rows: usize, matrices: usize) -> usize {
        let is_coarse = self.network.gpu.arithmetic().matrices.is_some();
        let least = if is_coarse { 2 * LEAST_TILE } else { LEAST_TILE };
        if rows > least * matrices { 2 * least } else { least }
    }

    /// Sorts the visits of all rows to these experts.
    pub(crate) fn sorted_visits(&mut self, chosen: usize, experts: usize) -> VisitTiles<'a> {
        let buffers = self.buffers;
        let (routes, list, visits) = (buffers.place("routes").buffer, &buffers.visits, self.rows * chosen);
        let tokens = self.tile_of(visits, experts);
        let count = most_tiles(visits, experts, tokens);
        let kernel = self.network.gpu.kernel_of("group", format!("group {experts}"), || {
            format!("const EXPERTS = {experts}u;\n{}", include_str!("wgsl/group.wgsl"))
        });
        let arguments = [visits, tokens, HEAD + TILE_WORDS * count].map(|n| n as u32);
        self.recorder.dispatch(&kernel, &[routes, list], &arguments, Grid(1, 1, 1));
        VisitTiles::Sorted { list, tokens, count }
    }

    /// Rows of all heads.
    pub(crate) fn head_visits(&self, heads: usize) -> VisitTiles<'a> {
        let tokens = self.tile_of(self.rows, 1);
        VisitTiles::ByHead { heads, tokens, count: heads * self.rows.div_ceil(tokens) }
    }
}
