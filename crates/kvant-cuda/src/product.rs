//! Which kernel multiplies a matrix with so many tokens. All give a token the same bits.

use crate::weights::{TILE_ROWS, WeightType};

/// Bytes of dynamic shared memory that the activations of `linear_*_few` may take.
pub const FEW_SHARED: usize = 96 << 10;

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
}

impl ProductForm {
    /// The kernel for a matrix `(rows, channels)` and this many tokens on a card of so many multiprocessors.
    pub fn of(
        kind: WeightType,
        (rows, channels): (usize, usize),
        tokens: usize,
        processors: u32,
    ) -> ProductForm {
        let form = |name, x: usize, y: usize, threads, shared: usize| ProductForm {
            name,
            grid: (x as u32, y as u32),
            threads,
            shared: shared as u32,
        };
        let (tiles, ctas) = (rows.div_ceil(TILE_ROWS), 2 * processors as usize);
        let activations = 2 * tokens * channels;
        // Tiles of a CTA: one where blocks are long.
        let many = tiles.div_ceil(if kind.device_block().0 == 64 { 2 } else { 1 });
        match tokens {
            0..=8 if activations <= FEW_SHARED => form("few", tiles.min(ctas), 1, 256, activations),
            0..=8 => form("t8", many, 1, 256, 0),
            9..=32 => form("t32", many, 1, 256, 0),
            _ => form("tile", tokens.div_ceil(64), rows.div_ceil(64), 128, 0),
        }
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

impl GroupForm {
    /// For so many pairs on so many experts: tiles once an expert has more than a few.
    pub fn of(pairs: usize, experts: usize) -> GroupForm {
        let size = if pairs > 8 * experts { 64 } else { 8 };
        GroupForm { pairs, size, most: pairs.min(experts + pairs / size) }
    }

    /// The end of the kernel's name, rows of a CTA, threads.
    pub fn kernel(&self, kind: WeightType) -> (&'static str, usize, u32) {
        match self.size {
            64 => ("group64", 64, 128),
            _ => ("group8", if kind.device_block().0 == 64 { 32 } else { 16 }, 256),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_tokens_has_a_kernel_whose_grid_covers_it() {
        for (rows, channels) in [(16, 64), (4096, 4096), (4096, 14336), (28672, 4096), (100, 256)] {
            for tokens in (1..70).chain([127, 128, 129, 512, 2048]) {
                let form = ProductForm::of(WeightType::Q4_0, (rows, channels), tokens, 132);
                let (x, y) = (form.grid.0 as usize, form.grid.1 as usize);
                match form.name {
                    "few" => {
                        assert!(tokens <= 8 && (1..=264).contains(&x) && form.shared as usize <= FEW_SHARED)
                    }
                    "t8" => assert!(tokens <= 8 && 32 * x >= rows),
                    "t32" => assert!(tokens <= 32 && 32 * x >= rows),
                    "tile" => assert!(64 * x >= tokens && 64 * y >= rows && form.threads == 128),
                    other => panic!("{other}"),
                }
            }
        }
        let names = [(8, "few"), (9, "t32"), (32, "t32"), (33, "tile")];
        for (tokens, name) in names {
            assert_eq!(ProductForm::of(WeightType::Q4K, (4096, 4096), tokens, 132).name, name, "{tokens}");
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
