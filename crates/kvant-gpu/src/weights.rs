//! Packed matrices on the device: how a type's bytes lie there.
//!
//! A matrix is its rows one after another, each a whole number of four words with zeros for the columns that a group of 32 has too many.
//! Types whose blocks are not whole words are taken apart once, when they are uploaded: codes first, then the scales of a row.
//! Nothing is rounded again, and no number is stored twice. What a kernel cannot bind at once is split by rows.

use crate::buffer::{Buffer, words_of};
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::product::ProductShape;
use crate::recorder::{Grid, Recorder};
use crate::unroll::unrolled;
use half::f16;
use kvant_device::{RelaidForm, RelaidRow, relaid_form, relaid_row};
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex};

/// Weights that share a scale, or are taken at once.
pub(crate) const GROUP: usize = 32;

/// Bytes that are sent to the device before the host waits for it.
const UPLOAD: usize = 16 << 20;

/// The element types that the device multiplies: twelve as they are, and those that are relaid.
pub const WEIGHT_TYPES: [DType; 25] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::MXFP4,
    DType::Int8G32,
    DType::Int4G32,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q8_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::IQ3_S,
    DType::IQ3_XXS,
    DType::IQ2_S,
    DType::IQ2_XS,
    DType::IQ2_XXS,
    DType::NVFP4,
];

/// The text that reads a group of weights of a type; `None` for types that the device does not multiply.
fn reader(dtype: DType) -> Option<String> {
    const HALVES: &str = "fn half_at(at: u32, index: u32) -> f32 {\n    \
        let pair = unpack2x16float(weights[at + index / 2u]);\n    \
        return select(pair.x, pair.y, index % 2u == 1u);\n}\n";
    const K: &str = include_str!("wgsl/weights/k.wgsl");
    const SCALED: &str = "const MINIMA = false;\n";
    const MINIMA: &str = "const MINIMA = true;\n";
    let (before, text) = match dtype {
        DType::F32 => ("", include_str!("wgsl/weights/f32.wgsl")),
        DType::F16 => ("", include_str!("wgsl/weights/f16.wgsl")),
        DType::BF16 => ("", include_str!("wgsl/weights/bf16.wgsl")),
        DType::Q8_0 | DType::Int8G32 => (HALVES, include_str!("wgsl/weights/q8_0.wgsl")),
        DType::Q4_0 | DType::Int4G32 => (HALVES, include_str!("wgsl/weights/q4_0.wgsl")),
        DType::Q4_1 => ("", include_str!("wgsl/weights/q4_1.wgsl")),
        DType::Q4_K => (K, include_str!("wgsl/weights/q4_k.wgsl")),
        DType::Q5_K => (K, include_str!("wgsl/weights/q5_k.wgsl")),
        DType::Q6_K => ("", include_str!("wgsl/weights/q6_k.wgsl")),
        DType::MXFP4 => ("", include_str!("wgsl/weights/mxfp4.wgsl")),
        other => match relaid_form(other)? {
            RelaidForm::Q8_0 => (HALVES, include_str!("wgsl/weights/q8_0.wgsl")),
            RelaidForm::Scaled => (SCALED, include_str!("wgsl/weights/scaled.wgsl")),
            RelaidForm::Minima => (MINIMA, include_str!("wgsl/weights/scaled.wgsl")),
        },
    };
    Some(format!("{before}{text}"))
}

/// One row as the device has it: whole fours of words, which kernels load at once.
fn row_words(dtype: DType, row: &[u8], columns: usize) -> Vec<u32> {
    let mut words = relaid_words(dtype, row).unwrap_or_else(|| packed_words(dtype, row, columns));
    words.resize(words.len().next_multiple_of(4), 0);
    words
}

