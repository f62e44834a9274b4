//! A card: whether there is one that can run the kernels, and their entry points. The driver is looked for at run time; where it is
//! missing or too old, the error says so and everything else goes on.

use crate::kernels::{Form, MODULES, Module};
use crate::product::Limits;
use crate::profile::Profile;
use crate::tensor_map::WideMaps;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The oldest driver that loads the kernels, as `cuDriverGetVersion` says it: CUDA 12.8, driver 570.
pub const MINIMUM_DRIVER: i32 = 12080;

/// Why a card cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver library.
    #[error(
        "no CUDA driver: libcuda.so.1 (nvcuda.dll) is not on this machine; install NVIDIA's driver, or use --device cpu"
    )]
    NoDriver,
    /// The driver cannot load the kernels.
    #[error("the CUDA driver is too old: it supports CUDA {}.{}, and kvant needs 12.8 (driver 570 or newer)", version / 1000, version % 1000 / 10)]
    OldDriver {
        /// As the driver says it.
        version: i32,
    },
    /// No card of that number.
    #[error("no device cuda:{ordinal}: this machine has {count}")]
    NoDevice {
        /// What was asked for.
        ordinal: usize,
        /// How many there are.
        count: i32,
    },
    /// A card without what the kernels need.
    #[error("{name} has compute capability {major}.{minor}, and kvant's kernels need 8.0 (Ampere) or newer")]
    OldCard {
        /// The card.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
    },
    /// The driver refused something.
    #[error("CUDA: {what} failed: {code}")]
    Driver {
        /// What was tried.
        what: String,
        /// The driver's name of the error.
        code: String,
    },
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(DriverError) -> OpenError {
    move |error| OpenError::Driver { what: what.into(), code: format!("{:?}", error.0) }
}

/// A kernel of a loaded module. It lives as long as its [`CudaGpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Bytes of dynamic shared memory that it is launched with.
    shared: u32,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// CTAs along x and y.
    pub grid: (u32, u32),
    /// Threads of a CTA.
    pub threads: u32,
    /// Bytes of dynamic shared memory besides what the sources name.
    pub shared: u32,
    /// Whether it may begin before the kernel before it has ended (programmatic dependent launch); Hopper and newer.
    pub early: bool,
}

/// An open card with its kernels.
pub struct CudaGpu {
    context: Arc<CudaContext>,
    /// The stream that everything runs on: its own, or another library's.
    stream: AtomicPtr<sys::CUstream_st>,
    _own: Arc<CudaStream>,
    ordinal: usize,
    name: String,
    form: Form,
    limits: Limits,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<String, Kernel>,
    pub(crate) profile: Profile,
}

// SAFETY: handles of the driver's, which any thread may use that has made the context current.
unsafe impl Send for CudaGpu {}
// SAFETY: as above.
unsafe impl Sync for CudaGpu {}

