//! What passes compute in: buffers that are made once, and made larger where a pass needs it.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::program::Widths;
use crate::visits::list_bytes;
use crate::weights::{GROUP, Place};
use std::collections::HashMap;

/// Activations of a pass: rows of whole groups.
pub(crate) struct PassBuffers {
    pub rows: usize,
    buffers: HashMap<&'static str, (Buffer, usize)>,
    pub plan: Buffer,
    pub status: Buffer,
    pub partials: Buffer,
    /// Recurrent state and rows that nobody keeps, and states before they are stored.
    pub states: Buffer,
    pub fresh: Buffer,
    /// The head of every row of heads, as routers write experts.
    pub head_routes: Buffer,
    /// Visits to experts, sorted.
    pub visits: Buffer,
    pub staging: Buffer,
}

impl PassBuffers {
    pub(crate) fn new(gpu: &Gpu, widths: &Widths, rows: usize) -> PassBuffers {
        let streams = widths.streams * widths.hidden.next_multiple_of(GROUP);
        let named = [
            ("x", widths.hidden),
            ("normed", widths.hidden),
            ("branch", widths.hidden),
            ("after", widths.hidden),
            ("sum", widths.hidden),
            ("projected", widths.projected),
            ("between", widths.queries.max(widths.keys)),
            ("queries", widths.queries),
            ("keys", widths.keys),
            ("values", widths.values),
            ("attended", widths.attended),
            ("first", widths.first),
            ("inner", widths.inner),
            ("router", widths.experts),
            ("routes", 2 * widths.chosen),
            ("routed", if widths.experts > 0 { widths.hidden } else { 0 }),
            ("shared", if widths.experts > 0 { widths.hidden } else { 0 }),
            ("shared gate", 1),
            ("convolved", widths.convolved),
            ("mixed", widths.mixed),
            ("mixed normed", widths.mixed),
            ("narrow", widths.narrow),
            ("narrow normed", widths.narrow),
            ("folded", widths.folded),
            ("head values", widths.head_values),
            ("layer inputs", widths.layer_inputs),
            ("layer rows", widths.layer_inputs),
            ("streams", streams),
            ("predicted", streams),
            ("route", widths.streams),
            ("coefficients", widths.streams * widths.streams),
            ("laurel", widths.laurel),
            ("laurel out", if widths.laurel > 0 { widths.hidden } else { 0 }),
            ("laurel normed", if widths.laurel > 0 { widths.hidden } else { 0 }),
            ("expert narrow", widths.expert_narrow),
            ("expert sum", widths.expert_narrow),
        ];
        // A row for every visit of a token to an expert.
        let visits = [
            ("expert first", widths.expert_first),
            ("expert inner", widths.expert_inner),
            ("expert out", if widths.experts > 0 { widths.hidden.max(widths.expert_narrow) } else { 0 }),
        ];
        let head_routes: Vec<u32> = (0..rows * widths.latent_heads)
            .flat_map(|row| [(row % widths.latent_heads) as u32, 1f32.to_bits()])
            .collect();
        let several = |(name, width): (&'static str, usize), rows: usize| {
            let stride = width.next_multiple_of(GROUP).max(GROUP);
            (name, (Buffer::new(gpu, name, 4 * rows * stride), stride))
        };
        let named = named.map(|named| several(named, rows));
        let visits = visits.map(|named| several(named, rows * widths.chosen.max(1)));
        PassBuffers {
            rows,
            buffers: named.into_iter().chain(visits).collect(),
            plan: Buffer::new(gpu, "plan", 1 << 16),
            status: Buffer::new(gpu, "status", 16),
            partials: Buffer::new(gpu, "partials", 1 << 16),
            states: Buffer::new(gpu, "states", 16),
            fresh: Buffer::new(gpu, "fresh", 16),
            head_routes: Buffer::of_words(gpu, "heads", &head_routes),
            visits: Buffer::new(gpu, "visits", list_bytes(rows * widths.chosen, widths.experts)),
            staging: Buffer::staging(gpu, 1 << 16),
        }
    }

    pub(crate) fn place(&self, name: &'static str) -> Place<'_> {
        let (buffer, stride) = &self.buffers[name];
        Place { buffer, stride: *stride, at: 0 }
    }

    /// A buffer of that name and width, made or made larger where needed; true if it is another one now.
    pub(crate) fn fit(&mut self, gpu: &Gpu, name: &'static str, rows: usize, width: usize) -> bool {
        let stride = width.next_multiple_of(GROUP).max(GROUP);
        let fits =
            |(buffer, there): &(Buffer, usize)| *there == stride && buffer.bytes() >= 4 * rows * stride;
        if self.buffers.get(name).is_some_and(fits) {
            return false;
        }
        self.buffers.insert(name, (Buffer::new(gpu, name, 4 * rows.next_power_of_two() * stride), stride));
        true
    }
}

/// Makes a buffer larger if it has to be; true if it is another one now.
pub(crate) fn enlarge(gpu: &Gpu, label: &str, buffer: &mut Buffer, bytes: usize) -> bool {
    let is_small = buffer.bytes() < bytes;
    if is_small {
        *buffer = Buffer::new(gpu, label, bytes.next_power_of_two());
    }
    is_small
}
