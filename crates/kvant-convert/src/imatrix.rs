//! Importance matrices in files, as llama.cpp writes them: sums of squares of what every channel is multiplied with.
//!
//! | format | what it has for a matrix |
//! |---|---|
//! | GGUF | `NAME.in_sum2` (experts, inputs), sums of squares, and `NAME.counts` (experts, 1), tokens |
//! | the older one | name, calls, and sums of squares, all experts of a tensor one after another |
//!
//! Ours are of the first. Numbers of the older one are little-endian: `i32` entries; for each `i32` length and bytes of the name, `i32`
//! calls, `i32` count and that many `f32`.

use crate::error::{ConvertError, Result};
use crate::importance::{Importance, Moments};
use kvant_model::DType;
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Importance {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// If it cannot be read, or is no importance matrix.
    pub fn read(path: &Path) -> Result<Self> {
        let refused = |why: String| ConvertError::Refused(format!("{}: {why}", path.display()));
        let bytes = fs::read(path).map_err(|e| refused(format!("cannot read it: {e}")))?;
        let layers = match bytes.starts_with(b"GGUF") {
            true => of_gguf(bytes),
            false => of_entries(&bytes),
        };
        let layers = layers.map_err(|why| refused(format!("not an importance matrix: {why}")))?;
        match layers.is_empty() {
            true => Err(refused("not an importance matrix: it names no matrix".into())),
            false => Ok(Self::of_layers(layers)),
        }
    }

    /// Writes a GGUF file that llama.cpp reads too, where the model was a GGUF file.
    ///
    /// # Errors
    /// If the system cannot write it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut by_name: BTreeMap<String, Vec<(usize, Moments)>> = BTreeMap::new();
        for ((name, expert), moments) in self.snapshot() {
            by_name.entry(name).or_default().push((expert.unwrap_or(0), moments));
        }
        let mut writer = Writer::new("imatrix");
        writer.set("general.type", WriterValue::String("imatrix".into()));
        writer.set("imatrix.chunk_count", WriterValue::U32(1));
        writer.set("imatrix.chunk_size", WriterValue::U32(1));
        for (name, found) in by_name {
            let experts = found.iter().map(|(expert, _)| expert + 1).max().unwrap_or(1);
            let inputs = found.iter().map(|(_, moments)| moments.squares.len()).max().unwrap_or(0);
            let (mut sums, mut counts) = (vec![vec![0.0f32; inputs]; experts], vec![0.0f32; experts]);
            for (expert, moments) in found {
                sums[expert] = moments.squares.iter().map(|&sum| sum as f32).collect();
                counts[expert] = moments.tokens as f32;
            }
            let store = |row: &[f32], bytes: &mut [u8]| {
                bytes.as_chunks_mut().0.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_le_bytes());
            };
            writer.made(&format!("{name}{SUMS}"), DType::F32, &[experts, inputs], move |row, bytes| {
                store(&sums[row], bytes);
            })?;
            writer.made(&format!("{name}{COUNTS}"), DType::F32, &[experts, 1], move |row, bytes| {
                store(&counts[row..=row], bytes);
            })?;
        }
        let failed =
            |e: std::io::Error| ConvertError::Output { path: path.to_path_buf(), what: e.to_string() };
        fs::write(path, writer.to_bytes()?).map_err(failed)
    }
}

type Layers = Vec<((String, Option<usize>), Moments)>;

fn of_gguf(bytes: Vec<u8>) -> std::result::Result<Layers, String> {
    let file = Gguf::from_bytes(bytes).map_err(|e| e.to_string())?;
    let names: Vec<String> =
        file.tensors().filter_map(|info| info.name.strip_suffix(SUMS).map(str::to_owned)).collect();
    let mut layers = Layers::new();
    for name in names {
        let numbers = |end: &str| {
            let tensor =
                file.tensor(&format!("{name}{end}")).ok_or_else(|| format!("{name} has no {end}"))?;
            tensor.to_f32().map_err(|e| e.to_string())
        };
        let (sums, counts) = (numbers(SUMS)?, numbers(COUNTS)?);
        let inputs = sums.len() / counts.len().max(1);
        if inputs == 0 || sums.len() != inputs * counts.len() {
            return Err(format!("{name} has {} sums for {} counts", sums.len(), counts.len()));
        }
        for (expert, (sums, &count)) in sums.chunks_exact(inputs).zip(&counts).enumerate() {
            let expert = (counts.len() > 1).then_some(expert);
            layers.push(((name.clone(), expert), moments(sums, count.max(0.0) as u64, &name)?));
        }
    }
    Ok(layers)
}