impl CudaGpu {
    /// Opens card `ordinal` and loads all kernels.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(ordinal: usize) -> Result<CudaGpu, OpenError> {
        CudaGpu::open_as(ordinal, None)
    }

    /// The same with kernels in this form, where one is named.
    ///
    /// # Errors
    /// As [`CudaGpu::open`]; and a card that is not a Hopper loads no cubins.
    pub fn open_as(ordinal: usize, form: Option<Form>) -> Result<CudaGpu, OpenError> {
        // SAFETY: it loads the driver's library and drops it again, which has no requirement.
        if !unsafe { sys::is_culib_present() } {
            return Err(OpenError::NoDriver);
        }
        let mut version = 0;
        // SAFETY: the pointer is to an integer of ours, and the call needs no context.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(failed("asking for the driver's version"))?;
        if version < MINIMUM_DRIVER {
            return Err(OpenError::OldDriver { version });
        }
        let count = CudaContext::device_count().map_err(failed("counting devices"))?;
        if i32::try_from(ordinal).map_or(true, |ordinal| ordinal >= count) {
            return Err(OpenError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed(format!("opening cuda:{ordinal}")))?;
        let name = context.name().map_err(failed("asking for the card's name"))?;
        let (major, minor) =
            context.compute_capability().map_err(failed("asking for the compute capability"))?;
        let Some(form) = Form::of(major, minor).map(|own| form.unwrap_or(own)) else {
            return Err(OpenError::OldCard { name, major, minor });
        };
        let limits = limits(&context, form)?;
        let stream = context.new_stream().map_err(failed("making a stream"))?;
        let mut card = CudaGpu {
            context,
            stream: AtomicPtr::new(stream.cu_stream()),
            _own: stream,
            ordinal,
            name,
            form,
            limits,
            modules: Vec::new(),
            kernels: HashMap::new(),
            profile: Profile::default(),
        };
        for module in &MODULES {
            card.load(module)?;
        }
        Ok(card)
    }

    fn load(&mut self, module: &Module) -> Result<(), OpenError> {
        self.context.bind_to_thread().map_err(failed("taking the context"))?;
        let ptx = module.ptx();
        let only_hopper = entries(&ptx).next().is_none();
        // Products of many tokens read activations by tensor maps.
        if only_hopper && (self.form == Form::Ptx || module.name.starts_with("wide") && !self.limits.wide) {
            return Ok(());
        }
        let mut image = match self.form {
            Form::Cubin => module.cubin(),
            Form::Ptx => ptx.clone().into_bytes(),
        };
        image.push(0); // PTX is a C string
        // SAFETY: the image is a whole cubin, or PTX with its end, and the context is current.
        let loaded = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(failed(format!("loading the kernels of {}", module.name)))?;
        self.modules.push(loaded);
        let names: Vec<&str> =
            if only_hopper { hopper_entries(&ptx).collect() } else { entries(&ptx).collect() };
        for name in names {
            let symbol = CString::new(name).expect("names of kernels have no zero byte");
            // SAFETY: the module was loaded above and stays until the card is dropped.
            let function = unsafe { result::module::get_function(loaded, symbol) }
                .map_err(failed(format!("finding the kernel {name}")))?;
            let shared = dynamic_shared(&ptx, name);
            let set = |attribute, value| {
                // SAFETY: the function is of a module that was loaded into the current context.
                unsafe { result::function::set_function_attribute(function, attribute, value) }
                    .map_err(failed(format!("preparing the kernel {name}")))
            };
            if shared > 0 {
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC;
                if set(DYNAMIC, shared as i32).is_err() {
                    continue; // the card gives a CTA less, and whoever needs the kernel says so
                }
            }
            let is_scan = name.starts_with("scan_") || name.starts_with("chunk_products_");
            let grows = is_scan || name.starts_with("attend_general");
            if grows || ["_one", "_few", "_group8"].iter().any(|end| name.ends_with(end)) {
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC;
                let named = if is_scan { SCAN_SHARED } else { 0 };
                set(DYNAMIC, (self.limits.shared - named) as i32)?;
            }
            if name.starts_with("attend") || name.starts_with("reduce") {
                // One carve-out for both, or the reduce could not enter an SM that attention still holds.
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVE_OUT;
                set(CARVE_OUT, 100)?;
            }
            self.kernels.insert(name.to_owned(), Kernel { function, shared });
        }
        Ok(())
    }

    /// Puts a kernel on a stream.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    ///
    /// # Safety
    /// `params` points to the kernel's struct, its addresses are of memory on this card of the sizes that the kernel reads and writes,
    /// and the stream is of this card's context. A kernel has tensor maps before its struct or it has none, and so has the call.
    pub(crate) unsafe fn launch(
        &self,
        stream: sys::CUstream,
        kernel: Kernel,
        launch: Launch,
        maps: Option<&WideMaps>,
        params: *const std::ffi::c_void,
    ) -> Result<(), OpenError> {
        // SAFETY: all zeros is an attribute without a meaning; what it means is set below.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0,
            gridDimY: launch.grid.1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared + launch.shared,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: u32::from(launch.early && self.form == Form::Cubin),
        };
        let params = params.cast_mut();
        let mut arguments = match maps {
            Some(maps) => [std::ptr::from_ref(maps).cast_mut().cast(), params],
            None => [params; 2],
        };
        // SAFETY: as many arguments as the kernel has, maps and its struct, which the driver copies; the rest is the caller's contract.
        unsafe {
            sys::cuLaunchKernelEx(&config, kernel.function, arguments.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(failed("launching a kernel"))
    }

    /// Makes its context current, which every call of the driver needs.
    ///
    /// # Errors
    /// When the card is lost.
    pub fn bind(&self) -> Result<(), OpenError> {
        self.context.bind_to_thread().map_err(failed("taking the context"))
    }

    /// Waits until all that was put on its stream is done.
    ///
    /// # Errors
    /// When something that ran there failed, or the card is lost.
    pub fn synchronize(&self) -> Result<(), OpenError> {
        self.bind()?;
        // SAFETY: the stream is the card's own.
        unsafe { result::stream::synchronize(self.stream()) }.map_err(failed("waiting for the card"))
    }

    /// The stream that everything runs on.
    pub fn stream(&self) -> sys::CUstream {
        self.stream.load(Ordering::Acquire)
    }

    /// Runs everything from now on on another stream, after all that was put on the one before.
    ///
    /// # Errors
    /// When the card is lost.
    ///
    /// # Safety
    /// The stream is of this card's primary context and lives as long as it is used; null is its default stream. No other thread puts
    /// anything on the card meanwhile.
    pub unsafe fn move_to(&self, stream: sys::CUstream) -> Result<(), OpenError> {
        let before = self.stream();
        if before == stream {
            return Ok(());
        }
        self.bind()?;
        let what = || failed("changing to another stream");
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(what())?;
        // SAFETY: the event was made above, both streams are of this context, and an event that is waited for may go.
        let ordered = unsafe {
            let recorded = result::event::record(event, before);
            let waits = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            let ordered = recorded.and_then(|()| result::stream::wait_event(stream, event, waits));
            ordered.and(result::event::destroy(event))
        };
        ordered.map_err(what())?;
        self.stream.store(stream, Ordering::Release);
        Ok(())
    }

    /// The driver's number of the card.
    pub(crate) fn device(&self) -> i32 {
        self.context.cu_device()
    }

    /// What it is called in messages: `cuda:0`.
    pub fn label(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// When the card is lost.
    pub fn memory(&self) -> Result<usize, OpenError> {
        self.context.total_mem().map_err(failed("asking for the size of its memory"))
    }

    /// Bytes of its memory that nobody has taken, and all of them.
    ///
    /// # Errors
    /// When the card is lost.
    pub fn free_memory(&self) -> Result<(usize, usize), OpenError> {
        self.bind()?;
        result::mem_get_info().map_err(failed("asking for its free memory"))
    }

    /// Its streaming multiprocessors.
    pub fn processors(&self) -> u32 {
        self.limits.processors as u32
    }

    /// What decides which kernels it runs.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the card is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which form of the kernels it runs.
    pub fn form(&self) -> Form {
        self.form
    }

    /// CTAs of an attention kernel that fit into a processor of 228 KB of shared memory, 1 KB of each being the system's.
    pub(crate) fn resident(&self, name: &str) -> usize {
        match self.kernels.get(name) {
            Some(kernel) if kernel.shared > 113 << 10 => 1,
            _ => 2,
        }
    }

    /// What a kernel is called.
    pub(crate) fn kernel_name(&self, kernel: Kernel) -> Option<&str> {
        self.kernels.iter().find(|(_, own)| **own == kernel).map(|(name, _)| name.as_str())
    }

    /// A kernel by its name.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        self.kernels.get(name).copied()
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            for module in self.modules.drain(..) {
                // SAFETY: the module is ours and no kernel outlives its card. A card that was lost has nothing to unload.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}

/// Bytes of shared memory that kernels of `kernels/recurrent*.cu` name themselves, at most.
pub(crate) const SCAN_SHARED: usize = 8192;

/// Of an open context. Every card from 8.0 on gives a CTA 99 KB.
fn limits(context: &CudaContext, form: Form) -> Result<Limits, OpenError> {
    use sys::CUdevice_attribute as Attribute;
    let ask = |attribute, what: &str| {
        let value = context.attribute(attribute).map_err(failed(format!("asking for {what}")))?;
        Ok::<usize, OpenError>(usize::try_from(value).unwrap_or(0))
    };
    let processors =
        ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "the number of multiprocessors")?;
    let shared =
        ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "the shared memory of a CTA")?;
    let maps = ask(Attribute::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, "tensor maps")?;
    let wide = form == Form::Cubin && maps != 0;
    Ok(Limits { processors: processors.max(1), shared: shared.max(99 << 10), wide })
}

/// Names of the kernels that only the cubin has, of a PTX text that names their shared memory.
fn hopper_entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(|line| line.split_once("_shared = ")?.0.rsplit(' ').next())
}

/// Names of the kernels in a PTX text.
fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(|line| line.split_once(".entry ")?.1.split('(').next()).map(str::trim)
}

