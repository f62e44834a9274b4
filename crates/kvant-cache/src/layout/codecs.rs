//! The codecs of a kv head.

use crate::error::LayoutError;
use kvant_codec::{
    BuildError, Calibration, CodecSpec, DecodedCodec, Element, ExactCodec, PageCodec, PageSize, Side, Tier,
};
use std::sync::Arc;

/// The codecs of one side of one kv head: that of the pages, and those of the rows not encoded.
pub struct SideCodecs {
    codec: Arc<dyn PageCodec>,
    exact: ExactCodec,
    sinks: ExactCodec,
    /// Exact pages are what the codec would make of them.
    is_exact: bool,
    /// The codec that was asked for cannot serve so few channels.
    stands_in: bool,
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

    /// f16 in the place of a spec that cannot serve so few channels, with pages of its size.
    pub(super) fn in_place_of(
        spec: &CodecSpec,
        side: Side,
        dim: usize,
        tier: Tier,
    ) -> Result<SideCodecs, BuildError> {
        let (page, element) = (spec.options.page, Element::F16);
        let codec = Arc::new(ExactCodec::new(element, page, side, dim, tier)?);
        Ok(SideCodecs { stands_in: true, ..SideCodecs::from_parts(codec, element, page, true, tier)? })
    }

    /// Whether it stands in for a codec that cannot serve so few channels.
    pub(super) fn stands_in(&self) -> bool {
        self.stands_in
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
            layer: 0,
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
        Ok(SideCodecs { codec, exact, sinks, is_exact, stands_in: false })
    }

    /// The same with pages that are decoded before they are attended to; exact ones stay what they are.
    fn decoded(&self) -> SideCodecs {
        let codec: Arc<dyn PageCodec> = match self.is_exact {
            true => Arc::clone(&self.codec),
            false => Arc::new(DecodedCodec::new(Arc::clone(&self.codec))),
        };
        SideCodecs { codec, exact: self.exact.clone(), sinks: self.sinks.clone(), ..*self }
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
    pub(super) key: Option<Arc<SideCodecs>>,
    pub(super) value: Arc<SideCodecs>,
}

impl HeadCodecs {
    /// Refuses pages of different sizes.
    pub(super) fn read_together(&self, layer: usize) -> Result<(), LayoutError> {
        let value = self.value.page_tokens();
        match self.key.as_ref().map(|key| key.page_tokens()) {
            Some(key) if key != value => Err(LayoutError::LatentPages { layer, key, value }),
            _ => Ok(()),
        }
    }

    /// The same without kernels: see [`CacheLayout::decoded`](super::CacheLayout::decoded).
    pub(super) fn decoded(&self) -> HeadCodecs {
        let key = self.key.as_ref().map(|key| Arc::new(key.decoded()));
        HeadCodecs { key, value: Arc::new(self.value.decoded()) }
    }

    /// Those of a side; a latent without a rotated part has no keys.
    pub fn side(&self, side: Side) -> Option<&Arc<SideCodecs>> {
        match side {
            Side::Key => self.key.as_ref(),
            Side::Value => Some(&self.value),
        }
    }

    /// The sides it has, keys first.
    pub fn sides(&self) -> impl Iterator<Item = (Side, &Arc<SideCodecs>)> {
        let key = self.key.iter().map(|codecs| (Side::Key, codecs));
        key.chain([(Side::Value, &self.value)])
    }
}
