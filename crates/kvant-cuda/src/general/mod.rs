//! Slots of any codec: what has no kernels of its own is read by one that knows formats as data (`kernels/general.cuh`, `kernels/form.cuh`).
//!
//! A tile of 64 tokens is made of a page's bytes in shared memory, in the codec's basis, and multiplied there. Queries are turned into the basis of keys
//! and sums of values back by a matrix, whatever the basis is made of; a page that is the sum of two (`turbo`) is a vector of twice as many channels.
//! Exact rows lie as everywhere on the card, pages of codes as their formats say. Encoders follow the CPU's arithmetic step by step
//! (`kernels/general_encode.cu`, `kernels/trellis_encode.cu`).

mod bases;
mod form;
mod params;
mod run;

pub(crate) use bases::Bases;

use crate::buffer::Buffer;
use crate::cache::{CacheUnsupported, LayoutPages, SlotPages};
use crate::device::{CudaGpu, OpenError};
use crate::jobs::JobsPlan;
use crate::layout::{DIMS, PAGE_TOKENS};
use crate::pages::CudaPages;
use crate::params::Address;
use crate::pass::PassPlan;
use crate::program::Reading;
use crate::units::Units;
use form::{Encoders, Formed, PageForm};
use kvant_cache::{KvShape, PageKind, PageUse, SideCodecs, SideKinds, SlotLayout};
use kvant_codec::{Element, PageCodec, PageFormat, Side};
use std::sync::Arc;

/// Columns of an item: of two CTAs of the wider kernel.
const COLUMNS: usize = 64;

/// The most bytes that tiles of a layer take; beyond them they are made where they are read.
const MOST_TILES: usize = 1 << 30;

/// Jobs that encoders have memory for at once.
const JOBS: usize = 128;

/// How a slot of any codec is kept.
pub(crate) struct GeneralPages {
    /// `PageForm`, (kv_heads, keys and values), and of exact rows, (keys and values).
    forms: Buffer,
    exact_forms: Buffer,
    tables: Address,
    /// Kinds of pages of codes, by kv head.
    closed: Vec<[PageKind; 2]>,
    /// Channels of keys and of values in their bases, in whole 64s.
    widths: [usize; 2],
    encoders: [Encoders; 2],
    /// What exact keys and values are: 0 for f16, 1 for f32, 2 for bf16.
    pub(crate) elements: [i32; 2],
    /// Floats that the encoder of a page has for itself.
    room: usize,
}

/// Bytes that a pass over such slots needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GeneralNeeds {
    pub queries: usize,
    pub bias: usize,
    pub encode: usize,
    pub tiles: usize,
}

/// Tiles that a pass makes.
struct NeededTiles {
    seat: usize,
    first: usize,
    units: usize,
    bytes: usize,
}

/// Memory of passes over such slots: queries in the basis of keys (rows, heads, width) f16, their products with the mean (rows, heads) f32, rows of pages
/// that are encoded, tiles of a pass of many tokens.
pub(crate) struct GeneralBuffers {
    pub queries: Buffer,
    pub bias: Buffer,
    pub encode: Buffer,
    pub tiles: Buffer,
}

impl GeneralBuffers {
    pub(crate) fn new(card: &Arc<CudaGpu>) -> Result<GeneralBuffers, OpenError> {
        let none = || Buffer::new(card, 0);
        Ok(GeneralBuffers { queries: none()?, bias: none()?, encode: none()?, tiles: none()? })
    }
}

impl GeneralPages {
    /// The kinds of a kv head's pages of codes.
    pub(crate) fn closed(&self, head: usize) -> [PageKind; 2] {
        self.closed[head]
    }

    /// What a pass has to know of an attention over this slot.
    pub(crate) fn reading(&self, of: Reading, group: usize) -> Reading {
        // Pages are made into tiles once for all columns, so items are short and columns many, as of latents.
        Reading { tile: (COLUMNS / group).max(1), wide_tile: 0, width: self.widths[1], latents: true, ..of }
    }