/// Bytes of dynamic shared memory that the sources name for a kernel; none where they name none.
fn dynamic_shared(ptx: &str, name: &str) -> u32 {
    let number = ptx.split_once(&format!(" {name}_shared = ")).and_then(|(_, rest)| rest.split(';').next());
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_their_shared_memory_are_those_of_the_manifest() {
        let manifest: serde_json::Value = serde_json::from_str(crate::kernels::MANIFEST).unwrap();
        let mut found = 0;
        for module in &MODULES {
            let ptx = module.ptx();
            let own = if entries(&ptx).next().is_some() { None } else { Some(hopper_entries(&ptx)) };
            for name in entries(&ptx).chain(own.into_iter().flatten()) {
                let kernel = &manifest["kernels"][name];
                assert_eq!(kernel["module"], module.name, "{name}");
                assert_eq!(kernel["dynamic_shared"], dynamic_shared(&ptx, name), "{name}");
                found += 1;
            }
        }
        assert_eq!(found, manifest["kernels"].as_object().unwrap().len());
    }

    #[test]
    fn a_machine_without_a_card_says_what_is_missing() {
        let Err(error) = CudaGpu::open(99) else { panic!("nobody has a hundred cards") };
        let text = error.to_string();
        assert!(text.contains("driver") || text.contains("cuda:99") || text.contains("CUDA"), "{text}");
    }

    #[test]
    fn an_old_driver_is_named_by_its_version() {
        assert!(OpenError::OldDriver { version: 12040 }.to_string().contains("CUDA 12.4"));
    }
}
