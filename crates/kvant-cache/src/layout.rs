//! What a cache looks like: shapes, codecs and the visibility rule. Built once per model, shared by all its sequences.

use crate::arena::Arena;
use crate::error::LayoutError;
use crate::page::Page;
use crate::policy::Policy;
use crate::visibility::{MAX_SINKS, Visibility};
use kvant_codec::{BuildError, Calibration, CodecSpec, Element, ExactCodec, PageCodec, PageSize, Side, Tier};
use std::collections::HashMap;
use std::sync::Arc;

/// The shape of what one entry (a layer, usually) keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryShape {
    /// Heads that own keys and values; query heads come in equal groups, one group to each.
    pub kv_heads: usize,
    /// Channels of a key, and of a query.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// How many tokens a query sees, itself included; `None` for all.
    pub window: Option<usize>,
}

impl EntryShape {
    /// Channels of a side.
    pub fn dim(&self, side: Side) -> usize {
        match side {
            Side::Key => self.key_dim,
            Side::Value => self.value_dim,
        }
    }
}

/// The codecs of one side of one kv head: that of the pages, and those of the rows not encoded.
pub struct SideCodecs {
    codec: Arc<dyn PageCodec>,
    exact: ExactCodec,
    sinks: ExactCodec,
    /// Exact pages are what the codec would make of them.
    is_exact: bool,
}

impl SideCodecs {
    /// The codecs of a spec. Exact rows are f16, or as the spec says where it keeps every number anyway.
    ///
    /// # Errors
    /// When the codec cannot be built.
    pub fn new(
        spec: &CodecSpec,
        side: Side,
        dim: usize,
        calibration: &Calibration,
        tier: Tier,
    ) -> Result<SideCodecs, BuildError> {
        let codec = Arc::from(spec.build_with(side, dim, calibration, tier)?);
        let element = Element::of(spec);
        SideCodecs::from_parts(
            codec,
            element.unwrap_or(Element::F16),
            spec.options.page,
            element.is_some(),
            tier,
        )
    }

    /// A codec of one's own, with exact rows of that format.
    ///
    /// # Errors
    /// When the page size is not one of 32, 64 and 128, or the dimension is not supported.
    pub fn custom(
        codec: Arc<dyn PageCodec>,
        element: Element,
        tier: Tier,
    ) -> Result<SideCodecs, LayoutError> {
        let page = page_size(codec.page_tokens())?;
        let side = codec.side();
        SideCodecs::from_parts(codec, element, page, false, tier).map_err(|source| LayoutError::Codec {
            entry: 0,
            head: 0,
            side,
            source,
        })
    }

    fn from_parts(
        codec: Arc<dyn PageCodec>,
        element: Element,
        page: PageSize,
        is_exact: bool,
        tier: Tier,
    ) -> Result<SideCodecs, BuildError> {
        let (side, dim) = (codec.side(), codec.dim());
        let exact = ExactCodec::new(element, page, side, dim, tier)?;
        let sinks = ExactCodec::new(element, PageSize::P32, side, dim, tier)?;
        Ok(SideCodecs { codec, exact, sinks, is_exact })
    }

    /// The codec of the pages.
    pub fn codec(&self) -> &dyn PageCodec {
        &*self.codec
    }

    /// The codec of exact rows: pages of the same number of tokens.
    pub fn exact(&self) -> &ExactCodec {
        &self.exact
    }

    /// The codec of the sinks: one page for all of them.
    pub fn sinks(&self) -> &ExactCodec {
        &self.sinks
    }

    /// Whether the codec keeps every number, so that exact rows and encoded ones are the same bytes.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Tokens in a page.
    pub fn page_tokens(&self) -> usize {
        self.codec.page_tokens()
    }
}

fn page_size(tokens: usize) -> Result<PageSize, LayoutError> {
    [PageSize::P32, PageSize::P64, PageSize::P128]
        .into_iter()
        .find(|size| size.tokens() == tokens)
        .ok_or(LayoutError::PageSize { tokens })
}