    /// Bytes of the tile of a unit of both sides.
    fn tile_bytes(&self, slot: &SlotPages) -> usize {
        2 * slot.units.tokens * (self.widths[0] + self.widths[1] + 16)
    }

    /// The units whose tiles a pass makes before it attends: of one sequence, where more columns read them than one CTA has.
    fn tiles(&self, plan: &PassPlan, of: &Reading, slot: &SlotPages) -> Option<NeededTiles> {
        let only = plan.only?;
        let first = only.first_seen(of.window) / slot.units.tokens;
        let units = only.closed.saturating_sub(first);
        let needed = NeededTiles {
            seat: only.seat,
            first,
            units,
            bytes: units * slot.kv_heads * self.tile_bytes(slot),
        };
        let is_worth_it = units > 0 && plan.rows * of.heads > COLUMNS * slot.kv_heads;
        (is_worth_it && needed.bytes <= MOST_TILES).then_some(needed)
    }

    /// Bytes that so many rows of queries and the encoding of these jobs need.
    pub(crate) fn needs(
        &self,
        plan: &PassPlan,
        of: &Reading,
        slot: &SlotPages,
        jobs: &JobsPlan,
    ) -> GeneralNeeds {
        let (rows, heads) = (plan.rows, of.heads);
        let at_once = jobs.count.max(jobs.values).min(JOBS);
        GeneralNeeds {
            queries: 2 * rows * heads * self.widths[0],
            bias: 4 * rows * heads,
            encode: 4 * 2 * at_once * self.room,
            tiles: self.tiles(plan, of, slot).map_or(0, |tiles| tiles.bytes),
        }
    }
}

/// Bytes of shared memory of a kernel of 16 `tiles` columns: `GeneralShared` of `general.cuh`, then queries, keys and values.
fn shared_bytes(tiles: usize, widths: [usize; 2]) -> usize {
    let columns = 16 * tiles;
    let own = 2 * 512 * 4 + columns * (4 * (PAGE_TOKENS + 4) + 2 * (PAGE_TOKENS + 8) + 8);
    let [keys, values] = widths.map(|width| 2 * (width + 8));
    own.next_multiple_of(128) + (columns + PAGE_TOKENS) * keys + PAGE_TOKENS * values
}

/// The widest kernel for so many columns that the card has shared memory for; its 16s of columns, and their bytes.
fn kernel_tiles(columns: usize, widths: [usize; 2], limit: usize) -> Option<(usize, usize)> {
    let most = match columns {
        0..=16 => 1,
        _ => 2,
    };
    let sizes = [2, 1].into_iter().filter(|tiles| *tiles <= most);
    sizes.map(|tiles| (tiles, shared_bytes(tiles, widths))).find(|(_, bytes)| *bytes <= limit)
}

