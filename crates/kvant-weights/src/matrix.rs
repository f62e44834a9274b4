//! A matrix of packed weights.

use crate::Layout;
use crate::activations::{QuantizedActivations, TILE};
use crate::aligned::AlignedBytes;
use crate::format::{PANEL, PanelSize, panel_size, with_format};
use crate::kernel::product::Panel;
use crate::kernel::{self, Product};
use crate::output::Output;
use crate::pack::pack_panel;
use kvant_simd::Tier;
use std::ops::Range;

/// Packed weights, (rows, columns), ready for products with [`QuantizedActivations`].
pub struct Matrix {
    layout: Layout,
    tier: Tier,
    rows: usize,
    columns: usize,
    panel: PanelSize,
    bytes: AlignedBytes, // (panels, panel bytes)
    product: Product,
}

/// Weights that cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Rows that blocks do not fill, or none.
    #[error("{rows} rows of {columns} weights are no matrix of {layout}, whose rows are blocks of {}", .layout.block_len())]
    Shape {
        /// The type.
        layout: Layout,
        /// Rows.
        rows: usize,
        /// Weights of a row.
        columns: usize,
    },
    /// Bytes that are not those of the shape.
    #[error("{rows} rows of {columns} weights in {layout} take {want} bytes, not {got}")]
    Size {
        /// The type.
        layout: Layout,
        /// Rows.
        rows: usize,
        /// Weights of a row.
        columns: usize,
        /// Bytes given.
        got: usize,
        /// Bytes of such a matrix.
        want: usize,
    },
    /// No memory to pack them into.
    #[error("cannot get {bytes} bytes of memory for packed weights: {reason}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system says.
        reason: String,
    },
}

impl Matrix {
    /// Packs `bytes`, the blocks of `rows` rows as a file has them, for products with this tier's instructions.
    ///
    /// # Errors
    /// When the shape is not one of whole blocks, or `bytes` has another size.
    pub fn pack(
        tier: Tier,
        layout: Layout,
        rows: usize,
        columns: usize,
        bytes: &[u8],
    ) -> Result<Self, PackError> {
        let shape = PackError::Shape { layout, rows, columns };
        if rows == 0 || columns == 0 || !columns.is_multiple_of(layout.block_len()) {
            return Err(shape);
        }
        let row_bytes = columns / layout.block_len() * layout.block_bytes();
        let want = rows.checked_mul(row_bytes).ok_or(shape)?;
        if bytes.len() != want {
            return Err(PackError::Size { layout, rows, columns, got: bytes.len(), want });
        }
        let panel = panel_size(layout, columns);
        let size = rows.div_ceil(PANEL) * panel.bytes();
        let mut packed = AlignedBytes::zeroed(size)
            .map_err(|e| PackError::Memory { bytes: size, reason: e.to_string() })?;
        kvant_threads::for_each_chunk(&mut packed, panel.bytes(), |index, out| {
            let first = index * PANEL;
            let own: Vec<&[u8]> =
                (first..rows.min(first + PANEL)).map(|row| &bytes[row * row_bytes..][..row_bytes]).collect();
            with_format!(layout, F => pack_panel::<F>(&own, columns, out));
        });
        let product = kernel::of(layout, tier);
        Ok(Self { layout, tier, rows, columns, panel, bytes: packed, product })
    }

    /// How the file had the weights.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The instructions that multiply.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Width of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Width of what it is multiplied with.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the products with all tokens to `out`, (tokens, rows).
    ///
    /// **Invariant:** a number of `out` depends on its row and its token alone, bit for bit.
    ///
    /// # Panics
    /// When the activations have another width or `out` another size.
    pub fn multiply(&self, x: &QuantizedActivations, out: &mut [f32]) {
        multiply_all(x, &mut [(self, out)]);
    }
}