/// The codecs of one kv head.
#[derive(Clone)]
pub struct HeadCodecs {
    /// Keys.
    pub key: Arc<SideCodecs>,
    /// Values.
    pub value: Arc<SideCodecs>,
}

impl HeadCodecs {
    /// Those of a side.
    pub fn side(&self, side: Side) -> &Arc<SideCodecs> {
        match side {
            Side::Key => &self.key,
            Side::Value => &self.value,
        }
    }
}

/// One entry: its shape, and the codecs of every kv head.
#[derive(Clone)]
pub struct EntryLayout {
    shape: EntryShape,
    heads: Vec<HeadCodecs>,
}

impl EntryLayout {
    /// Its shape.
    pub fn shape(&self) -> &EntryShape {
        &self.shape
    }

    /// The codecs of its kv heads.
    pub fn heads(&self) -> &[HeadCodecs] {
        &self.heads
    }
}

/// How many pages a side holds.
struct Pages {
    encoded: usize,
    exact: usize,
}

/// The layout of a cache.
#[derive(Clone)]
pub struct CacheLayout {
    rule: Visibility,
    entries: Vec<EntryLayout>,
}

impl CacheLayout {
    /// The layout that a policy gives a model, with the best instruction set of this machine.
    ///
    /// # Errors
    /// When a codec cannot be built for the shape of a head, the policy names layers or heads that are not there, or a
    /// forced instruction set cannot run.
    pub fn new(policy: &Policy, shapes: &[EntryShape]) -> Result<CacheLayout, LayoutError> {
        let tier = Tier::select().map_err(|e| LayoutError::Codec {
            entry: 0,
            head: 0,
            side: Side::Key,
            source: e.into(),
        })?;
        CacheLayout::with_tier(policy, shapes, tier)
    }

    /// The same on a given instruction set.
    ///
    /// # Errors
    /// As [`CacheLayout::new`].
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn with_tier(policy: &Policy, shapes: &[EntryShape], tier: Tier) -> Result<CacheLayout, LayoutError> {
        policy.check(shapes)?;
        // Heads with the same spec share a codec, except where each has numbers of its own.
        let mut built: HashMap<(String, Side, usize), Arc<SideCodecs>> = HashMap::new();
        CacheLayout::build(policy.rule, shapes, |entry, head, side| {
            let spec = policy.spec(entry, head, side);
            let dim = shapes[entry].dim(side);
            let refuse = |source| LayoutError::Codec { entry, head, side, source };
            if spec.needs_plan() {
                let findings = policy.plan.as_ref().and_then(|plan| plan.findings(entry, head, side));
                let calibration = findings.map(|found| found.calibration(spec, side, dim, tier));
                let calibration = calibration.transpose().map_err(refuse)?.unwrap_or_default();
                return SideCodecs::new(spec, side, dim, &calibration, tier).map(Arc::new).map_err(refuse);
            }
            let key = (spec.to_string(), side, dim);
            if let Some(codecs) = built.get(&key) {
                return Ok(Arc::clone(codecs));
            }
            let codecs = SideCodecs::new(spec, side, dim, &Calibration::default(), tier).map_err(refuse)?;
            Ok(Arc::clone(built.entry(key).or_insert(Arc::new(codecs))))
        })
    }

