//! The rows of a pass by heads.

use crate::pass::PassParams;
use crate::product::GroupForm;

/// The rows of a pass sorted by heads, for products with a matrix for every head: pair h·rows + r is row r·heads + h of what is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByHead {
    pub form: GroupForm,
    pub groups_at: u64,
    pub sources_at: u64,
}

impl ByHead {
    pub(crate) fn new(words: &mut PassParams, rows: usize, heads: usize) -> ByHead {
        let form = GroupForm::of(rows * heads, heads);
        let group = |head: usize| {
            let firsts = (0..rows).step_by(form.size);
            firsts.map(move |first| [head, head * rows + first, form.size.min(rows - first), 0])
        };
        let groups: Vec<[usize; 4]> = (0..heads).flat_map(group).collect();
        let form = GroupForm { most: groups.len(), ..form };
        let groups_at = words.add(groups.into_iter().flatten().map(|word| word as u32));
        let source = |head: usize| (0..rows).map(move |row| (row * heads + head) as u32);
        ByHead { form, groups_at, sources_at: words.add((0..heads).flat_map(source)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_head_is_in_one_group_of_that_head() {
        for (rows, heads) in [(1, 16), (8, 3), (9, 4), (75, 20), (130, 1)] {
            let mut words = PassParams::default();
            let ByHead { form, groups_at, sources_at } = ByHead::new(&mut words, rows, heads);
            let mut seen = vec![0; rows * heads];
            for group in words.0[groups_at as usize / 4..][..4 * form.most].chunks_exact(4) {
                let [head, first, pairs] = [0, 1, 2].map(|i| group[i] as usize);
                assert!((1..=form.size).contains(&pairs), "{rows} {heads}");
                for (pair, seen) in seen.iter_mut().enumerate().skip(first).take(pairs) {
                    let source = words.0[sources_at as usize / 4 + pair] as usize;
                    assert_eq!((source % heads, pair / rows, pair % rows), (head, head, source / heads));
                    *seen += 1;
                }
            }
            assert!(seen.iter().all(|n| *n == 1), "{rows} {heads}");
        }
    }
}
