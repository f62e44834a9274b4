//! From one layout to another, page by page.

use crate::arena::Arena;
use crate::error::CacheError;
use crate::layout::CacheLayout;
use crate::sequence::Sequence;
use crate::side::{Fault, Rows, SideStore};
use crate::visibility::Visibility;
use kvant_codec::{CodecError, PageCodec, Side};
use std::sync::Arc;

pub(crate) fn convert(
    from: &Sequence,
    layout: Arc<CacheLayout>,
    arena: Arena,
) -> Result<Sequence, CacheError> {
    let shapes =
        |layout: &CacheLayout| layout.entries().iter().map(|entry| *entry.shape()).collect::<Vec<_>>();
    if shapes(from.layout()) != shapes(&layout) {
        return Err(CacheError::Shape { what: "the entries' shapes" });
    }
    let mut result = Sequence::new(Arc::clone(&layout), arena.clone());
    for (entry, entry_layout) in layout.entries().iter().enumerate() {
        for (index, target) in result.sides_mut(entry).iter_mut().enumerate() {
            let (head, side) = (index / 2, if index % 2 == 0 { Side::Key } else { Side::Value });
            let Some(source) = from.side(entry, head, side) else { continue };
            let rules = (from.layout().rule(), layout.rule());
            copy(source, target, rules, from.len(), &arena).map_err(|fault| match fault {
                Fault::Full(full) => CacheError::Full(full),
                Fault::Codec(source) => CacheError::Codec { entry, head, side, source },
                Fault::Number { row, value } => {
                    CacheError::Number { entry, head, side, position: row, value }
                }
            })?;
            target.settle(layout.rule(), from.len(), entry_layout.shape().window);
        }
    }
    result.set_len(from.len());
    Ok(result)
}

/// Reads the rows of one side in pages of the target's and appends them.
fn copy(
    source: &SideStore,
    target: &mut SideStore,
    (old, new): (&Visibility, &Visibility),
    len: usize,
    arena: &Arena,
) -> Result<(), Fault> {
    let dim = source.codecs().codec().dim();
    let tokens = target.codecs().page_tokens();
    let mut reader = Reader::new(source, old);
    let mut rows = vec![0.0; tokens.max(new.sinks) * dim]; // (tokens, dim)
    // Where the window has dropped the beginning, start at the last page boundary before what is left.
    let kept = if source.dropped() == 0 { 0 } else { reader.first() };
    let first_page = kept.saturating_sub(new.sinks) / tokens;
    let stretches = std::iter::once(0..new.sinks.min(len)).chain((first_page..).map_while(|page| {
        let start = new.page_start(page, tokens);
        (start < len).then(|| start..(start + tokens).min(len))
    }));
    target.start_at(first_page);
    for positions in stretches.filter(|positions| !positions.is_empty()) {
        for (row, position) in rows.chunks_exact_mut(dim).zip(positions.clone()) {
            reader.row(position, row)?;
        }
        let chunk = Rows { numbers: &rows, stride: dim, count: positions.len() };
        target.append(new, positions.start, chunk, arena)?;
        target.settle(new, positions.end, None);
    }
    Ok(())
}

/// Decoded rows of a side by position, one page in hand.
struct Reader<'a> {
    side: &'a SideStore,
    rule: &'a Visibility,
    /// The page that `rows` holds; the sinks come before all pages.
    page: Option<Option<usize>>,
    rows: Vec<f32>, // (tokens, dim)
}

impl<'a> Reader<'a> {
    fn new(side: &'a SideStore, rule: &'a Visibility) -> Reader<'a> {
        let tokens = side.codecs().page_tokens().max(side.codecs().sinks().page_tokens());
        Reader { side, rule, page: None, rows: vec![0.0; tokens * side.codecs().codec().dim()] }
    }

    /// The first position after the sinks that is held.
    fn first(&self) -> usize {
        self.rule.page_start(self.side.dropped(), self.side.codecs().page_tokens())
    }

    /// The row at `position`; where it has been dropped, the first that is held.
    fn row(&mut self, position: usize, out: &mut [f32]) -> Result<(), CodecError> {
        let codecs = self.side.codecs();
        let (tokens, dim) = (codecs.page_tokens(), out.len());
        let (page, index) = if position < self.rule.sinks {
            (None, position)
        } else {
            let held = position.max(self.first()) - self.rule.sinks;
            (Some(held / tokens), held % tokens)
        };
        if self.page != Some(page) {
            match (page, self.side.sinks()) {
                (Some(page), _) => self.side.decode(page, &mut self.rows[..tokens * dim])?,
                (None, Some(sinks)) => {
                    codecs.sinks().decode(sinks, &mut self.rows[..codecs.sinks().page_tokens() * dim])?;
                }
                (None, None) => self.rows.fill(0.0),
            }
            self.page = Some(page);
        }
        out.copy_from_slice(&self.rows[index * dim..(index + 1) * dim]);
        Ok(())
    }
}