/// The same of a type that is relaid: codes, then scales, then minima.
fn relaid_words(dtype: DType, row: &[u8]) -> Option<Vec<u32>> {
    let form = relaid_form(dtype)?;
    let RelaidRow { codes, scales, minima } = relaid_row(dtype, row).ok()?;
    let mut bytes: Vec<u8> = codes.into_iter().map(i8::cast_unsigned).collect();
    // Groups of 32 that the last block has too many values for have no codes, and scales of zero.
    bytes.resize(bytes.len().next_multiple_of(GROUP), 0);
    if form == RelaidForm::Q8_0 {
        bytes.extend(scales.iter().step_by(2).flat_map(|scale| f16::from_f32(*scale).to_le_bytes()));
    } else {
        bytes.extend(scales.iter().chain(&minima).flat_map(|number| number.to_le_bytes()));
    }
    Some(words_of(&bytes))
}

fn packed_words(dtype: DType, row: &[u8], columns: usize) -> Vec<u32> {
    // Blocks of `bytes`: scales of `head` bytes before the codes.
    let apart = |bytes: usize, head: usize| {
        let blocks = row.chunks_exact(bytes);
        let codes: Vec<u8> = blocks.clone().flat_map(|block| block[head..].iter().copied()).collect();
        let scales: Vec<u8> = blocks.flat_map(|block| block[..head].iter().copied()).collect();
        [words_of(&codes), words_of(&scales)].concat()
    };
    match dtype {
        DType::Q8_0 | DType::Int8G32 => apart(34, 2),
        DType::Q4_0 | DType::Int4G32 => apart(18, 2),
        DType::Q4_1 => apart(20, 4),
        DType::MXFP4 => apart(17, 1),
        DType::Q6_K => row.chunks_exact(210).flat_map(words_of).collect(),
        _ => {
            let mut words = words_of(row);
            let number = dtype.bits_per_value() as usize;
            if dtype.block_len() == 1 {
                words.resize(columns.next_multiple_of(GROUP) * number / 32, 0);
            }
            words
        }
    }
}

/// Some rows of a matrix, as much as a kernel sees at once.
pub(crate) struct Part {
    pub buffer: Buffer,
    pub first: usize,
    pub rows: usize,
}

/// A matrix `(outputs, inputs)` on the device.
pub(crate) struct Matrix {
    dtype: DType,
    outputs: usize,
    inputs: usize,
    row_words: usize,
    parts: Vec<Part>,
    /// The kernels of its products that were asked for.
    pub products: Mutex<HashMap<ProductShape, Arc<Kernel>>>,
}

/// Where the rows of a product lie.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub buffer: &'a Buffer,
    /// Numbers from one row to the next, and before the first column.
    pub stride: usize,
    pub at: usize,
}

impl Matrix {
    /// Uploads matrices of one type and width as one, rows of the first before those of the next.
    pub(crate) fn upload(gpu: &Gpu, tensors: &[Tensor]) -> Result<Matrix> {
        let [first, ..] = tensors else { return Err(LoadError::mismatch("a matrix of no tensors")) };
        let (dtype, inputs) = (first.dtype(), first.columns());
        if let Some(other) = tensors.iter().find(|t| t.dtype() != dtype || t.columns() != inputs) {
            return Err(LoadError::mismatch(format!(
                "tensors {:?} and {:?} cannot be multiplied as one",
                first.name(),
                other.name()
            )));
        }
        if reader(dtype).is_none() || tensors.iter().any(|tensor| tensor.scales().is_some()) {
            let there = WEIGHT_TYPES.map(DType::name).join(", ");
            return Err(LoadError::unsupported(format!(
                "tensor {:?} is {dtype}, which {} does not multiply; it does {there}. Run it with `--device cpu`, or convert the weights",
                first.name(),
                gpu.name()
            )));
        }
        let outputs = tensors.iter().map(Tensor::rows).sum();
        if outputs == 0 || inputs == 0 {
            return Err(LoadError::mismatch(format!("tensor {:?} is empty", first.name())));
        }
        let words = row_words(dtype, first.row(0), inputs).len();
        let mut matrix = Matrix {
            dtype,
            outputs,
            inputs,
            row_words: words,
            parts: Vec::new(),
            products: Mutex::default(),
        };
        matrix.fill(gpu, tensors);
        tensors.iter().for_each(|tensor| tensor.bytes().release());
        Ok(matrix)
    }

