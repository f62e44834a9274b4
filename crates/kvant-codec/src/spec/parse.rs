//! Text to spec, with errors that point.

use super::print::group_suffix;
use super::{CodecSpec, KvSpec, PRESETS, Preset};
use crate::codec::option::{SEED, WORDS};
use crate::codec::{FAMILIES, Family, Options, Scaling};
use crate::format::Side;
use crate::quant::allocation::Budget;
use std::fmt;

/// Text that is no spec: what is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    text: String,
    position: usize,
    reason: String,
}

impl SpecError {
    /// Byte offset of the offending character.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What is wrong and what is allowed, without the picture.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.text.get(..self.position).map_or(self.position, |before| before.chars().count());
        writeln!(f, "not a KV codec spec: {}", self.reason)?;
        writeln!(f, "  {}", self.text)?;
        write!(f, "  {:column$}^", "")
    }
}

impl std::error::Error for SpecError {}

/// An error before its text is known: position and reason.
type Fault = (usize, String);

fn named(text: &str, fault: Fault) -> SpecError {
    SpecError { text: text.to_owned(), position: fault.0, reason: fault.1 }
}

/// A comma-separated item and where it starts.
#[derive(Clone, Copy)]
struct Item<'a> {
    at: usize,
    text: &'a str,
}

fn items(text: &str) -> Vec<Item<'_>> {
    let mut at = 0;
    text.split(',')
        .map(|piece| {
            let item = Item { at, text: piece };
            at += piece.len() + 1;
            item.trimmed()
        })
        .collect()
}

impl<'a> Item<'a> {
    fn trimmed(self) -> Item<'a> {
        let start = self.text.len() - self.text.trim_start().len();
        Item { at: self.at + start, text: self.text.trim() }
    }

    fn after(self, prefix: &str) -> Option<Item<'a>> {
        let rest = self.text.strip_prefix(prefix)?;
        Some(Item { at: self.at + prefix.len(), text: rest }.trimmed())
    }

    /// Whether it can only be an option of the part before it.
    fn is_option(self) -> bool {
        self.text.starts_with("seed=")
            || (WORDS.iter().any(|word| word.text == self.text) && !is_name(self.text))
    }
}

/// Whether a word could start a part; `srht` alone is an option, `f16` a family.
fn is_name(text: &str) -> bool {
    Preset::find(text).is_some() || FAMILIES.iter().any(|family| family.bits.is_none() && family.name == text)
}

pub(super) fn whole(text: &str) -> Result<KvSpec, SpecError> {
    let items = items(text);
    let (spec, used) = spec(&items).map_err(|fault| named(text, fault))?;
    match items.get(used) {
        None => Ok(spec),
        Some(extra) => Err(named(text, unexpected(*extra))),
    }
}

pub(super) fn list(text: &str) -> Result<Vec<KvSpec>, SpecError> {
    let items = items(text);
    let mut rest = items.as_slice();
    let mut specs = Vec::new();
    while !rest.is_empty() {
        let (spec, used) = spec(rest).map_err(|fault| named(text, fault))?;
        specs.push(spec);
        rest = &rest[used..];
    }
    Ok(specs)
}

/// A part that is a family with options, as presets are written.
pub(super) fn part_alone(text: &str) -> Result<CodecSpec, SpecError> {
    let items = items(text);
    part(&items, None).map(|(spec, _)| spec).map_err(|fault| named(text, fault))
}

fn unexpected(item: Item<'_>) -> Fault {
    let what = if item.text.is_empty() {
        "nothing follows the comma".to_owned()
    } else {
        format!("`{}` does not belong here", item.text)
    };
    (item.at, format!("{what}; a spec is a preset, a codec, or k=CODEC,v=CODEC"))
}

/// One spec from the front of `items`, and how many it took.
fn spec(items: &[Item<'_>]) -> Result<(KvSpec, usize), Fault> {
    let first = items[0];
    let sided = |item: Item<'_>, letter: &str, side: Side, rest: &[Item<'_>]| {
        item.after(letter).and_then(|item| item.after("=")).map(|item| {
            let mut list = vec![item];
            list.extend_from_slice(rest);
            part(&list, Some(side))
        })
    };
    if let Some(key) = sided(first, "k", Side::Key, &items[1..]) {
        let (key, used) = key?;
        let Some(second) = items.get(used) else {
            return Err((end(items), "the values are missing: add `,v=CODEC`".to_owned()));
        };
        let Some(value) = sided(*second, "v", Side::Value, &items[used + 1..]) else {
            return Err((second.at, format!("`v=CODEC` must follow the keys, not `{}`", second.text)));
        };
        let (value, more) = value?;
        return Ok((KvSpec { key, value }, used + more));
    }
    if first.text.starts_with("v=") {
        return Err((first.at, "keys come first: write `k=CODEC,v=CODEC`".to_owned()));
    }
    let name = first.text.split(':').next().unwrap_or_default().trim_end();
    if Preset::find(name).is_some() {
        // Options of a preset are for both of its halves.
        let ((key, used), (value, _)) = (part(items, Some(Side::Key))?, part(items, Some(Side::Value))?);
        return Ok((KvSpec { key, value }, used));
    }
    let (both, used) = part(items, None)?;
    Ok((KvSpec::both(both), used))
}

