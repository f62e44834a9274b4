//! Which kernel multiplies a matrix with so many tokens. All give a token the same bits.

use crate::weights::TILE_ROWS;

/// Threads of `linear_*_few` and `linear_*_group8`.
const FEW_THREADS: u32 = 14 * 32;

/// Channels of a segment, whose sums are kept apart (`SEGMENT` of `kernels/weights.cuh`).
const SEGMENT_CHANNELS: usize = 1024;

/// Channels that activations are filled up to with zeros, at most: the longest piece of `linear_few`.
const FEW_PIECE: usize = 256;

/// Bytes that sums of a CTA of few tokens may take: more rows go to more CTAs.
const SUM_BYTES: usize = 48 << 10;

/// What of a card decides which kernels it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its streaming multiprocessors.
    pub processors: usize,
    /// Bytes of shared memory that a CTA may take.
    pub shared: usize,
    /// Whether it has the kernels of `kernels/wide.cu`: wgmma and tensor maps.
    pub wide: bool,
}

/// A kernel `linear_{type}_{name}` and how it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductForm {
    /// What it is called.
    pub name: &'static str,
    /// CTAs along x and y.
    pub grid: (u32, u32),
    /// Threads of a CTA.
    pub threads: u32,
    /// Bytes of dynamic shared memory besides what the sources name.
    pub shared: u32,
    /// Of a kernel of `kernels/wide.cu`.
    pub wide: Option<WideTiles>,
}

/// How `kernels/wide.cu` cuts a product into tiles of 128 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideTiles {
    /// Tokens of a tile.
    pub width: usize,
    /// Tiles along the tokens.
    pub token_tiles: usize,
    /// Tiles of `width` tokens; those after them have half as many.
    pub whole: usize,
    /// Tiles in all.
    pub tiles: usize,
    /// Segments that are tiles of their own, whose sums `add_segments` adds up; 0 where a tile has all channels.
    pub apart: usize,
}

/// Bytes that sums of segments may take.
pub const SEGMENT_SUMS: usize = 32 << 20;

/// What `add_segments` takes, and for a byte that is written and read: µs on an H200.
const ADD: (f64, f64) = (3.5, 1.0 / 1.5e6);

/// Widths of tiles, the kernels' names, and what a tile takes for 64 channels when all processors are busy: µs on an H200, of Q4_0.
const WIDTHS: [(usize, &str, f64); 5] =
    [(16, "w16", 0.187), (32, "w32", 0.195), (64, "w64", 0.257), (128, "w128", 0.374), (176, "w176", 0.470)];

/// The same of tiles of half as many tokens.
fn half_cost(width: usize) -> f64 {
    match width {
        16 => 0.185,
        32 => 0.187,
        64 => 0.195,
        128 => 0.257,
        _ => 0.315,
    }
}

impl WideTiles {
    /// Tiles of this width: if the last round is at most half full, its tiles are cut in two.
    fn new(width: usize, rows: usize, tokens: usize, processors: usize) -> WideTiles {
        let token_tiles = tokens.div_ceil(width);
        let all = rows.div_ceil(128) * token_tiles;
        let rest = all % processors;
        let cut = if 2 * rest <= processors { rest } else { 0 };
        WideTiles { width, token_tiles, whole: all - cut, tiles: all + cut, apart: 0 }
    }

    /// Tiles of this width and one segment each, where that is more than one and their sums have room.
    fn apart(width: usize, (rows, channels): (usize, usize), tokens: usize) -> Option<WideTiles> {
        let (token_tiles, apart) = (tokens.div_ceil(width), channels.div_ceil(SEGMENT_CHANNELS));
        let tiles = rows.div_ceil(128) * token_tiles * apart;
        let fits = 4 * apart * tokens * rows <= SEGMENT_SUMS && rows.is_multiple_of(4);
        (apart > 1 && width <= 64 && fits).then_some(WideTiles {
            width,
            token_tiles,
            whole: tiles,
            tiles,
            apart,
        })
    }

    /// Rounds of tiles, weighed by what one takes for 64 channels: µs.
    fn cost(&self, (rows, channels): (usize, usize), tokens: usize, cost: f64, processors: usize) -> f64 {
        let rounds = self.whole.div_ceil(processors) as f64 * cost;
        if self.apart > 0 {
            let bytes = (4 * self.apart * tokens * rows) as f64;
            return rounds * (SEGMENT_CHANNELS / 64) as f64 + ADD.0 + bytes * ADD.1;
        }
        let halves = if self.tiles > self.whole { half_cost(self.width) } else { 0.0 };
        (rounds + halves) * (channels / 64) as f64
    }
}

