//! Random weights for any architecture, from its configuration: a Hugging Face folder.

use super::noise::{Noise, TensorNoise};
use super::vocabulary;
use crate::checkpoint::Checkpoint;
use crate::description::{Description, TensorRef};
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use half::f16;
use kvant_threads::for_each_chunk;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// Values that are made at once.
const BATCH: usize = 1 << 22;

/// Values of a tensor that an outline has.
const SMALL: usize = 1 << 20;

/// A model of random weights, ready to be written: matrices in half precision, vectors in single.
///
/// Matrices are as those of [`model`](super::model); norms are ones; what else is a vector (a bias, rates of decay) is noise.
pub struct Described {
    config: Value,
    tensors: Vec<TensorRef>,
    /// What files of the family leave out of each norm's weights.
    norms: BTreeMap<String, f32>,
    vocabulary: usize,
    seed: u64,
}

impl Described {
    /// The model of a configuration.
    ///
    /// # Errors
    /// If the configuration is of no architecture kvant knows, or a size is missing or out of range.
    pub fn new(config: Value, seed: u64) -> Result<Self> {
        let outline = Checkpoint::from_config(config.clone(), DType::F16)?;
        let description = Description::of(&outline)?;
        Ok(Self {
            config,
            tensors: description.tensors().into_iter().cloned().collect(),
            norms: description.norm_offsets(),
            vocabulary: description.vocabulary,
            seed,
        })
    }

    /// Numbers in all tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| values_of(tensor) as u64).sum()
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| (values_of(tensor) * bytes_of(tensor)) as u64).sum()
    }

    /// Writes `config.json`, `tokenizer.json` and `model.safetensors` into a folder; `progress` hears of bytes written.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<()> {
        self.write_folder(folder, |file| self.write_tensors(&mut BufWriter::new(file), progress))
    }

    /// The same without its large tensors: the file has holes in their place, which read as zeros and take no room where the file system
    /// leaves it out. It is what a file of another format is made from whose matrices are noise anyhow.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_outline(&self, folder: &Path) -> Result<()> {
        self.write_folder(folder, |file| self.write_small_tensors(file))
    }

    fn write_folder(&self, folder: &Path, tensors: impl FnOnce(File) -> io::Result<()>) -> Result<()> {
        let text = |name: &str, value: &Value| {
            let path = folder.join(name);
            fs::write(&path, format!("{value:#}\n")).map_err(|e| LoadError::io("write the file", &path, e))
        };
        fs::create_dir_all(folder).map_err(|e| LoadError::io("make the folder", folder, e))?;
        text("config.json", &self.config)?;
        text("tokenizer.json", &vocabulary::tokenizer_json(self.vocabulary))?;
        let path = folder.join("model.safetensors");
        let file = File::create(&path).map_err(|e| LoadError::io("create the file", &path, e))?;
        tensors(file).map_err(|e| LoadError::io("write the file", &path, e))
    }

    /// The file's first bytes.
    fn header(&self) -> Vec<u8> {
        let (mut header, mut end) = (Map::new(), 0);
        for tensor in &self.tensors {
            let start = end;
            end += values_of(tensor) * bytes_of(tensor);
            let dtype = if is_matrix(tensor) { "F16" } else { "F32" };
            let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
            header.insert(tensor.name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    }

    fn write_small_tensors(&self, mut file: File) -> io::Result<()> {
        let header = self.header();
        file.write_all(&header)?;
        let (mut noise, mut at) = (Noise::new(self.seed), header.len() as u64);
        for tensor in &self.tensors {
            let (noise, count) = (noise.next_tensor(), values_of(tensor));
            if count <= SMALL {
                let values = self.vector(tensor, noise);
                let bytes: Vec<u8> = match is_matrix(tensor) {
                    true => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
                    false => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                };
                file.seek(SeekFrom::Start(at))?;
                file.write_all(&bytes)?;
            }
            at += (count * bytes_of(tensor)) as u64;
        }
        file.set_len(at)
    }

    fn write_tensors(&self, out: &mut impl Write, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        out.write_all(&self.header())?;
        let (mut noise, mut done) = (Noise::new(self.seed), 0);
        for tensor in &self.tensors {
            let noise = noise.next_tensor();
            if !is_matrix(tensor) {
                let values = self.vector(tensor, noise);
                out.write_all(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
                done += 4 * values.len() as u64;
                progress(done);
                continue;
            }
            let columns = tensor.shape.last().copied().unwrap_or(1);
            let rows = values_of(tensor) / columns.max(1);
            let batch = (BATCH / columns.max(1)).max(1);
            for first in (0..rows).step_by(batch) {
                let mut bytes = vec![0; (rows - first).min(batch) * columns * 2];
                for_each_chunk(&mut bytes, columns * 2, |row, bytes| {
                    let mut values = vec![0.0; columns];
                    noise.fill_row(first + row, &mut values);
                    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                        *bytes = f16::from_f32(value).to_le_bytes();
                    }
                });
                out.write_all(&bytes)?;
                done += bytes.len() as u64;
                progress(done);
            }
        }
        out.flush()
    }

    /// A norm's weights, a single number, or noise.
    fn vector(&self, tensor: &TensorRef, noise: TensorNoise) -> Vec<f32> {
        let count = values_of(tensor);
        match (self.norms.get(&tensor.name), count) {
            (Some(offset), _) => vec![1.0 - offset; count],
            (None, 1) => vec![1.0],
            (None, _) => {
                let mut values = vec![0.0; count];
                noise.fill_row(0, &mut values);
                values
            }
        }
    }
}

fn is_matrix(tensor: &TensorRef) -> bool {
    tensor.shape.len() > 1
}

fn values_of(tensor: &TensorRef) -> usize {
    tensor.shape.iter().product()
}

fn bytes_of(tensor: &TensorRef) -> usize {
    if is_matrix(tensor) { 2 } else { 4 }
}
