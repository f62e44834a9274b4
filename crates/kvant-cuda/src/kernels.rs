//! The compiled kernels: PTX for sm_80 and newer, cubins for sm_90a, as `build_kernels.py` made them, packed by zlib.

use flate2::read::ZlibDecoder;
use std::io::Read;

/// One file of kernels, compiled twice.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Name of the source, without its end.
    pub name: &'static str,
    ptx: &'static [u8],
    cubin: &'static [u8],
}

impl Module {
    /// For sm_80 and every later card; the driver compiles it.
    pub fn ptx(&self) -> String {
        String::from_utf8(unpacked(self.ptx)).expect("PTX is a text")
    }

    /// For Hopper.
    pub fn cubin(&self) -> Vec<u8> {
        unpacked(self.cubin)
    }

    /// Bytes that both forms take in the crate.
    pub fn packed_bytes(&self) -> usize {
        self.ptx.len() + self.cubin.len()
    }
}

/// What `build_kernels.py` packed; the crate's tests hold every file to its hash.
fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ZlibDecoder::new(packed).read_to_end(&mut out).expect("kernels of this crate are whole");
    out
}

macro_rules! modules {
    ($($name:literal)*) => {
        [$(Module {
            name: $name,
            ptx: include_bytes!(concat!("../kernels/bin/", $name, ".ptx.z")),
            cubin: include_bytes!(concat!("../kernels/bin/", $name, ".cubin.z")),
        }),*]
    };
}

/// Every module.
pub static MODULES: [Module; 29] = modules!["attention_dims" "attention_f16" "attention_int4" "attention_int8" "attention_k8v4" "attention_klt" "attention_tile" "attention_wide" "encode" "encode_klt" "general" "general_encode" "latent" "latent_rows" "linear" "moe" "recurrent" "recurrent_chunks" "relay" "residual" "rows" "streams" "strict" "tensors" "tile" "top" "trellis_encode" "wide" "wide_groups"];

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
