//! Codecs that bits may be spent on, and which of them are measured on a whole side.

use kvant_codec::{CodecSpec, KvSpec, Side};

/// What keys are tried with.
const KEY_PROBE: &str = "klt3:trellis";
/// What values are tried with.
const VALUE_PROBE: &str = "trellis3";

/// Codecs of one kind, fewest bits first, some of which are measured on a whole side.
pub(super) struct Family {
    /// What may be chosen.
    pub offered: &'static [&'static str],
    /// Which of it are measured.
    pub measured: &'static [&'static str],
}

/// What keys may get: trellis codes by quarters of a bit where bits are few, scalar ones where there are many.
const KEYS: [Family; 3] = [
    Family {
        offered: &[
            "klt2:trellis",
            "klt2.25:trellis",
            "klt2.5:trellis",
            "klt2.75:trellis",
            "klt3:trellis",
            "klt3.25:trellis",
            "klt3.5:trellis",
            "klt3.75:trellis",
            "klt4:trellis",
            "klt4.5:trellis",
        ],
        measured: &["klt2:trellis", "klt3:trellis", "klt4:trellis"],
    },
    // In the basis of the model: errors of another make.
    Family { offered: &["ch4"], measured: &["ch4"] },
    Family { offered: &["klt4", "klt4.5", "klt5", "klt5.5", "klt6"], measured: &["klt4"] },
];
/// What values may get.
const VALUES: [Family; 2] = [
    Family {
        offered: &[
            "trellis2",
            "trellis2.25",
            "trellis2.5",
            "trellis2.75",
            "trellis3",
            "trellis3.5",
            "trellis4",
        ],
        measured: &["trellis2", "trellis3", "trellis4"],
    },
    Family { offered: &["tq4", "rot4g32", "rot5g32"], measured: &["rot4g32"] },
];

fn codec(text: &str) -> CodecSpec {
    text.parse::<KvSpec>().expect("a spec of the grammar").key
}

/// What one side of one layer is tried with.
pub(super) fn probe(side: Side) -> CodecSpec {
    codec(match side {
        Side::Key => KEY_PROBE,
        Side::Value => VALUE_PROBE,
    })
}

/// What may be chosen for a side.
pub(super) fn families(side: Side) -> &'static [Family] {
    match side {
        Side::Key => &KEYS,
        Side::Value => &VALUES,
    }
}

/// All of it, family by family.
pub(super) fn offered(side: Side) -> Vec<CodecSpec> {
    families(side).iter().flat_map(|family| family.offered).map(|name| codec(name)).collect()
}

/// The codec of a side that rounds least.
pub(super) fn finest(side: Side) -> CodecSpec {
    codec(match side {
        Side::Key => "klt6",
        Side::Value => "rot5g32",
    })
}

/// What is measured on a whole side, family by family.
pub(super) fn measured(side: Side) -> Vec<CodecSpec> {
    families(side).iter().flat_map(|family| family.measured).map(|name| codec(name)).collect()
}

/// Between points in order, and beyond them as at the nearest; zero where there are none.
pub(super) fn interpolated(points: &[(f64, f64)], at: f64) -> f64 {
    let above = points.iter().position(|(x, _)| *x >= at).unwrap_or(points.len());
    match (above.checked_sub(1).and_then(|below| points.get(below)), points.get(above)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (at - x0) / (x1 - x0),
        (Some((_, y)), None) | (None, Some((_, y))) => *y,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_read_off_between_points_and_held_beyond() {
        let points = [(2.0, 1.0), (3.0, 0.0), (5.0, 4.0)];
        for (at, want) in [(1.0, 1.0), (2.0, 1.0), (2.5, 0.5), (3.0, 0.0), (4.0, 2.0), (5.0, 4.0), (9.0, 4.0)]
        {
            assert_eq!(interpolated(&points, at), want, "{at}");
        }
        assert_eq!(interpolated(&points[..1], 7.0), 1.0);
    }

    #[test]
    fn everything_measured_is_offered() {
        for side in [Side::Key, Side::Value] {
            for family in families(side) {
                assert!(!family.measured.is_empty());
                assert!(family.measured.iter().all(|name| family.offered.contains(name)));
            }
            assert!(offered(side).contains(&probe(side)));
        }
    }
}
