//! kvant on GPUs: one backend for Metal, Vulkan and DirectX 12, through [wgpu](https://docs.rs/wgpu).
//!
//! Whole models run on the device: weights stay packed as the file has them, activations never leave, keys and values lie in
//! compressed pages there, and attention reads the pages' bytes. What comes back is the logits that were asked for.
//!
//! ```no_run
//! use kvant_gpu::{Gpu, GpuBackend};
//! use kvant_model::{Checkpoint, Model};
//!
//! let backend = GpuBackend::new(&Gpu::open()?);
//! let model = Model::load(&backend, &Checkpoint::open("model.gguf")?)?;
//! // A cache whose pages lie on the device: kvant_attention::KvCache::in_arena(policy, model.slots(), 4096, backend.store())
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it is built
//!
//! | module | what it is |
//! |---|---|
//! | `adapter`, `arithmetic`, `device` | what a machine has; how products are computed; a device with its queue and the kernels built so far |
//! | `choice` | which ways to compute are the fastest, measured once |
//! | `kernel`, `unroll`, `recorder` | a WGSL text as a pipeline; its loops written out; a pass as dispatches |
//! | `times` | how long each kernel of a pass took |
//! | `buffer`, `pass_buffers`, `pages` | buffers; those of passes; the page store that sequences take their pages from |
//! | `weights`, `product`, `cut`, `ops` | packed matrices; products with them, and how they are dealt to threads; norms, rotation, activations |
//! | `coding`, `trellis`, `compound` | what pages of a codec are; codes along tokens, differences and angles as kernel text |
//! | `page_text`, `page_bytes`, `encoding`, `basis` | formats of pages as kernel text: readers, codes as bytes, encoders, changes of basis |
//! | `layout`, `side_kernels`, `slot_kernels`, `quads`, `teams` | the kernels of a cache's slots: of each side, and of attention |
//! | `heads` | what lies between projection and attention, in one dispatch |
//! | `plan`, `tables`, `attend` | how a pass is cut into work, tables of pages that stay, and attention |
//! | `moe`, `visits` | mixtures of experts; a prompt's visits to them, sorted |
//! | `gates`, `layer_inputs` | gates that change rows where they lie; inputs of each layer's own |
//! | `streams` | several residual streams, and the low-rank layer beside attention |
//! | `latent` | attention over latents: MLA, and keys that are their values |
//! | `states` | recurrent state: pieces of a pass and their pages |
//! | `short_conv`, `delta_net`, `mamba2` | the mixers that have it |
//! | `compile`, `compile_moe`, `program` | from a description to blocks on the device |
//! | `network`, `run`, `top` | a pass; the tokens that rank first in place of logits |
//!
//! **Kernels are texts with constants.** A format of pages is plain data (`kvant_codec::format`), so its reader is generated: offsets,
//! widths and tables become constants, and only the parts that a format has are there. Texts keep to what every API has: words of 32
//! bits and shifts, no 8-bit storage, no pointers as arguments, workgroup memory of at most 32 KiB in place of subgroups (attention over
//! int4 pages has both ways), arguments as 64 bytes of immediates, a handful of storage buffers.
//!
//! **A pass** takes pages for all layers first, by the same bookkeeping as on the host ([`Sequence::append_on_device`]), which says
//! what is to be written where. Ids, rotations, tables of pages and tasks are one list of words that is written once. Then all layers
//! are recorded into one command buffer. Bind groups are made once for a kernel and its buffers.
//!
//! **Pages** are in the canonical layout: a unit of codes has the tokens (keys) or channels (values) of neighbouring threads in
//! neighbouring words. So sessions, prefixes and forks of the host work on them as they are, and a saved session can go on on
//! another backend.
//!
//! **Attention** has a thread to a position while it makes scores and a thread to a channel while it sums values; queries that share a
//! kv head share each reading of a page. Sums over coded pages stay in the codec's basis until the splits of a query are put together.
//!
//! **Invariant:** no buffer ever holds a decoded page: encoding has sixteen tokens in workgroup memory, attention four numbers in
//! registers.
//!
//! **Invariant:** on one device, a token's logits have the same bits in every run, whatever is beside it, and splits of attention are fixed
//! by positions. In plain [`Arithmetic`] they have them in every batch and chunk too: products share one order of sums between kernels
//! for one token and for several. Where a device has something faster than f32, passes of up to eight tokens (16-bit integers) and
//! of more (f16 by cooperative matrices) round differently; up to eight tokens have the bits of one alone.
//!
//! **Invariant:** what a kernel does not do is refused by name when a model is compiled, or a cache is opened; nothing else is
//! computed in its place. Against the CPU results agree within bounds that the tests state: activations stay f32 here, or 16 bits wide.
//!
//! [`Sequence::append_on_device`]: kvant_cache::Sequence::append_on_device
#![deny(missing_docs)]

// What tests of kernels and of whole models share calls the crate by its name.
#[cfg(test)]
extern crate self as kvant_gpu;

mod adapter;
mod arithmetic;
mod attend;
mod backend;
mod basis;
mod buffer;
mod choice;
mod coding;
mod compile;
mod compile_moe;
mod compound;
mod cut;
mod delta_net;
mod device;
mod encoding;
mod fitting;
mod gates;
mod head_widths;
mod heads;
mod kernel;
mod kind;
mod latent;
mod layer_inputs;
mod layout;
mod mamba2;
mod moe;
mod network;
mod ops;
mod page_bytes;
mod page_text;
mod pages;
mod pass_buffers;
mod plan;
mod product;
mod program;
mod quads;
mod recorder;
mod run;
mod short_conv;
mod side_kernels;
mod slot_kernels;
mod states;
mod streams;
mod tables;
mod teams;
#[cfg(test)]
mod tests;
mod times;
mod top;
mod trellis;
mod unroll;
mod visits;
mod weights;

pub use adapter::{AdapterKind, AdapterReport, adapters};
pub use arithmetic::{ARITHMETIC_VARIABLE, Arithmetic};
pub use backend::GpuBackend;
pub use device::{ADAPTER_VARIABLE, Gpu, GpuError};
pub use kind::DEVICES;
pub use layout::{CacheUnsupported, check_cache};
pub use network::GpuNetwork;
pub use pages::GpuPages;
pub use weights::WEIGHT_TYPES;