/// Several products with the same tokens in one parallel region: each matrix with the place of its products, (tokens, rows).
///
/// Queries, keys and values of a layer are such products, and so are the halves of a gated layer. Threads that share one region wait for
/// each other once, and a matrix of few rows leaves none of them idle.
///
/// **Invariant:** the bits are those of [`Matrix::multiply`].
///
/// # Panics
/// When the activations have another width or a place another size.
pub fn multiply_all(x: &QuantizedActivations, products: &mut [(&Matrix, &mut [f32])]) {
    for (matrix, out) in products.iter() {
        assert_eq!(x.columns(), matrix.columns, "activations of another width");
        assert_eq!(out.len(), x.tokens() * matrix.rows, "products of {} tokens", x.tokens());
    }
    if x.tokens() == 0 || products.is_empty() {
        return;
    }
    // The panels of all, one matrix after the other, and where each begins.
    let mut panels = 0;
    let parts: Vec<Part<'_>> = products
        .iter_mut()
        .map(|(matrix, out)| {
            let first = panels;
            panels += matrix.rows.div_ceil(PANEL);
            Part { matrix, first, out: Output::new(out) }
        })
        .collect();
    let (threads, tiles) = (kvant_threads::threads(), x.tokens().div_ceil(TILE));
    // Of many tokens every thread has its own, from one product to the next: they stay in its cache, and all meet the weights.
    let ranges = if tiles >= threads * TILES_PER_THREAD { threads } else { 1 };
    let per_range = tiles.div_ceil(ranges) * TILE;
    // Several tasks to a thread, so that one that is held up does not hold up all.
    let per_task = panels.div_ceil(if ranges > 1 { TASKS_PER_RANGE } else { threads * TASKS_PER_THREAD });
    let in_range = panels.div_ceil(per_task);
    kvant_threads::for_each(ranges * in_range, |task| {
        let (range, task) = (task / in_range, task % in_range);
        let tokens = (range * per_range).min(x.tokens())..((range + 1) * per_range).min(x.tokens());
        if tokens.is_empty() {
            return;
        }
        for panel in task * per_task..panels.min((task + 1) * per_task) {
            let part = &parts[parts.partition_point(|part| part.first <= panel) - 1];
            // SAFETY: no other task has this panel with these tokens.
            unsafe { part.multiply(panel - part.first, x, tokens.clone()) };
        }
    });
}

/// A matrix among several, and where its products go.
struct Part<'a> {
    matrix: &'a Matrix,
    /// Panels before its first.
    first: usize,
    out: Output<'a>,
}

impl Part<'_> {
    /// One panel times some tokens.
    ///
    /// # Safety
    /// Nobody else writes the products of the panel with these tokens; the activations have the matrix's columns.
    unsafe fn multiply(&self, panel: usize, x: &QuantizedActivations, tokens: Range<usize>) {
        let Matrix { rows, columns, panel: size, bytes, product, .. } = self.matrix;
        let own = &bytes[panel * size.bytes()..][..size.bytes()];
        let panel = Panel {
            codes: own.as_ptr(),
            scales: own[size.codes..].as_ptr(),
            columns: *columns,
            rows: PANEL.min(rows - panel * PANEL),
            x,
            tokens,
            // SAFETY: the first token has a place for every row.
            out: unsafe { self.out.at(panel * PANEL) },
            stride: *rows,
        };
        // SAFETY: `kernel::of` gives kernels of available tiers only; the panel has the format's sizes, the activations its columns,
        // and no other task writes to these columns of these tokens' output.
        unsafe { product(&panel) };
    }
}

/// Tiles of tokens for every thread from which threads share the tokens and not the weights: expanding a panel's codes anew for each
/// of them then costs little.
const TILES_PER_THREAD: usize = 6;

/// Tasks that a thread gets on average.
const TASKS_PER_THREAD: usize = 4;

/// The same of many tokens, where a task is long and claiming it costs nothing beside it: a thread that its core serves worse than
/// the others leaves them more of its own.
const TASKS_PER_RANGE: usize = 12;
