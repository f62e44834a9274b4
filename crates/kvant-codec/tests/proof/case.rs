//! Which codecs are tested, at which dimensions, with which plan.

use crate::oracle::basis::Affine;
use crate::oracle::number::{BF16, F16, F32};
use crate::oracle::{Twin, delta, polar, trellis};
use crate::random::Random;
use kvant_codec::format::{PageFormat, TrellisFormat};
use kvant_codec::{
    Calibration, CodecSpec, Dense, FAMILIES, KvSpec, Options, PageCodec, Rotation, Side, Tier,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

pub const SIDES: [Side; 2] = [Side::Key, Side::Value];

/// Head dimensions of real models, and then some.
pub const DIMS: [usize; 11] = [48, 64, 72, 80, 96, 112, 128, 192, 256, 512, 576];

/// Every family, every rule under every scaling, every width, every option. Presets are made of these.
pub const PARTS: [&str; 84] = [
    "f32",
    "f16",
    "bf16",
    "f16:p32",
    "f32:p128", //
    "ch1",
    "ch2",
    "ch3",
    "ch4",
    "ch5",
    "ch6",
    "ch7",
    "ch8",
    "ch4:p128",
    "ch4:s32,p32",
    "ch4:mean",
    "ch4:srht", //
    "ch4:asym",
    "ch3:fitmax",
    "ch4:sym",
    "ch3:max",
    "ch2:lm",
    "ch8:sym", //
    "rot2g32",
    "rot3g32",
    "rot4g32",
    "rot4g16",
    "rot4g64",
    "rot4:token,p128",
    "rot4g32:max",
    "rot4g32:fitasym",
    "rot5g32",
    "rot6g32",
    "rot8:mean", //
    "srht4",
    "srft4",
    "srft8",
    "srft4:token,p32",
    "srft4:lambda,mean",
    "srft3g64:seed=7", //
    "sym2",
    "sym8g32",
    "sym8:had64",
    "max4:had64",
    "max5:had64",
    "max7g16:s32", //
    "asym1",
    "asym3g16",
    "asym4",
    "asym4:token,p128",
    "asym6:srft",
    "asym8:s32,p32", //
    "tq1",
    "tq2",
    "tq2:g32",
    "tq3",
    "tq4",
    "tq5:p32", //
    "chg4",
    "chg3:max,chg64",
    "chg5:lm,chg16,p32",
    "klt", //
    "uniform2",
    "uniform4",
    "uniform3g32:srht",
    "uniform4:ch",
    "asym5:had64",
    "asym4g128:p32",
    "chg4:chg128",
    "nf4",
    "nf4g32:srft,p32",
    "nf4:ch",
    "iq4",
    "iq4:had64",
    "tq3:haar",
    "qjl1",
    "qjl1:seed=9,p128", //
    "turbo3",
    "turbo4:haar,p32",
    "polar3",
    "polar4:p32",
    "polar5:haar",
    "delta3",
    "delta4:srht,token",
];

/// Whether to take this turn of a long list: every one, or one in seven where `PROPTEST_CASES` asks for haste, as it does
/// under an emulator.
pub fn taken(turn: usize) -> bool {
    is_unhurried() || turn.is_multiple_of(7)
}

/// The same of hundreds: one in seventeen.
pub fn taken_of_many(turn: usize) -> bool {
    is_unhurried() || turn.is_multiple_of(17)
}

fn is_unhurried() -> bool {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256) >= 64
}

/// A codec to test.
#[derive(Clone, Debug)]
pub struct Case {
    pub spec: CodecSpec,
    pub side: Side,
    pub dim: usize,
}

impl Case {
    pub fn new(part: &str, side: Side, dim: usize) -> Case {
        let spec: KvSpec = part.parse().unwrap_or_else(|e| panic!("{e}"));
        Case { spec: spec.side(side).clone(), side, dim }
    }

