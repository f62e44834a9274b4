//! From one layout to another, page by page.

use crate::error::CacheError;
use crate::exact_window::ExactWindow;
use crate::layout::{CacheLayout, Slack};
use crate::reader::Reader;
use crate::sequence::{Sequence, each_side};
use crate::side::{Fault, Rows, SideStore};
use crate::store::Store;
use std::sync::Arc;

pub(crate) fn convert(
    from: &Sequence,
    layout: Arc<CacheLayout>,
    memory: Store,
) -> Result<Sequence, CacheError> {
    let kinds = |layout: &CacheLayout| layout.slots().iter().map(|slot| *slot.kind()).collect::<Vec<_>>();
    if kinds(from.layout()) != kinds(&layout) {
        return Err(CacheError::Shape { what: "what their slots hold" });
    }
    if from.has_states() && from.layout().state_type() != layout.state_type() {
        return Err(CacheError::Shape { what: "the numbers that recurrent state is stored in" });
    }
    let mut result = Sequence::new(Arc::clone(&layout), memory.clone());
    for (slot, slot_layout) in layout.slots().iter().enumerate() {
        let (old, new, len) = (from.layout().exact_window(), layout.exact_window(), from.len());
        let window = slot_layout.window();
        let (sources, slack) = (from.sides(slot), layout.slack());
        each_side(slot_layout, 0, result.sides_mut(slot), true, |index, target| {
            let memory = memory.of_layer(slot_layout.layer());
            copy(&sources[index], target, (old, new), len, memory)?;
            target.settle(new, len, window, slack);
            Ok(())
        })?;
    }
    result.take_states(from)?;
    result.set_len(from.len());
    from.check_files()?;
    Ok(result)
}

/// Reads the rows of one side in pages of the target's and appends them.
fn copy(
    source: &SideStore,
    target: &mut SideStore,
    (old, new): (&ExactWindow, &ExactWindow),
    len: usize,
    memory: &Store,
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
        let mut chunk = Rows { numbers: &rows, stride: dim, count: positions.len() };
        target.append(new, positions.start, positions.len(), &mut chunk, memory)?;
        target.settle(new, positions.end, None, Slack::default());
    }
    Ok(())
}