    /// A layout with codecs chosen one by one: by entry, kv head and side.
    ///
    /// # Errors
    /// When the choice fails, or the rule asks for something that cannot be.
    pub fn build(
        rule: Visibility,
        shapes: &[EntryShape],
        mut choose: impl FnMut(usize, usize, Side) -> Result<Arc<SideCodecs>, LayoutError>,
    ) -> Result<CacheLayout, LayoutError> {
        if rule.sinks > MAX_SINKS {
            return Err(LayoutError::Sinks { sinks: rule.sinks });
        }
        if rule.streaming == Some(0) || shapes.iter().any(|shape| shape.window == Some(0)) {
            return Err(LayoutError::EmptyWindow);
        }
        let mut entries = Vec::with_capacity(shapes.len());
        for (entry, shape) in shapes.iter().enumerate() {
            let heads = (0..shape.kv_heads)
                .map(|head| {
                    Ok(HeadCodecs {
                        key: choose(entry, head, Side::Key)?,
                        value: choose(entry, head, Side::Value)?,
                    })
                })
                .collect::<Result<_, LayoutError>>()?;
            entries.push(EntryLayout { shape: *shape, heads });
        }
        Ok(CacheLayout { rule, entries })
    }

    /// What a query reads, and in which form.
    pub fn rule(&self) -> &Visibility {
        &self.rule
    }

    /// Its entries.
    pub fn entries(&self) -> &[EntryLayout] {
        &self.entries
    }

    /// Every side of every head: entry, kv head, side, codecs.
    pub fn sides(&self) -> impl Iterator<Item = (usize, usize, Side, &SideCodecs)> {
        self.entries.iter().enumerate().flat_map(|(entry, layout)| {
            layout.heads.iter().enumerate().flat_map(move |(head, codecs)| {
                [(entry, head, Side::Key, &*codecs.key), (entry, head, Side::Value, &*codecs.value)]
            })
        })
    }

    /// The most bytes of an arena that a sequence takes while it grows to `len` tokens in passes of at most `chunk`:
    /// its pages, and the exact rows of a pass beside them.
    pub fn arena_bytes(&self, len: usize, chunk: usize) -> usize {
        let slots = |pages: usize, codec: &dyn PageCodec| pages * Arena::slot_bytes(codec.page_bytes());
        let sides = self.sides().map(|(entry, _, _, side)| {
            let Pages { encoded, exact } = self.pages(entry, side, len, chunk);
            let sinks = usize::from(self.rule.sinks > 0 && len > 0);
            slots(encoded, side.codec()) + slots(exact, side.exact()) + slots(sinks, side.sinks())
        });
        sides.sum()
    }

    /// Bytes of memory that such a sequence comes to hold: those of the arena, and the handles of its pages.
    pub fn resident_bytes(&self, len: usize, chunk: usize) -> usize {
        let handles = self.sides().map(|(entry, _, _, side)| {
            let Pages { encoded, exact } = self.pages(entry, side, len, chunk);
            // Lists of pages double when they are full.
            let lists = encoded.next_power_of_two() + exact.next_power_of_two();
            (encoded + exact) * Page::LEASE_BYTES + lists * size_of::<Page>()
        });
        self.arena_bytes(len, chunk) + handles.sum::<usize>()
    }

    /// The most pages that a side holds meanwhile.
    fn pages(&self, entry: usize, side: &SideCodecs, len: usize, chunk: usize) -> Pages {
        let (rule, chunk, tokens) = (&self.rule, chunk.min(len), side.page_tokens());
        let all = len.saturating_sub(rule.sinks).div_ceil(tokens);
        // Pages cut by a chunk's two ends, by the window's, and the one more that is kept.
        let encoded = rule.window(self.entries[entry].shape.window).map_or(all, |window| {
            all.min(window.saturating_add(rule.recent).saturating_add(chunk) / tokens + 4)
        });
        // Where the codec keeps every number, exact pages are the encoded ones.
        match side.is_exact() {
            true => Pages { encoded, exact: 0 },
            false => Pages { encoded, exact: all.min(rule.recent.saturating_add(chunk) / tokens + 2) },
        }
    }

    /// Bytes per token of a long context: encoded pages with all their scales, windows aside.
    pub fn bytes_per_token(&self) -> f64 {
        self.sides().map(|(_, _, _, side)| side.codec().page_bytes() as f64 / side.page_tokens() as f64).sum()
    }
}