    /// Every part of one dimension and side, and what else the registry shows: a new codec is tested without being listed.
    pub fn all(side: Side, dim: usize) -> impl Iterator<Item = Case> {
        let listed: Vec<Case> = PARTS.iter().map(|part| Case::new(part, side, dim)).collect();
        let shown = FAMILIES.iter().flat_map(|family| family.shown.iter().map(move |bits| (*family, *bits)));
        let registered: Vec<Case> = shown
            .map(|(family, bits)| CodecSpec { family, bits, options: family.defaults })
            .filter(|spec| listed.iter().all(|case| case.spec != *spec))
            .map(|spec| Case { spec, side, dim })
            .collect();
        listed.into_iter().chain(registered)
    }

    pub fn codec(&self, tier: Tier) -> Box<dyn PageCodec> {
        self.spec
            .build_with(self.side, self.dim, &self.plan().calibration, tier)
            .unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// With a plan of other widths, one for every row of channels.
    pub fn codec_of_widths(&self, tier: Tier, widths: &[u8]) -> Box<dyn PageCodec> {
        let calibration = Calibration { widths: Some(widths.to_vec()), ..self.plan().calibration.clone() };
        self.spec
            .build_with(self.side, self.dim, &calibration, tier)
            .unwrap_or_else(|e| panic!("{self:?}, {widths:?}: {e}"))
    }

    /// On the fastest tier.
    pub fn best(&self) -> Box<dyn PageCodec> {
        self.codec(Tier::available().last().unwrap())
    }

    /// `None` for families that are not scalar.
    pub fn twin(&self) -> Option<Twin> {
        let plan = self.plan();
        Twin::new(&self.spec, self.side, self.dim, &plan.calibration, &plan.matrices)
    }

    /// The codecs that one of `turbo` is made of.
    pub fn parts(&self) -> [Case; 2] {
        let Options { page, scales, seed, rotation, .. } = self.spec.options;
        let part = |text: &str, seed: u64, rotation: Option<Rotation>| {
            let mut part = Case::new(text, self.side, self.dim);
            part.spec.options = Options { page, scales, seed, ..part.spec.options };
            part.spec.options.rotation = rotation.unwrap_or(part.spec.options.rotation);
            part
        };
        [part(&format!("tq{}", self.spec.bits - 1), seed, Some(rotation)), part("qjl1", !seed, None)]
    }

    /// The codec of the differences of one of `delta`: in its basis already.
    pub fn differences(&self) -> Case {
        let mut inner = Case::new(&format!("max{}", self.spec.bits), self.side, self.dim);
        inner.spec.options = Options { rotation: Rotation::Identity, ..self.spec.options };
        inner
    }

    /// The format of a trellis codec.
    pub fn trellis(&self) -> Option<Arc<TrellisFormat>> {
        if self.spec.family.name != "trellis" && !self.spec.options.trellis {
            return None;
        }
        match self.best().format() {
            Some(PageFormat::Trellis(format)) => Some(format),
            _ => None,
        }
    }

    /// The basis of a trellis codec: of keys the model's or the plan's, of values an SRHT.
    pub fn trellis_basis(&self) -> Affine {
        let (plan, mut spec) = (self.plan(), self.spec.clone());
        if self.side == Side::Value {
            spec.options.rotation = Rotation::Srht;
        }
        Affine::new(&spec, self.dim, &plan.calibration, self.spec.options.trellis.then_some(&plan.matrices))
    }

    fn plan(&self) -> Arc<Plan> {
        type Plans = Mutex<HashMap<(Side, usize), Arc<Plan>>>;
        static PLANS: OnceLock<Plans> = OnceLock::new();
        let mut plans = PLANS.get_or_init(Mutex::default).lock().unwrap();
        Arc::clone(
            plans.entry((self.side, self.dim)).or_insert_with(|| Arc::new(Plan::new(self.side, self.dim))),
        )
    }
}

/// Whether a page and what it decodes to are what the codec's formulas say.
pub fn follows(case: &Case, rows: &[f32], page: &[u8], decoded: &[f32]) -> Result<(), String> {
    if case.trellis().is_some() {
        return trellis::check(case, rows, page, decoded);
    }
    match (case.spec.family.name, case.twin()) {
        (_, Some(twin)) => twin.check(rows, page, decoded),
        ("polar", _) => polar::check(case, rows, page, decoded),
        ("turbo", _) => {
            // The first page codes the vectors, the second what the first left over.
            let [coarse, sketch] = case.parts();
            let (first, second) = page.split_at(coarse.best().page_bytes());
            let [first_rows, second_rows] =
                [(&coarse, first), (&sketch, second)].map(|(part, page)| self::decoded(&*part.best(), page));
            let residual: Vec<f32> = rows.iter().zip(&first_rows).map(|(x, y)| x - y).collect();
            follows(&coarse, rows, first, &first_rows)?;
            follows(&sketch, &residual, second, &second_rows)?;
            let sums = first_rows.iter().zip(&second_rows).map(|(x, y)| x + y);
            let same = sums.zip(decoded).all(|(want, got)| want == *got);
            same.then_some(()).ok_or_else(|| "the parts do not add up".to_owned())
        }
        ("delta", _) => delta::check(case, rows, page, decoded),
        (name, _) => {
            let format = match name {
                "f32" => F32,
                "f16" => F16,
                "bf16" => BF16,
                _ => return Err(format!("`{name}` has no twin: write one in oracle/")),
            };
            let wrong =
                rows.iter().zip(decoded).position(|(x, got)| f64::from(*got) != format.round(f64::from(*x)));
            wrong.map_or(Ok(()), |n| Err(format!("number {n}: {:e} became {:e}", rows[n], decoded[n])))
        }
    }
}

/// Encodes; the input must be fit for the codec.
pub fn encoded(codec: &dyn PageCodec, rows: &[f32]) -> Vec<u8> {
    let mut page = vec![0; codec.page_bytes()];
    codec.encode(rows, &mut page).unwrap();
    page
}

/// Decodes, (tokens, dim).
pub fn decoded(codec: &dyn PageCodec, page: &[u8]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; codec.page_tokens() * codec.dim()];
    codec.decode(page, &mut rows).unwrap();
    rows
}