impl ProductForm {
    /// The kernel for a matrix `(rows, channels)` and this many tokens on a card. Where it is `whole`, sums are not added up by another kernel.
    pub fn of(shape: (usize, usize), tokens: usize, whole: bool, limits: &Limits) -> ProductForm {
        let (rows, channels) = shape;
        if tokens <= 8
            && let Some(form) = ProductForm::few(shape, tokens.max(1), limits)
        {
            // Where activations of so many tokens leave room for one CTA, or are shared by several that all read the weights, wide tiles are as fast.
            let crowds = form.grid.1 > 1 || 2 * (form.shared as usize + 1024) > limits.shared + 1024;
            let wide = (crowds && limits.wide && !whole)
                .then(|| ProductForm::wide(shape, tokens, whole, limits.processors));
            return wide.filter(|wide| wide.wide.is_some_and(|tiles| tiles.apart > 0)).unwrap_or(form);
        }
        if limits.wide {
            return ProductForm::wide(shape, tokens, whole, limits.processors);
        }
        let form = |name, size: usize, threads| ProductForm {
            name,
            grid: (tokens.div_ceil(size) as u32, rows.div_ceil(size.max(64)) as u32),
            threads,
            shared: 0,
            wide: None,
        };
        let large = rows.div_ceil(128) * tokens.div_ceil(128) >= limits.processors;
        match tokens {
            0..=32 => form("t32", 32, 128),
            33..=64 => form("tile", 64, 128),
            _ if large && 2 * 128 * channels < 1 << 32 => form("large", 128, 256),
            _ => form("tile", 64, 128),
        }
    }

    /// The kernel of one token whose activations go through a norm first; where two CTAs do not fit, the norm is a kernel of its own.
    pub fn normed((rows, channels): (usize, usize), limits: &Limits) -> Option<ProductForm> {
        let few = FewShape::new(rows.div_ceil(TILE_ROWS), channels, 1, 2 * limits.processors);
        let shared = few.shared + 8 * channels; // the row and the norm's weights
        let fits = 2 * (shared + 1024) <= limits.shared + 1024 && channels.is_multiple_of(4);
        let (grid, shared) = ((few.ctas as u32, 1), shared as u32);
        fits.then_some(ProductForm { name: "one", grid, threads: FEW_THREADS, shared, wide: None })
    }

    /// Up to 8 tokens, whose activations lie in shared memory; where they do not fit at once, CTAs share them.
    fn few((rows, channels): (usize, usize), tokens: usize, limits: &Limits) -> Option<ProductForm> {
        let tiles = rows.div_ceil(TILE_ROWS);
        (1..=tokens).find_map(|shares| {
            let few = FewShape::new(tiles, channels, tokens.div_ceil(shares), 2 * limits.processors);
            let few = match 2 * (few.shared + 1024) > limits.shared + 1024 {
                true => FewShape::new(tiles, channels, tokens.div_ceil(shares), limits.processors),
                false => few,
            };
            let grid = (few.ctas as u32, tokens.div_ceil(few.tokens) as u32);
            let name = if tokens == 1 { "one" } else { "few" };
            let (threads, shared) = (FEW_THREADS, few.shared as u32);
            (few.shared <= limits.shared).then_some(ProductForm { name, grid, threads, shared, wide: None })
        })
    }

    fn wide(shape: (usize, usize), tokens: usize, whole: bool, processors: usize) -> ProductForm {
        let (rows, channels) = shape;
        let fits = |width: usize| match width {
            16 | 32 | 64 => channels.is_multiple_of(128),
            _ => true,
        };
        let forms = WIDTHS.into_iter().filter(|(width, ..)| fits(*width)).flat_map(|(width, name, cost)| {
            let apart = WideTiles::apart(width, shape, tokens).filter(|_| !whole);
            let all = [Some(WideTiles::new(width, rows, tokens, processors)), apart];
            all.into_iter()
                .flatten()
                .map(move |tiles| (tiles.cost(shape, tokens, cost, processors), name, tiles))
        });
        let (_, name, tiles) =
            forms.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there is a kernel for all channels");
        let grid = (tiles.tiles.min(processors) as u32, 1);
        ProductForm { name, grid, threads: 384, shared: 0, wide: Some(tiles) }
    }
}

/// How `linear_few` deals tiles of 16 rows.
struct FewShape {
    /// Tokens of a CTA.
    tokens: usize,
    ctas: usize,
    /// Bytes of activations and sums.
    shared: usize,
}

