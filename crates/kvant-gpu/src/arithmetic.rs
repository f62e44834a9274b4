//! How products are computed on a device.

use crate::adapter::{AdapterKind, has_fast_byte_dots};
use std::fmt;

/// The environment variable that chooses how products are computed: `plain` or `fast`, else what suits the adapter.
pub const ARITHMETIC_VARIABLE: &str = "KVANT_GPU_ARITHMETIC";

/// How a device computes products beyond f32 in one order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Four products of bytes to an instruction: up to eight tokens meet packed weights as 16-bit integers; up to sixteen of a
    /// sequence meet int4 pages as bytes.
    pub dots: bool,
    /// More tokens go through cooperative matrices of f16 with so many rows, under f32 sums.
    pub matrices: Option<u32>,
}

impl Arithmetic {
    /// Every way that is faster than f32 in one order, whatever the adapter.
    pub const FAST: Arithmetic = Arithmetic { dots: true, matrices: Some(16) };

    /// What suits an adapter: integers on cards that have instructions for them, matrices where they are offered.
    pub(crate) fn of(adapter: &wgpu::Adapter, kind: AdapterKind, api: &str) -> Arithmetic {
        let wish = wish();
        if wish == "plain" {
            return Arithmetic::default();
        }
        // DirectX 12 does not tell, and its cards of the last years have the instruction.
        let has_dots = match api {
            "vulkan" => has_fast_byte_dots(adapter),
            api => api == "dx12",
        };
        let dots = wish == "fast" || (kind.is_gpu() && has_dots);
        Arithmetic { dots, matrices: matrices(adapter) }
    }

    /// Whether somebody chose.
    pub(crate) fn is_wished() -> bool {
        !wish().is_empty()
    }

    /// As it is kept, and as saved sessions are marked with it: `dots matrices16`, `dots`, `matrices8`, `f32`.
    pub fn code(self) -> String {
        let dots = self.dots.then(|| "dots".to_owned());
        let matrices = self.matrices.map(|side| format!("matrices{side}"));
        let ways: Vec<String> = dots.into_iter().chain(matrices).collect();
        if ways.is_empty() { "f32".to_owned() } else { ways.join(" ") }
    }

    /// The one of `offered` that a code stands for; `None` for others.
    pub(crate) fn of_code(code: &str, offered: Arithmetic) -> Option<Arithmetic> {
        offered.choices().into_iter().find(|choice| choice.code() == code)
    }

    /// All ways in which an adapter that offers this can compute.
    pub(crate) fn choices(self) -> Vec<Arithmetic> {
        let mut all = Vec::new();
        for dots in [self.dots, false] {
            all.extend([self.matrices, None].map(|matrices| Arithmetic { dots, matrices }));
        }
        all
    }

    /// What is wrong with [`ARITHMETIC_VARIABLE`].
    pub(crate) fn mistake() -> Option<String> {
        let wish = wish();
        (!["", "plain", "fast"].contains(&&*wish))
            .then(|| format!("{ARITHMETIC_VARIABLE}={wish} is neither `plain` nor `fast`"))
    }
}

fn wish() -> String {
    std::env::var(ARITHMETIC_VARIABLE).unwrap_or_default()
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dots {
            true => write!(f, "one token in 16-bit integers, over int4 pages in 8 bits")?,
            false => write!(f, "one token in f32")?,
        }
        match (self.matrices, self.dots) {
            (Some(side), _) => write!(f, ", prompts in f16 by {side}×{side} matrices"),
            (None, true) => write!(f, ", prompts in f32"),
            (None, false) => write!(f, ", prompts with the same bits"),
        }
    }
}

/// The features that kernels with cooperative matrices need.
pub(crate) const MATRICES: wgpu::Features =
    wgpu::Features::SHADER_F16.union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

/// Rows of square matrices of f16 whose sums are f32, the larger where there are several.
pub(crate) fn matrices(adapter: &wgpu::Adapter) -> Option<u32> {
    use wgpu::wgt::CooperativeScalarType::{F16, F32};
    let info = adapter.get_info();
    if !adapter.features().contains(MATRICES) || (info.subgroup_min_size, info.subgroup_max_size) != (32, 32)
    {
        return None;
    }
    let offered = adapter.cooperative_matrix_properties();
    let has = |side: &u32| {
        offered.iter().any(|of| {
            [of.m_size, of.n_size, of.k_size] == [*side; 3] && (of.ab_type, of.cr_type) == (F16, F32)
        })
    };
    [16, 8].into_iter().find(has)
}
