//! Rows to learn from: a fixed number of them, whatever the length of the text.

use kvant_codec::split_mix;

/// A sample of the rows that were offered, in which each is as likely to be as any other (Vitter's algorithm R). What is drawn depends
/// on the seed and on how many rows there were alone, so heads that see the same tokens keep the same ones.
pub struct Reservoir {
    dim: usize,
    most: usize,
    seed: u64,
    seen: u64,
    rows: Vec<f32>, // (up to `most`, dim)
}

impl Reservoir {
    /// Of at most so many rows of `dim` channels; memory is taken as they come.
    pub fn new(dim: usize, most: usize, seed: u64) -> Self {
        Self { dim, most, seed, seen: 0, rows: Vec::new() }
    }

    /// Offers rows, (n, dim).
    ///
    /// # Panics
    /// When `rows` is not a whole number of vectors.
    pub fn add(&mut self, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.dim), "{} numbers are no vectors of {}", rows.len(), self.dim);
        for row in rows.chunks_exact(self.dim) {
            self.seen += 1;
            if self.rows.len() < self.most * self.dim {
                self.rows.extend_from_slice(row);
                continue;
            }
            let word = split_mix(self.seed.wrapping_add(self.seen)).next().unwrap_or_default();
            let place = (word % self.seen) as usize;
            if place < self.most {
                self.rows[place * self.dim..(place + 1) * self.dim].copy_from_slice(row);
            }
        }
    }

    /// The rows kept, (n, dim).
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_as_likely_as_any_other_whatever_the_chunks() {
        let all: Vec<f32> = (0..1000).flat_map(|n| [n as f32, -(n as f32)]).collect();
        let kept = |seed: u64, chunk: usize| {
            let mut reservoir = Reservoir::new(2, 100, seed);
            all.chunks(2 * chunk).for_each(|rows| reservoir.add(rows));
            reservoir.rows().to_vec()
        };
        assert_eq!(kept(1, 7), kept(1, 1000));
        assert_ne!(kept(1, 7), kept(2, 7));
        // A hundred samples of a tenth each: every tenth of the rows has about a tenth of the places.
        let mut tenths = [0; 10];
        for seed in 0..100 {
            let rows = kept(seed * 1_000_003, 1000);
            assert_eq!(rows.len(), 200);
            rows.chunks_exact(2).for_each(|row| {
                assert_eq!(row[0], -row[1]);
                tenths[row[0] as usize / 100] += 1;
            });
        }
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
        let mut few = Reservoir::new(2, 100, 1);
        few.add(&all[..6]);
        assert_eq!(few.rows(), &all[..6]);
    }
}