impl FewShape {
    fn new(tiles: usize, channels: usize, tokens: usize, ctas: usize) -> FewShape {
        let sums = 64 * tokens * channels.div_ceil(SEGMENT_CHANNELS); // of a tile
        let most = (SUM_BYTES / sums).max(1);
        let rounds = tiles.div_ceil(ctas).div_ceil(most);
        let each = tiles.div_ceil(ctas * rounds).min(most);
        let staged = channels.next_multiple_of(FEW_PIECE);
        FewShape { tokens, ctas: tiles.div_ceil(each), shared: 2 * tokens * staged + each * sums }
    }
}

/// Groups of pairs of token and expert, of which `kernels/moe.cu` makes a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupForm {
    /// Pairs in all.
    pub pairs: usize,
    /// The most pairs of a group.
    pub size: usize,
    /// The most groups that there can be.
    pub most: usize,
}

/// Pairs of a group that goes by the tiles of `kernels/wide_groups.cu`.
pub const WIDE_GROUP: usize = 128;

impl GroupForm {
    /// For so many pairs on so many experts: tiles once an expert has more than a few.
    pub fn of(pairs: usize, experts: usize) -> GroupForm {
        GroupForm::sized(pairs, experts, if pairs > 8 * experts { 64 } else { 8 })
    }

    /// The same by the widest tiles that a card has.
    pub fn widest(pairs: usize, experts: usize, limits: &Limits) -> GroupForm {
        let form = GroupForm::of(pairs, experts);
        if limits.wide && form.size > 8 { GroupForm::sized(pairs, experts, WIDE_GROUP) } else { form }
    }

    fn sized(pairs: usize, experts: usize, size: usize) -> GroupForm {
        GroupForm { pairs, size, most: pairs.min(experts + pairs / size) }
    }

    /// Tiles of 128 rows of a matrix of an expert, and those of all groups.
    pub fn tiles(&self, rows: usize) -> (usize, usize) {
        let panels = rows.div_ceil(128);
        (panels, panels * self.most.max(1))
    }

