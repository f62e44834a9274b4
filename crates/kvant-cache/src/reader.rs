//! What a side holds, by position, as numbers.

use crate::exact_window::ExactWindow;
use crate::side::SideStore;
use kvant_codec::{CodecError, PageCodec};

/// Decoded rows of a side by position, one page in hand.
pub(crate) struct Reader<'a> {
    side: &'a SideStore,
    rule: &'a ExactWindow,
    /// The page that `rows` holds; the sinks come before all pages.
    page: Option<Option<usize>>,
    rows: Vec<f32>, // (tokens, dim)
}

impl<'a> Reader<'a> {
    pub(crate) fn new(side: &'a SideStore, rule: &'a ExactWindow) -> Reader<'a> {
        let tokens = side.codecs().page_tokens().max(side.codecs().sinks().page_tokens());
        Reader { side, rule, page: None, rows: vec![0.0; tokens * side.codecs().codec().dim()] }
    }

    /// The first position after the sinks that is held.
    pub(crate) fn first(&self) -> usize {
        self.rule.page_start(self.side.dropped(), self.side.codecs().page_tokens())
    }

    /// The row at `position`; where it has been dropped, the first that is held.
    pub(crate) fn row(&mut self, position: usize, out: &mut [f32]) -> Result<(), CodecError> {
        let codecs = self.side.codecs();
        let (tokens, dim) = (codecs.page_tokens(), out.len());
        let (page, index) = if position < self.rule.sinks {
            (None, position)
        } else {
            let held = position.max(self.first()) - self.rule.sinks;
            (Some(held / tokens), held % tokens)
        };
        if self.page != Some(page) {
            match (page, self.side.sinks_page()) {
                (Some(page), _) => self.side.decode(page, &mut self.rows[..tokens * dim])?,
                (None, Some(sinks)) => {
                    let rows = &mut self.rows[..codecs.sinks().page_tokens() * dim];
                    codecs.sinks().decode(&sinks.canonical(), rows)?;
                }
                (None, None) => self.rows.fill(0.0),
            }
            self.page = Some(page);
        }
        out.copy_from_slice(&self.rows[index * dim..(index + 1) * dim]);
        Ok(())
    }
}