    fn fill(&mut self, gpu: &Gpu, tensors: &[Tensor]) {
        let row_bytes = 4 * self.row_words;
        let most = (gpu.binding_bytes() / row_bytes).max(1);
        let label = tensors[0].name();
        let mut rows = tensors.iter().flat_map(|tensor| (0..tensor.rows()).map(move |row| tensor.row(row)));
        for first in (0..self.outputs).step_by(most) {
            let count = most.min(self.outputs - first);
            let buffer = Buffer::new(gpu, label, count * row_bytes);
            let step = (UPLOAD / row_bytes).max(1);
            for at in (0..count).step_by(step) {
                let rows: Vec<&[u8]> = rows.by_ref().take(step.min(count - at)).collect();
                let words = self.packed(&rows);
                buffer.write(gpu, at * row_bytes, &words);
                if 4 * words.len() >= UPLOAD / 2 {
                    // Otherwise all of the model would lie in staging buffers before the first byte is copied.
                    gpu.queue().submit([]);
                    // A lost device is noticed by whoever reads from it.
                    let _ = gpu.device().poll(wgpu::PollType::wait_indefinitely());
                }
            }
            self.parts.push(Part { buffer, first, rows: count });
        }
    }

    /// Rows as the device has them, made by all processors.
    fn packed(&self, rows: &[&[u8]]) -> Vec<u32> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let share = rows.len().div_ceil(threads).max(1);
        let mut words = vec![0; rows.len() * self.row_words];
        std::thread::scope(|scope| {
            for (rows, words) in rows.chunks(share).zip(words.chunks_mut(share * self.row_words)) {
                scope.spawn(move || {
                    for (row, to) in rows.iter().zip(words.chunks_mut(self.row_words)) {
                        to.copy_from_slice(&row_words(self.dtype, row, self.inputs));
                    }
                });
            }
        });
        words
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn groups(&self) -> usize {
        self.inputs.div_ceil(GROUP)
    }

    /// Words of a group and its scales.
    pub(crate) fn group_words(&self) -> usize {
        (self.row_words / self.groups()).max(1) + 1
    }

    /// Whether weights are codes under scales that meet integers (`wgsl/dots.wgsl`).
    pub(crate) fn has_codes(&self) -> bool {
        !matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::MXFP4)
    }

    /// Words from one row to the next.
    pub(crate) fn row_words(&self) -> usize {
        self.row_words
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// A text with the reader of its weights.
    pub(crate) fn source(&self, constants: &str, text: &str) -> String {
        let reader = reader(self.dtype).unwrap_or_default();
        format!("{constants}\n{text}\n{reader}")
    }

    /// Rows of the matrix by the ids that `plan` has from `ids_at` on, times `scale`; with learned positions `(buffer, plan_at)`.
    pub(crate) fn gather(
        &self,
        recorder: &mut Recorder<'_>,
        tokens: usize,
        (plan, ids_at): (&Buffer, usize),
        scale: f32,
        positions: Option<(&Buffer, usize)>,
        x: Place<'_>,
    ) {
        let learned = positions.is_some();
        let kernel = recorder.gpu().kernel_of("embed", format!("embed {} {learned}", self.dtype), || {
            let text = unrolled(include_str!("wgsl/embed.wgsl"), &[]);
            self.source(&format!("const POSITIONS = {learned};\n"), &text)
        });
        for part in &self.parts {
            let arguments = [
                self.groups() as u32,
                self.inputs as u32,
                x.stride as u32,
                tokens as u32,
                part.first as u32,
                part.rows as u32,
                self.row_words as u32,
                ids_at as u32,
                scale.to_bits(),
                positions.map_or(0, |(_, at)| at as u32),
            ];
            let grid = Grid(
                self.groups().div_ceil(64) as u32,
                tokens.min(32768) as u32,
                tokens.div_ceil(32768) as u32,
            );
            let bound =
                [&part.buffer, &part.buffer, plan, positions.map_or(plan, |(buffer, _)| buffer), x.buffer];
            recorder.dispatch(&kernel, &bound, &arguments, grid);
        }
    }
}