    /// The kernel for experts of this shape, whose name begins with `group`.
    pub fn kernel(&self, (rows, channels): (usize, usize), limits: &Limits) -> ProductForm {
        let most = self.most.max(1);
        let ctas = (2 * limits.processors).div_ceil(most).min(rows.div_ceil(TILE_ROWS));
        let few = FewShape::new(rows.div_ceil(TILE_ROWS), channels, 8, ctas.max(1));
        if self.size == WIDE_GROUP {
            let grid = (self.tiles(rows).1.min(limits.processors) as u32, 1);
            return ProductForm { name: "group128", grid, threads: 384, shared: 0, wide: None };
        }
        if self.size > 8 || few.shared > limits.shared {
            let grid = (most as u32, rows.div_ceil(64) as u32);
            return ProductForm { name: "group64", grid, threads: 128, shared: 0, wide: None };
        }
        let grid = (most as u32, few.ctas as u32);
        ProductForm { name: "group8", grid, threads: FEW_THREADS, shared: few.shared as u32, wide: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Limits = Limits { processors: 132, shared: 227 << 10, wide: true };
    const SMALL: Limits = Limits { processors: 28, shared: 99 << 10, wide: false };

    #[test]
    fn every_number_of_tokens_has_a_kernel_whose_grid_covers_it() {
        let shapes =
            [(16, 64), (4096, 4096), (4096, 14336), (28672, 4096), (128256, 4096), (100, 256), (33, 576)];
        for (rows, channels) in shapes {
            for tokens in (1..70).chain([127, 128, 129, 512, 2048]) {
                for (limits, whole) in [(H200, true), (H200, false), (SMALL, false)] {
                    let form = ProductForm::of((rows, channels), tokens, whole, &limits);
                    let (x, y) = (form.grid.0 as usize, form.grid.1 as usize);
                    let what = format!("{rows}x{channels} of {tokens}: {form:?}");
                    assert!(form.shared as usize <= limits.shared, "{what}");
                    match form.name {
                        "one" | "few" => {
                            assert_eq!(form.name == "one", tokens == 1, "{what}");
                            let share = tokens.div_ceil(y);
                            assert!(
                                tokens <= 8 && x <= rows.div_ceil(16) && share * (y - 1) < tokens,
                                "{what}"
                            );
                            // Sums of all tiles of a CTA have their place.
                            let each = rows.div_ceil(16).div_ceil(x);
                            let sums = 64 * share * each * channels.div_ceil(1024);
                            assert!(form.shared as usize >= 2 * share * channels + sums, "{what}");
                        }
                        "t32" => assert!(tokens <= 32 && 64 * y >= rows, "{what}"),
                        "tile" => {
                            assert!(64 * x >= tokens && 64 * y >= rows && form.threads == 128, "{what}")
                        }
                        "large" => {
                            assert!(128 * x >= tokens && 128 * y >= rows && form.threads == 256, "{what}")
                        }
                        _ => {
                            let Some(tiles) = form.wide else { panic!("{what}") };
                            assert!(limits.wide && (tokens > 8 || tiles.apart > 0), "{what}");
                            if tiles.apart > 0 {
                                assert!(!whole && tiles.apart == channels.div_ceil(1024), "{what}");
                                assert!(4 * tiles.apart * tokens * rows <= SEGMENT_SUMS, "{what}");
                            }
                            let halves = tiles.tiles - tiles.whole;
                            let covered = tiles.width * (2 * tiles.whole + halves) / 2;
                            assert!(halves % 2 == 0 && covered >= tokens * rows.div_ceil(128), "{what}");
                            assert_eq!((x, y), (tiles.tiles.min(132), 1), "{what}");
                        }
                    }
                }
            }
        }
        let names = [
            (8, "few", "few"),
            (9, "w16", "t32"),
            (32, "w32", "t32"),
            (33, "w64", "tile"),
            (512, "w128", "large"),
        ];
        for (tokens, wide, narrow) in names {
            let name = |limits| ProductForm::of((28672, 4096), tokens, false, limits).name;
            assert_eq!((name(&H200), name(&SMALL)), (wide, narrow), "{tokens}");
        }
    }

    #[test]
    fn activations_that_shared_memory_does_not_hold_are_shared_by_ctas() {
        let form = ProductForm::of((4096, 14336), 8, true, &H200);
        assert_eq!((form.name, form.grid.1), ("few", 2));
        let form = ProductForm::of((4096, 14336), 8, false, &SMALL);
        assert!(form.name == "few" && form.grid.1 > 2, "{form:?}");
    }

    #[test]
    fn matrices_of_few_rows_have_tiles_of_one_segment() {
        for (shape, tokens) in
            [((4096, 14336), 8), ((4096, 14336), 16), ((4096, 4096), 16), ((4096, 14336), 64)]
        {
            let tiles = ProductForm::of(shape, tokens, false, &H200).wide.expect("wide tiles");
            assert_eq!(tiles.apart, shape.1 / 1024, "{shape:?} {tokens}");
        }
        for (shape, tokens) in
            [((28672, 4096), 16), ((128256, 4096), 9), ((4096, 14336), 1024), ((4096, 1024), 16)]
        {
            let tiles = ProductForm::of(shape, tokens, false, &H200).wide.expect("wide tiles");
            assert_eq!(tiles.apart, 0, "{shape:?} {tokens}");
        }
    }

    #[test]
    fn a_norm_goes_along_where_two_ctas_fit() {
        let form = ProductForm::normed((28672, 4096), &H200).expect("room");
        assert_eq!((form.name, form.grid), ("one", (256, 1)));
        assert!(form.shared >= 10 * 4096 && 2 * (form.shared + 1024) <= 228 << 10, "{form:?}");
        assert_eq!(ProductForm::normed((4096, 14336), &SMALL), None);
    }

    #[test]
    fn experts_have_a_kernel_for_either_size_of_groups() {
        for (pairs, experts) in [(8, 128), (64, 8), (4096, 128)] {
            for (rows, channels) in [(1536, 2048), (2048, 768), (4096, 14336)] {
                let groups = GroupForm::of(pairs, experts);
                let form = groups.kernel((rows, channels), &H200);
                let covers = match form.name {
                    "group8" => groups.size == 8 && form.shared as usize >= 16 * channels,
                    "group64" => 64 * form.grid.1 as usize >= rows,
                    _ => false,
                };
                assert!(covers && form.grid.0 as usize == groups.most, "{pairs} {experts} {form:?}");
                let wide = GroupForm::widest(pairs, experts, &H200);
                let form = wide.kernel((rows, channels), &H200);
                assert_eq!(form.name == "group128", groups.size > 8, "{pairs} {experts} {form:?}");
                assert!(wide.tiles(rows).1 >= form.grid.0 as usize && 128 * wide.tiles(rows).0 >= rows);
                assert_eq!(GroupForm::widest(pairs, experts, &SMALL), groups);
            }
        }
    }

    #[test]
    fn there_is_room_for_every_way_to_group_pairs() {
        for (pairs, experts) in [(1, 8), (8, 128), (64, 8), (65, 8), (4096, 128), (4096, 512), (100, 4)] {
            let form = GroupForm::of(pairs, experts);
            // The worst case: every expert has a group that is not full.
            let (mut left, mut groups) = (pairs, 0);
            for _ in 0..experts.min(pairs) {
                (left, groups) = (left - 1, groups + 1);
            }
            groups += left / form.size;
            assert!(form.most >= groups.min(pairs), "{pairs} {experts}: {groups} of {}", form.most);
        }
    }
}
