//! The layout of a file: see the module's documentation for the table.

use super::{
    Cost, Klt, LearnedTransform, Plan, PlanError, PlannedHead, PlannedSlot, SideCalibration, VERSION,
};
use crate::policy::Policy;
use crate::snapshot::Signature;
use kvant_codec::{Dense, KvSpec};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"KVANTPLN";
/// Where the part starts that the checksum covers.
const COVERED: usize = 16;
/// Bytes before the header.
const FIXED: usize = 28;
/// Heads have no more channels.
const MAX_DIM: usize = 1024;

const MEAN: u8 = 1;
const RANGE: u8 = 2;
const KLT: u8 = 4;
const BALANCED: u8 = 8;
const LEARNED: u8 = 16;
const COSTS: u8 = 32;

pub(super) fn write(plan: &Plan) -> Vec<u8> {
    let hex: String = plan.model.iter().map(|byte| format!("{byte:02x}")).collect();
    let header = format!("model {hex}\npolicy {}\nmade {}\n", plan.policy, plan.made);
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 12]); // checksum and length, once they are known
    small(&mut bytes, header.len());
    bytes.extend(header.as_bytes());
    small(&mut bytes, plan.slots.len());
    for slot in &plan.slots {
        for count in [slot.heads.len(), slot.key_dim, slot.value_dim] {
            small(&mut bytes, count);
        }
    }
    for head in plan.slots.iter().flat_map(|slot| &slot.heads) {
        for side in [&head.key, &head.value] {
            write_side(&mut bytes, side);
        }
    }
    let length = bytes.len() as u64;
    bytes[COVERED..COVERED + 8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32fast::hash(&bytes[COVERED..]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn small(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend((number as u32).to_le_bytes());
}

fn write_side(bytes: &mut Vec<u8>, side: &SideCalibration) {
    let SideCalibration { mean, range, klt, balanced, learned, costs } = side;
    let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
    bytes.push(
        flag(mean.is_some(), MEAN)
            | flag(range.is_some(), RANGE)
            | flag(klt.is_some(), KLT)
            | flag(balanced.is_some(), BALANCED)
            | flag(!learned.is_empty(), LEARNED)
            | flag(!costs.is_empty(), COSTS),
    );
    let vectors = mean.iter().chain(range.iter().flatten()).map(Vec::as_slice);
    let of_klt = klt.iter().flat_map(|klt| [&klt.variances[..], klt.basis.matrix()]);
    for numbers in vectors.chain(of_klt).chain(balanced.iter().map(Vec::as_slice)) {
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
    if !learned.is_empty() {
        small(bytes, learned.len());
    }
    for LearnedTransform { spec, numbers } in learned {
        small(bytes, spec.len());
        bytes.extend(spec.as_bytes());
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
    if !costs.is_empty() {
        small(bytes, costs.len());
    }
    for Cost { spec, kl } in costs {
        small(bytes, spec.len());
        bytes.extend(spec.as_bytes());
        bytes.extend(kl.to_le_bytes());
    }
}

/// Reads and checks a whole file. Its digest is left to the caller.
pub(super) fn parse(bytes: &[u8]) -> Result<Plan, PlanError> {
    if !bytes.starts_with(MAGIC) {
        return Err(PlanError::Foreign);
    }
    let got = bytes.len() as u64;
    let mut fields = Fields { left: &bytes[MAGIC.len()..] };
    let (Some(found), Some(sum), Some(want)) =
        (fields.array().map(u32::from_le_bytes), fields.array().map(u32::from_le_bytes), fields.array())
    else {
        return Err(PlanError::Length { got, want: FIXED as u64 });
    };
    if found != VERSION {
        return Err(PlanError::Version { found });
    }
    let want = u64::from_le_bytes(want);
    if want != got {
        return Err(PlanError::Length { got, want });
    }
    if crc32fast::hash(&bytes[COVERED..]) != sum {
        return Err(PlanError::Damaged);
    }
    let plan = fields.plan()?;
    if !fields.left.is_empty() {
        return Err(PlanError::absurd("there is something after the last side"));
    }
    Ok(plan)
}

/// What is left to be read; nothing is taken beyond the end.
struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(count)?;
        self.left = left;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).ok()
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<f32>> {
        let (numbers, _) = self.take(count.checked_mul(4)?)?.as_chunks();
        Some(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }

    fn plan(&mut self) -> Result<Plan, PlanError> {
        let header = self.count().and_then(|length| self.take(length));
        let header = header.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let header = header.ok_or_else(|| PlanError::absurd("its header is no text"))?;
        let (model, policy, made) =
            read_header(header).ok_or_else(|| PlanError::absurd("its header is not of three lines"))?;
        let policy: Policy =
            policy.parse().map_err(|error| PlanError::absurd(format!("its policy: {error}")))?;
        let shapes = self.shapes().ok_or_else(|| PlanError::absurd("the shapes of its slots"))?;
        let mut slots = Vec::new();
        for (number, [heads, key_dim, value_dim]) in shapes.into_iter().enumerate() {
            let mut slot = PlannedSlot { key_dim, value_dim, heads: Vec::new() };
            for head in 0..heads {
                let mut side = |dim: usize| {
                    self.side(dim)
                        .map_err(|why| PlanError::absurd(format!("slot {number}, kv head {head}: {why}")))
                };
                slot.heads.push(PlannedHead { key: side(key_dim)?, value: side(value_dim)? });
            }
            slots.push(slot);
        }
        Ok(Plan { model, policy, made: made.to_owned(), slots, digest: [0; 32] })
    }

    /// kv heads, channels of a key and of a value.
    fn shapes(&mut self) -> Option<Vec<[usize; 3]>> {
        let count = self.count()?;
        let mut shapes = Fields { left: self.take(count.checked_mul(12)?)? };
        let shape = |_| {
            let shape @ [heads, key_dim, value_dim] = [shapes.count()?, shapes.count()?, shapes.count()?];
            // What keeps no keys and values has no channels either; latents may have no rotated part.
            let least = usize::from(heads > 0);
            (key_dim <= MAX_DIM && (least..=MAX_DIM).contains(&value_dim)).then_some(shape)
        };
        (0..count).map(shape).collect()
    }

    fn side(&mut self, dim: usize) -> Result<SideCalibration, String> {
        let [parts] = self.array().ok_or("it ends too early")?;
        if parts > MEAN | RANGE | KLT | BALANCED | LEARNED | COSTS {
            return Err(format!("it has parts that are not known ({parts:#x})"));
        }
        let mut numbers = |count: usize| self.finite(count);
        let mut side = SideCalibration::default();
        if parts & MEAN != 0 {
            side.mean = Some(numbers(dim)?);
        }
        if parts & RANGE != 0 {
            let range @ [low, high] = &[numbers(dim)?, numbers(dim)?];
            if low.iter().zip(high).any(|(low, high)| low > high) {
                return Err("a range ends before it begins".to_owned());
            }
            side.range = Some(range.clone());
        }
        if parts & KLT != 0 {
            let (variances, matrix) = (numbers(dim)?, numbers(dim * dim)?);
            if !variances.is_sorted_by(|a, b| a >= b) || variances.iter().any(|x| *x < 0.0) {
                return Err("variances are negative or out of order".to_owned());
            }
            let basis = Dense::of(dim, matrix).map_err(|error| error.to_string())?;
            side.klt = Some(Klt { basis: Arc::new(basis), variances });
        }
        if parts & BALANCED != 0 {
            side.balanced = Some(numbers(dim * dim)?);
        }
        if parts & LEARNED != 0 {
            let count = self.count().filter(|count| *count > 0).ok_or("it has learned nothing")?;
            for _ in 0..count {
                side.learned.push(self.trained(dim)?);
            }
        }
        if parts & COSTS != 0 {
            let count = self.count().filter(|count| *count > 0).ok_or("it has costs of no codec")?;
            for _ in 0..count {
                side.costs.push(self.cost()?);
            }
        }
        Ok(side)
    }

    fn finite(&mut self, count: usize) -> Result<Vec<f32>, &'static str> {
        let numbers = self.numbers(count).ok_or("it ends too early")?;
        let is_finite = numbers.iter().all(|x| x.is_finite());
        if is_finite { Ok(numbers) } else { Err("a number is not finite") }
    }

    fn cost(&mut self) -> Result<Cost, String> {
        let spec = self.count().and_then(|length| self.take(length)).ok_or("it ends too early")?;
        let is_printed =
            |text: &&str| text.parse::<KvSpec>().is_ok_and(|spec| spec.key.to_string() == **text);
        let spec = std::str::from_utf8(spec).ok().filter(is_printed).ok_or("it has the cost of no spec")?;
        let kl = self.finite(1)?[0];
        if kl < 0.0 {
            return Err("a codec costs less than nothing".to_owned());
        }
        Ok(Cost { spec: spec.to_owned(), kl })
    }

    fn trained(&mut self, dim: usize) -> Result<LearnedTransform, String> {
        let spec = self.count().and_then(|length| self.take(length)).ok_or("it ends too early")?;
        let spec = std::str::from_utf8(spec).ok().filter(|spec| is_learned(spec));
        let spec = spec.ok_or("it was learned for no spec that learns")?.to_owned();
        let mut trained = LearnedTransform { spec, numbers: Vec::new() };
        trained.numbers = self.finite(dim.pow(trained.power()))?;
        Ok(trained)
    }
}

/// Whether it is how a spec of one side is printed that takes something learned.
fn is_learned(text: &str) -> bool {
    let spec = text.parse::<KvSpec>();
    spec.is_ok_and(|spec| spec.key.options.learned.is_some() && spec.to_string() == text)
}

/// Signature, policy and how it was made; nothing but what [`write`] writes.
fn read_header(header: &str) -> Option<(Signature, &str, &str)> {
    let mut lines = header.strip_suffix('\n')?.split('\n');
    let model = lines.next()?.strip_prefix("model ")?;
    let policy = lines.next()?.strip_prefix("policy ")?;
    let made = lines.next()?.strip_prefix("made ")?;
    if lines.next().is_some() || model.len() != 64 {
        return None;
    }
    let mut signature = [0; 32];
    for (byte, digits) in signature.iter_mut().zip(model.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16).filter(|_| !c.is_ascii_uppercase());
        *byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
    }
    Some((signature, policy, made))
}
