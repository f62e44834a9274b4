//! The compiled kernels: PTX for sm_80 and newer, cubins for sm_90a, as `build_kernels.py` made them.

/// One file of kernels, compiled twice.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Name of the source, without its end.
    pub name: &'static str,
    /// For sm_80 and every later card; the driver compiles it.
    pub ptx: &'static str,
    /// For Hopper.
    pub cubin: &'static [u8],
}

macro_rules! modules {
    ($($name:literal)*) => {
        [$(Module {
            name: $name,
            ptx: include_str!(concat!("../kernels/bin/", $name, ".ptx")),
            cubin: include_bytes!(concat!("../kernels/bin/", $name, ".cubin")),
        }),*]
    };
}

/// Every module.
pub static MODULES: [Module; 9] = modules!["attention_f16" "attention_int4" "attention_int8" "attention_k8v4" "encode" "linear" "moe" "rows" "tile"];

/// What was compiled, by what: `kernels/bin/manifest.json`.
pub static MANIFEST: &str = include_str!("../kernels/bin/manifest.json");

/// Which form of the kernels a card of this compute capability takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The cubin, as it is.
    Cubin,
    /// PTX, which the driver compiles when the module is loaded.
    Ptx,
}

impl Form {
    /// The form for a compute capability; `None` below 8.0, where tensor cores lack what the kernels need.
    pub fn of(major: i32, minor: i32) -> Option<Form> {
        match (major, minor) {
            (9, 0) => Some(Form::Cubin),
            (8.., _) => Some(Form::Ptx),
            _ => None,
        }
    }
}