/// How a slot is kept whose pages no other kernels read.
pub(crate) fn general_slot(
    card: &Arc<CudaGpu>,
    pages: &CudaPages,
    made: &mut LayoutPages,
    slot: &SlotLayout,
    shape: &KvShape,
) -> Result<SlotPages, CacheUnsupported> {
    let layer = slot.layer();
    let refuse = |what: String| CacheUnsupported { layer, what };
    if made.strict {
        return Err(refuse("strict mode runs with int4, int8, k8v4 and f16 alone".to_owned()));
    }
    if shape.key_dim != shape.value_dim || !DIMS.contains(&shape.key_dim) {
        return Err(refuse(format!(
            "heads of {} and {} channels do not run",
            shape.key_dim, shape.value_dim
        )));
    }
    let (mut forms, mut exact_forms, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut widths, mut encoders, mut elements) = ([0; 2], [Encoders::default(); 2], [0; 2]);
    let (mut tokens, mut kinds) = ([0; 2], [SideKinds::default(); 2]);
    for (number, head) in slot.heads().iter().enumerate() {
        let mut of_head = [PageKind::BYTES; 2];
        for (index, side) in [Side::Key, Side::Value].into_iter().enumerate() {
            let codecs = head.side(side).ok_or_else(|| refuse("a head has no pages".to_owned()))?;
            let own = side_kinds(pages, codecs).map_err(&refuse)?;
            let formed = Formed::of(codecs.codec(), &mut made.bases).map_err(&refuse)?;
            let PageFormat::Exact(exact) = exact_format(codecs).map_err(&refuse)? else {
                return Err(refuse("exact rows without a format".to_owned()));
            };
            if number == 0 {
                exact_forms.push(Formed::exact(&exact).form);
                (tokens[index], kinds[index]) = (codecs.page_tokens(), own);
                elements[index] = match exact.element {
                    Element::F16 => 0,
                    Element::F32 => 1,
                    Element::Bf16 => 2,
                };
            } else if tokens[index] != codecs.page_tokens() || kinds[index].exact != own.exact {
                return Err(refuse("heads whose pages have different sizes do not run".to_owned()));
            }
            of_head[index] = own.encoded;
            widths[index] = widths[index].max(formed.form.width());
            let (all, more) = (&mut encoders[index], formed.encoders);
            all.packed |= more.packed;
            all.differences |= more.differences;
            all.sum |= more.sum;
            all.polar |= more.polar;
            all.trellis |= more.trellis;
            forms.push(formed.form);
        }
        closed.push(of_head);
    }
    // Queries of all heads are of one width.
    let narrow = |(at, form): (usize, &PageForm)| form.width() != widths[at % 2];
    if forms.iter().enumerate().any(narrow) {
        return Err(refuse("heads some of which have pages of two parts do not run".to_owned()));
    }
    if kernel_tiles(1, widths, card.limits().shared).is_none() {
        let what =
            format!("{} and {} channels need more shared memory than the card has", widths[0], widths[1]);
        return Err(refuse(what));
    }
    let tables = made.bases.trellis_tables().map_err(|error| refuse(error.to_string()))?;
    let buffer = |forms: &[PageForm]| {
        Buffer::of(card, &PageForm::bytes(forms)).map_err(|error| refuse(error.to_string()))
    };
    let general = GeneralPages {
        forms: buffer(&forms)?,
        exact_forms: buffer(&exact_forms)?,
        tables,
        closed,
        widths,
        encoders,
        elements,
        room: 2 * tokens[0].max(tokens[1]) * shape.key_dim.next_multiple_of(16),
    };
    let [key, value] = kinds;
    Ok(SlotPages {
        layer,
        kv_heads: shape.kv_heads,
        dim: shape.key_dim,
        codec: "general",
        key,
        value,
        signs: 0,
        planned: None,
        units: Units::of(tokens),
        exact_bytes: elements.map(|element| if element == 1 { 4 } else { 2 }),
        general: Some(general),
        latent: None,
        floor: 0.0,
    })
}

fn exact_format(codecs: &SideCodecs) -> Result<PageFormat, String> {
    codecs.exact().format().ok_or_else(|| "exact rows without a format".to_owned())
}

/// The kinds of a side's pages: exact ones as everywhere, those of codes as their format says.
fn side_kinds(pages: &CudaPages, codecs: &SideCodecs) -> Result<SideKinds, String> {
    let kind = |format: Option<PageFormat>, sinks, latent| match format {
        Some(format) => {
            let of = PageUse { format, sinks, latent };
            pages.dealt_kind(&of).map_err(|refused| refused.to_string())
        }
        None => Ok(PageKind::BYTES),
    };
    Ok(SideKinds {
        sinks: kind(codecs.sinks().format(), true, false)?,
        exact: kind(codecs.exact().format(), false, false)?,
        encoded: kind(codecs.codec().format(), false, !codecs.is_exact())?,
    })
}