fn end(items: &[Item<'_>]) -> usize {
    items.last().map_or(0, |item| item.at + item.text.len())
}

/// One part from the front of `items`, and how many it took. With a side, a preset's half may stand for it.
fn part(items: &[Item<'_>], side: Option<Side>) -> Result<(CodecSpec, usize), Fault> {
    let first = items[0];
    let (name, option) = match first.text.split_once(':') {
        Some((name, option)) => (
            Item { at: first.at, text: name }.trimmed(),
            Some(Item { at: first.at + name.len() + 1, text: option }.trimmed()),
        ),
        None => (first, None),
    };
    let mut spec = match (side, Preset::find(name.text)) {
        (Some(side), Some(preset)) => preset.spec().side(side).clone(),
        _ => family(name)?,
    };
    let mut used = 1;
    if let Some(option) = option {
        apply(&mut spec, option)?;
        while let Some(item) = items.get(used).filter(|item| item.is_option()) {
            apply(&mut spec, *item)?;
            used += 1;
        }
    }
    Ok((spec.canonical(), used))
}

/// `name[bits][group]`.
fn family(item: Item<'_>) -> Result<CodecSpec, Fault> {
    let text = item.text;
    if let Some(family) = FAMILIES.iter().find(|family| family.bits.is_none() && family.name == text) {
        return Ok(CodecSpec { family, bits: 0, options: family.defaults });
    }
    let letters = text.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(text.len());
    let sharing = FAMILIES.iter().find(|family| family.shares_bits() && family.name == &text[..letters]);
    if let Some(family) = sharing {
        let budget = budget(Item { at: item.at + letters, text: &text[letters..] }, family)?;
        return Ok(CodecSpec { family, bits: 0, options: Options { budget, ..family.defaults } });
    }
    let Some(family) =
        FAMILIES.iter().find(|family| family.bits.is_some() && family.name == &text[..letters])
    else {
        let what = if text.is_empty() {
            "a codec is missing".to_owned()
        } else {
            format!("there is no codec `{text}`")
        };
        return Err((item.at, format!("{what}; presets: {}; codecs: {}", preset_names(), family_names())));
    };
    let (Some(widths), rest) = (&family.bits, &text[letters..]) else {
        unreachable!("the family has widths")
    };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let allowed = format!("`{}` takes {} to {} bits", family.name, widths.start(), widths.end());
    let bits: u8 = match rest[..digits].parse() {
        Ok(bits) if widths.contains(&bits) => bits,
        _ => {
            return Err((
                item.at + letters,
                format!("{allowed}, as in `{}{}`", family.name, widths.end().min(&4)),
            ));
        }
    };
    let mut spec = CodecSpec { family, bits, options: family.defaults };
    let suffix = &rest[digits..];
    if !suffix.is_empty() {
        let at = item.at + letters + digits;
        if !family.takes_groups() {
            return Err((
                at,
                format!("`{}` has no groups: nothing but a colon may follow the width", family.name),
            ));
        }
        let Some(group) = group_suffix(suffix) else {
            let reason = format!(
                "`{suffix}` is no group: g16, g32, g64 or g128 may follow the width, other options a colon"
            );
            return Err((at, reason));
        };
        spec.options.scaling = Scaling::Group(group);
    }
    Ok(spec)
}

/// Bits with up to two decimals.
fn budget(item: Item<'_>, family: &Family) -> Result<Budget, Fault> {
    let (whole, decimals) = item.text.split_once('.').unwrap_or((item.text, "0"));
    let hundredths = || {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
            return None;
        }
        let [whole, decimals] = [whole, &format!("{decimals:0<2}")].map(|text| text.parse::<u16>());
        let budget = Budget::hundredths(whole.ok()?.checked_mul(100)?.checked_add(decimals.ok()?)?);
        (Budget::LEAST..=Budget::MOST).contains(&budget).then_some(budget)
    };
    hundredths().ok_or_else(|| {
        let (least, most) = (Budget::LEAST.bits(), Budget::MOST.bits());
        let reason = format!(
            "`{}` takes {least} to {most} bits on average, with up to two decimals, as in `{}4.25`",
            family.name, family.name
        );
        (item.at, reason)
    })
}

fn apply(spec: &mut CodecSpec, item: Item<'_>) -> Result<(), Fault> {
    let takes = |class: &str| spec.family.accepts.contains(&class);
    if let Some(number) = item.text.strip_prefix("seed=") {
        if !takes(SEED) {
            return Err((item.at, format!("`{}` has no seed", spec.family.name)));
        }
        spec.options.seed =
            number.parse().map_err(|_| (item.at + 5, "a seed is a whole number below 2^64".to_owned()))?;
        return Ok(());
    }
    match WORDS.iter().find(|word| word.text == item.text) {
        Some(word) if takes(word.class) => {
            (word.set)(&mut spec.options);
            Ok(())
        }
        _ => {
            let known = if item.text.is_empty() {
                "an option is missing".to_owned()
            } else {
                format!("`{}` takes no option `{}`", spec.family.name, item.text)
            };
            Err((item.at, format!("{known}; it takes: {}", option_names(spec.family))))
        }
    }
}

fn option_names(family: &Family) -> String {
    let words = WORDS.iter().filter(|word| family.accepts.contains(&word.class)).map(|word| word.text);
    let seed = family.accepts.contains(&SEED).then_some("seed=N");
    words.chain(seed).collect::<Vec<_>>().join(" ")
}

fn preset_names() -> String {
    PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(" ")
}

fn family_names() -> String {
    FAMILIES
        .iter()
        .map(|family| match &family.bits {
            None if family.shares_bits() => format!("{}{}", family.name, family.defaults.budget.bits()),
            None => family.name.to_owned(),
            Some(bits) => format!("{}{}–{}", family.name, bits.start(), bits.end()),
        })
        .collect::<Vec<_>>()
        .join(" ")
}
