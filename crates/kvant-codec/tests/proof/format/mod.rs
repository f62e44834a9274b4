//! The page format: a reader that knows the document and nothing else gets what `decode` gets.

mod fixtures;
mod reader;

use crate::case::{Case, SIDES, decoded, encoded, taken};
use crate::random::{Kind, Random};
use kvant_codec::format::PageFormat;
use kvant_codec::{CodecSpec, PageCodec, PageSize, Side, catalogue};
use reader::read;

/// Head dimensions of models, with and without padding.
const DIMS: [usize; 9] = [48, 64, 72, 80, 96, 128, 192, 256, 512];
const PAGES: [PageSize; 3] = [PageSize::P32, PageSize::P64, PageSize::P128];

/// Whether a page of the codec reads as it decodes, within the rounding of f32.
fn agrees(codec: &dyn PageCodec, page: &[u8]) -> Result<(), String> {
    let format = codec.format().ok_or("no format")?;
    let read = read(&format, page);
    for (t, (read, decoded)) in read.iter().zip(decoded(codec, page).chunks_exact(codec.dim())).enumerate() {
        for (c, (want, got)) in read.numbers.iter().zip(decoded).enumerate() {
            let error = (f64::from(*got) - want).abs();
            if error.is_nan() || error > 2e-6 * read.magnitude + 1.2e-7 * want.abs() {
                return Err(format!("token {t}, channel {c}: decoded {got:e}, read {want:e}"));
            }
        }
    }
    Ok(())
}

/// What the catalogue has on a side, each once.
fn shown(side: Side) -> Vec<CodecSpec> {
    let mut specs: Vec<CodecSpec> = Vec::new();
    for shown in catalogue() {
        let spec = shown.spec.side(side);
        if !specs.contains(spec) {
            specs.push(spec.clone());
        }
    }
    specs
}

#[test]
fn a_stranger_reads_every_codec_of_the_catalogue() {
    let (mut turn, mut read) = (0, 0);
    for (dim, side) in DIMS.into_iter().flat_map(|dim| SIDES.map(|side| (dim, side))) {
        for (spec, page) in shown(side).into_iter().flat_map(|spec| PAGES.map(|page| (spec.clone(), page))) {
            turn += 1;
            // Seven and three page sizes share no factor: haste leaves out no size.
            if !taken(turn) {
                continue;
            }
            let mut case = Case { spec, side, dim };
            case.spec.options.page = page;
            let codec = case.best();
            if codec.format().is_none() {
                continue;
            }
            let kind = Kind::ALL[turn % Kind::ALL.len()];
            let rows = kind.rows(codec.page_tokens(), dim, &mut Random::new(turn as u64));
            agrees(&*codec, &encoded(&*codec, &rows)).unwrap_or_else(|e| panic!("{case:?}, {kind:?}: {e}"));
            read += 1;
        }
    }
    assert!(read > turn / 14, "{read} pages of {turn} were read");
}

/// Options that the catalogue does not show, and what only a plan can give: means, λ, matrices, widths.
#[test]
fn a_stranger_reads_every_option_and_plan() {
    let learned = ["srht4:balanced", "srft4:cayley", "srft4:scaled", "ch4:householder", "klt:p32"];
    for (dim, side) in [12, 48, 72, 128].into_iter().flat_map(|dim| SIDES.map(|side| (dim, side))) {
        let cases = Case::all(side, dim).chain(learned.map(|part| Case::new(part, side, dim)));
        for (turn, case) in cases.enumerate().filter(|(turn, _)| taken(*turn)) {
            let codec = case.best();
            if codec.format().is_some() {
                let rows = Kind::Gaussian.rows(codec.page_tokens(), dim, &mut Random::new(turn as u64));
                agrees(&*codec, &encoded(&*codec, &rows)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            }
        }
    }
}

#[test]
fn all_but_three_families_have_a_format() {
    for (side, dim) in SIDES.into_iter().flat_map(|side| [(side, 64), (side, 72)]) {
        for case in Case::all(side, dim) {
            let codec = case.best();
            let apart = ["polar", "delta", "turbo"].contains(&case.spec.family.name);
            match codec.format() {
                Some(format) => {
                    let shape = (format.side(), format.dim(), format.tokens(), format.bytes());
                    let stated = (codec.side(), codec.dim(), codec.page_tokens(), codec.page_bytes());
                    assert_eq!(shape, stated, "{case:?}");
                    assert!(!apart, "{case:?} has a format: its documentation says that it has none");
                    assert_eq!(Some(format), case.best().format(), "built twice, {case:?} differs");
                }
                None => assert!(apart, "{case:?} has no format"),
            }
        }
    }
}

/// The parts of a packed page, and for each some bytes that real channels depend on.
fn parts(format: &PageFormat) -> Vec<(&'static str, Vec<usize>)> {
    let format = match format {
        PageFormat::Packed(format) => format,
        PageFormat::Exact(_) => return vec![("numbers", vec![0, 5])],
        PageFormat::Trellis(format) => {
            // The last codes are of channels that only fill up the last vector.
            let codes = vec![format.codes(), format.codes() + 5];
            return vec![("heads", vec![0, 1]), ("channel scales", vec![format.scales()]), ("codes", codes)];
        }
    };
    let size = format.scales.bytes();
    let mut parts: Vec<(&str, Vec<usize>)> = vec![
        // The first channels of the first unit; with all bits of a byte changed, at least one of its codes is theirs.
        ("codes", format.spans.iter().flat_map(|span| [span.codes, span.codes + 5]).collect()),
    ];
    let real = format.dim.min(format.coded);
    let token = format.groups * format.tokens;
    for (name, array, count) in [
        ("channel scales", &format.channel_scale, real),
        ("channel zeros", &format.channel_zero, real),
        ("token scales", &format.token_scale, token),
        ("token zeros", &format.token_zero, token),
    ] {
        if let Some(array) = array {
            let entries = [0, count / 2, count - 1].map(|entry| array.start + entry * size);
            // Both ends of an entry: low bits of its fraction, and sign and exponent.
            parts.push((name, entries.into_iter().flat_map(|at| [at, at + size - 1]).collect()));
        }
    }
    parts
}

#[test]
fn a_corrupted_byte_of_any_part_changes_what_a_stranger_reads() {
    let mut seen: Vec<&str> = Vec::new();
    for side in SIDES {
        for (turn, spec) in shown(side).into_iter().enumerate() {
            let case = Case { spec, side, dim: 72 };
            let codec = case.best();
            let Some(format) = codec.format() else { continue };
            seen.extend(parts(&format).into_iter().map(|(part, _)| part));
            if !taken(turn) {
                continue;
            }
            let rows = Kind::Gaussian.rows(codec.page_tokens(), 72, &mut Random::new(turn as u64));
            let mut page = encoded(&*codec, &rows);
            let before = read(&format, &page);
            for (part, bytes) in parts(&format) {
                for byte in bytes {
                    page[byte] ^= 0xFF;
                    let after = read(&format, &page);
                    assert_ne!(after, before, "{case:?}: byte {byte} of the {part} is not read");
                    if after.iter().flat_map(|x| &x.numbers).all(|x| x.is_finite()) {
                        agrees(&*codec, &page).unwrap_or_else(|e| panic!("{case:?}, {part}: {e}"));
                    }
                    page[byte] ^= 0xFF;
                }
            }
        }
    }
    for part in ["numbers", "codes", "channel scales", "channel zeros", "token scales", "token zeros"] {
        assert!(seen.contains(&part), "no page with {part}");
    }
}
