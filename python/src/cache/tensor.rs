//! Tensors of other libraries, borrowed by DLPack: torch, numpy and MLX all speak it, and no copy is made.
//!
//! The capsule stays with its library's destructor; it is held as long as the numbers are read or written.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::borrow::Cow;
use std::ffi::c_void;

/// DLPack's `kDLCPU`, and `kDLCUDAHost`: pinned memory of the host.
const HOST_DEVICES: [i32; 2] = [1, 3];
/// DLPack's `kDLFloat` and `kDLBfloat`.
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// The beginning of DLPack's `DLManagedTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dims: i32,
    element: DlType,
    shape: *const i64,
    /// In elements; null where the numbers lie without gaps, the last dimension first.
    strides: *const i64,
    byte_offset: u64,
}

/// The formats of numbers that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    F32,
    F16,
    Bf16,
}

impl Number {
    fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
        }
    }
}

/// A tensor that is borrowed while its capsule is held.
pub struct Tensor<'py> {
    pub view: View,
    /// Frees what the library has allocated for the exchange.
    _capsule: Bound<'py, PyAny>,
}

/// Where the numbers of a four-dimensional tensor lie: (batch, heads, tokens, channels).
#[derive(Clone, Copy, Debug)]
pub struct View {
    data: *mut u8,
    number: Number,
    pub shape: [usize; 4],
    /// In elements.
    strides: [isize; 4],
}

// SAFETY: an address and sizes. Whoever holds the capsule keeps the numbers alive, and callers of the writing methods give
// every thread rows of its own.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl<'py> Tensor<'py> {
    /// Borrows a tensor of four dimensions, or the capsule that a library has made of one; `what` it is goes into messages.
    pub fn borrow(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Tensor<'py>> {
        let capsule = match object.is_instance_of::<PyCapsule>() {
            true => object.clone(),
            false => object.call_method0("__dlpack__")?,
        };
        // SAFETY: the capsule is a live object; the call checks that it is a capsule of that name.
        let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()) };
        if tensor.is_null() {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: a capsule of this name points to a `DLManagedTensor`, which starts with a `DLTensor`, and owns it.
        let tensor = unsafe { &*tensor.cast::<DlTensor>() };
        let DlDevice { kind, id } = tensor.device;
        if !HOST_DEVICES.contains(&kind) {
            let message =
                format!("{what} lie on device {kind}:{id} (DLPack's numbers): move them to the CPU first");
            return Err(PyValueError::new_err(message));
        }
        let number = match (tensor.element.code, tensor.element.bits, tensor.element.lanes) {
            (FLOAT, 32, 1) => Number::F32,
            (FLOAT, 16, 1) => Number::F16,
            (BFLOAT, 16, 1) => Number::Bf16,
            (code, bits, _) => {
                let message = format!(
                    "{what} have numbers of DLPack's kind {code} with {bits} bits: float32, float16 and bfloat16 are taken"
                );
                return Err(PyValueError::new_err(message));
            }
        };
        if tensor.dims != 4 {
            let message = format!(
                "{what} have {} dimensions, and (batch, heads, tokens, channels) was expected",
                tensor.dims
            );
            return Err(PyValueError::new_err(message));
        }
        // SAFETY: `shape` and, if it is there, `strides` have one number for each of the four dimensions.
        let shape = unsafe { *tensor.shape.cast::<[i64; 4]>() };
        let shape = shape.map(|length| usize::try_from(length).unwrap_or(0));
        let strides = if tensor.strides.is_null() {
            let [_, heads, tokens, channels] = shape.map(|length| length as isize);
            [heads * tokens * channels, tokens * channels, channels, 1]
        } else {
            // SAFETY: as above.
            unsafe { *tensor.strides.cast::<[i64; 4]>() }.map(|stride| stride as isize)
        };
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        if !data.addr().is_multiple_of(number.bytes()) {
            return Err(PyValueError::new_err(format!("{what} are not aligned to their numbers")));
        }
        Ok(Tensor { view: View { data, number, shape, strides }, _capsule: capsule })
    }
}