/// A plan with every part a spec may ask for.
struct Plan {
    calibration: Calibration,
    /// The basis and its inverse as given, in f64.
    matrices: (Arc<Vec<f64>>, Arc<Vec<f64>>),
}

impl Plan {
    fn new(side: Side, dim: usize) -> Plan {
        let mut random = Random::new(dim as u64);
        let lambda: Vec<f32> = (0..dim).map(|_| (0.5 + 1.5 * random.unit()) as f32).collect();
        // B = D·(I − 2vvᵀ) with a diagonal D: invertible, dense, not orthonormal.
        let mut v: Vec<f64> = (0..dim).map(|_| random.gaussian()).collect();
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        v.iter_mut().for_each(|x| *x /= length);
        let stretch: Vec<f64> = (0..dim).map(|_| 0.5 + random.unit()).collect();
        let reflection = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j];
        let forward: Vec<f32> =
            (0..dim * dim).map(|n| (stretch[n / dim] * reflection(n / dim, n % dim)) as f32).collect();
        let inverse: Vec<f32> =
            (0..dim * dim).map(|n| (reflection(n / dim, n % dim) / stretch[n % dim]) as f32).collect();
        let wide = |m: &[f32]| Arc::new(m.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        let matrices = (wide(&forward), wide(&inverse));
        let rows = dim.div_ceil(match side {
            Side::Key => 8,
            Side::Value => 16,
        });
        let widths = (0..rows).map(|row| [8, 6, 5, 4, 3, 2, 1, 0][8 * row / rows]).collect();
        let calibration = Calibration {
            mean: Some(random.gaussians(dim)),
            lambda: Some(lambda),
            basis: (dim <= 576).then(|| Arc::new(Dense::new(dim, forward, inverse).unwrap())),
            widths: Some(widths),
        };
        Plan { calibration, matrices }
    }
}