fn of_entries(bytes: &[u8]) -> std::result::Result<Layers, String> {
    let mut rest = bytes;
    let cut = || "it ends too early".to_owned();
    let mut take = |count: usize| {
        let (taken, after) = rest.split_at_checked(count).ok_or_else(cut)?;
        rest = after;
        Ok::<&[u8], String>(taken)
    };
    let number = |bytes: &[u8]| {
        let number =
            bytes.try_into().map(i32::from_le_bytes).ok().and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| "a count is negative".to_owned())
    };
    let entries = number(take(4)?)?;
    let mut layers = Layers::new();
    for _ in 0..entries {
        let length = number(take(4)?)?;
        let name = String::from_utf8(take(length)?.to_vec()).map_err(|_| "a name is not text".to_owned())?;
        let calls = number(take(4)?)?;
        let count = number(take(4)?)?;
        let sums = take(count.checked_mul(4).ok_or_else(cut)?)?;
        let sums: Vec<f32> = sums.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        layers.push(((name.clone(), None), moments(&sums, calls as u64, &name)?));
    }
    Ok(layers)
}

fn moments(sums: &[f32], tokens: u64, name: &str) -> std::result::Result<Moments, String> {
    match sums.iter().all(|sum| sum.is_finite() && *sum >= 0.0) {
        true => Ok(Moments { squares: sums.iter().map(|&sum| sum.into()).collect(), tokens }),
        false => Err(format!("{name} has a sum of squares that is negative or not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn importance() -> Importance {
        let moments = |squares: &[f64]| Moments { squares: squares.to_vec(), tokens: 4 };
        Importance::of_layers(vec![
            (("blk.0.attn_q.weight".into(), None), moments(&[1.0, 3.0])),
            (("blk.0.ffn_down_exps.weight".into(), Some(0)), moments(&[2.0, 6.0])),
            (("blk.0.ffn_down_exps.weight".into(), Some(1)), moments(&[5.0, 5.0])),
        ])
    }

    #[test]
    fn both_formats_of_importance_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.imatrix");
        let expected = importance();
        expected.write(&path).unwrap();
        let found = Importance::read(&path).unwrap();
        let mut older = 2i32.to_le_bytes().to_vec();
        for (name, sums) in [
            ("blk.0.attn_q.weight", &[1.0f32, 3.0][..]),
            ("blk.0.ffn_down_exps.weight", &[2.0, 6.0, 5.0, 5.0]),
        ] {
            older.extend((name.len() as i32).to_le_bytes());
            older.extend(name.as_bytes());
            older.extend(4i32.to_le_bytes());
            older.extend((sums.len() as i32).to_le_bytes());
            older.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        // What follows the entries is about the text.
        older.extend(7i32.to_le_bytes());
        let other = folder.path().join("older.dat");
        fs::write(&other, &older).unwrap();
        for found in [found, Importance::read(&other).unwrap()] {
            for (name, expert) in [
                ("blk.0.attn_q.weight", None),
                ("blk.0.ffn_down_exps.weight", Some(0)),
                ("blk.0.ffn_down_exps.weight", Some(1)),
            ] {
                let (of, wanted) = (found.of(name, expert, 2), expected.of(name, expert, 2));
                assert!(of.is_some() && of == wanted, "{name} {expert:?}: {of:?}");
            }
            assert!(found.of("blk.0.ffn_down_exps.weight", Some(2), 2).is_none());
            assert!(found.of("blk.0.attn_q.weight", None, 3).is_none());
        }
        for cut in [0, 3, 9, 40] {
            fs::write(&other, &older[..cut]).unwrap();
            let error = Importance::read(&other).err().unwrap().to_string();
            assert!(error.contains("older.dat: not an importance matrix"), "{error}");
        }
    }
}