impl View {
    /// Refuses another shape; `what` it is goes into the message.
    pub fn expect(&self, what: &str, shape: [usize; 4]) -> PyResult<()> {
        if self.shape == shape {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("{what} have shape {:?}, and {shape:?} was expected", self.shape)))
    }

    fn at(&self, index: [usize; 4]) -> *mut u8 {
        let offset: isize =
            index.iter().zip(self.strides).map(|(index, stride)| *index as isize * stride).sum();
        self.data.wrapping_offset(offset * self.number.bytes() as isize)
    }

    /// Whether a vector's numbers lie side by side.
    fn is_dense(&self) -> bool {
        self.strides[3] == 1 || self.shape[3] <= 1
    }

    /// Reads the vector at (batch, head, token).
    fn read(&self, [batch, head, token]: [usize; 3], out: &mut [f32]) {
        let channels = self.shape[3];
        assert!(
            batch < self.shape[0] && head < self.shape[1] && token < self.shape[2] && out.len() == channels
        );
        if self.is_dense() {
            let start = self.at([batch, head, token, 0]);
            // SAFETY: the index was checked, so `channels` numbers of this format lie there, side by side, and the capsule
            // that keeps them alive is held by the caller of everything here.
            unsafe {
                match self.number {
                    Number::F32 => {
                        std::ptr::copy_nonoverlapping(start.cast::<f32>(), out.as_mut_ptr(), channels)
                    }
                    Number::F16 => {
                        std::slice::from_raw_parts(start.cast::<f16>(), channels).convert_to_f32_slice(out)
                    }
                    Number::Bf16 => {
                        std::slice::from_raw_parts(start.cast::<bf16>(), channels).convert_to_f32_slice(out)
                    }
                }
            }
            return;
        }
        for (channel, out) in out.iter_mut().enumerate() {
            let start = self.at([batch, head, token, channel]);
            // SAFETY: as above, number by number.
            *out = unsafe {
                match self.number {
                    Number::F32 => start.cast::<f32>().read_unaligned(),
                    Number::F16 => start.cast::<f16>().read_unaligned().to_f32(),
                    Number::Bf16 => start.cast::<bf16>().read_unaligned().to_f32(),
                }
            };
        }
    }

    /// Writes the vector at (batch, head, token).
    ///
    /// # Safety
    /// No other thread reads or writes this vector at the same time.
    pub unsafe fn write(&self, [batch, head, token]: [usize; 3], numbers: &[f32]) {
        let channels = self.shape[3];
        assert!(
            batch < self.shape[0]
                && head < self.shape[1]
                && token < self.shape[2]
                && numbers.len() == channels
        );
        if self.is_dense() {
            let start = self.at([batch, head, token, 0]);
            // SAFETY: the index was checked, so `channels` numbers of this format lie there, side by side; the caller
            // promises that nobody else touches them, and holds the capsule that keeps them alive.
            unsafe {
                match self.number {
                    Number::F32 => {
                        std::ptr::copy_nonoverlapping(numbers.as_ptr(), start.cast::<f32>(), channels)
                    }
                    Number::F16 => {
                        std::slice::from_raw_parts_mut(start.cast::<f16>(), channels)
                            .convert_from_f32_slice(numbers);
                    }
                    Number::Bf16 => {
                        std::slice::from_raw_parts_mut(start.cast::<bf16>(), channels)
                            .convert_from_f32_slice(numbers);
                    }
                }
            }
            return;
        }
        for (channel, number) in numbers.iter().enumerate() {
            let start = self.at([batch, head, token, channel]);
            // SAFETY: as above, number by number.
            unsafe {
                match self.number {
                    Number::F32 => start.cast::<f32>().write_unaligned(*number),
                    Number::F16 => start.cast::<f16>().write_unaligned(f16::from_f32(*number)),
                    Number::Bf16 => start.cast::<bf16>().write_unaligned(bf16::from_f32(*number)),
                }
            }
        }
    }

    /// Where `count` tokens of a head from `token` on lie, if they are f32 without gaps.
    ///
    /// # Safety
    /// Nobody else reads or writes them as long as the slice is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "a view is an address; that it is the only one is the caller's promise"
    )]
    pub unsafe fn block_mut(&self, [batch, head, token]: [usize; 3], count: usize) -> Option<&mut [f32]> {
        let [batches, heads, tokens, channels] = self.shape;
        let is_dense = self.number == Number::F32 && self.is_dense() && self.strides[2] == channels as isize;
        let is_within = batch < batches && head < heads && token + count <= tokens;
        let start = self.at([batch, head, token, 0]).cast::<f32>();
        // SAFETY: so many f32 lie there without gaps, and the caller promises to be alone with them.
        (is_dense && is_within && count * channels > 0)
            .then(|| unsafe { std::slice::from_raw_parts_mut(start, count * channels) })
    }

    /// Whether rows `(batch, tokens, heads, channels)` of f32 lie without gaps from the given dimension of that order on.
    fn is_rows_from(&self, first: usize) -> bool {
        let [_, heads, tokens, channels] = self.shape;
        let lengths = [self.shape[0], tokens, heads, channels];
        let strides = [self.strides[0], self.strides[2], self.strides[1], self.strides[3]];
        let mut expected = 1;
        for dimension in (first..4).rev() {
            if lengths[dimension] > 1 && strides[dimension] != expected {
                return false;
            }
            expected *= lengths[dimension] as isize;
        }
        self.number == Number::F32
    }

    /// Some tokens of one sequence, or all, as f32 rows `(tokens, heads, channels)`: the tensor's own numbers where they lie
    /// like that already.
    pub fn rows(&self, batch: usize, tokens: Option<&[usize]>) -> Cow<'_, [f32]> {
        let [batches, heads, count, channels] = self.shape;
        assert!(batch < batches);
        if tokens.is_none() && self.is_rows_from(1) && count * heads * channels > 0 {
            let start = self.at([batch, 0, 0, 0]).cast::<f32>();
            // SAFETY: so many f32 lie there without gaps, and the capsule that keeps them alive is held by the caller.
            return Cow::Borrowed(unsafe { std::slice::from_raw_parts(start, count * heads * channels) });
        }
        let mut rows = Vec::new();
        self.gather(batch, tokens, &mut rows);
        Cow::Owned(rows)
    }

    /// All rows `(batch, tokens, heads, channels)` as they lie, if they lie like that in f32.
    pub fn all_rows(&self) -> Option<&[f32]> {
        let count = self.shape.iter().product();
        // SAFETY: so many f32 lie there without gaps, and the capsule that keeps them alive is held by the caller.
        (self.is_rows_from(0) && count > 0)
            .then(|| unsafe { std::slice::from_raw_parts(self.data.cast::<f32>(), count) })
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes the tensor as long as the slice is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "a view is an address; that it is the only one is the caller's promise"
    )]
    pub unsafe fn all_rows_mut(&self) -> Option<&mut [f32]> {
        let count = self.shape.iter().product();
        // SAFETY: so many f32 lie there without gaps, and the caller promises to be alone with them.
        (self.is_rows_from(0) && count > 0)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.data.cast::<f32>(), count) })
    }

    /// Appends some tokens of one sequence, or all, to rows `(tokens, heads, channels)`.
    pub fn gather(&self, batch: usize, tokens: Option<&[usize]>, rows: &mut Vec<f32>) {
        let [_, heads, count, channels] = self.shape;
        let wanted = tokens.map_or(count, <[usize]>::len);
        let start = rows.len();
        rows.resize(start + wanted * heads * channels, 0.0);
        let vectors = rows[start..].chunks_exact_mut(channels.max(1)).enumerate();
        for (index, out) in vectors {
            let (row, head) = (index / heads, index % heads);
            self.read([batch, head, tokens.map_or(row, |tokens| tokens[row])], out);
        }
    }
}
