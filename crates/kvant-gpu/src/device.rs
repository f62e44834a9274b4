//! The device that is opened on an adapter.

use crate::adapter::{AdapterKind, AdapterReport, instance, ready, report};
use crate::arithmetic::{Arithmetic, MATRICES, matrices};
use crate::kernel::Kernel;
use crate::teams::TeamExchange;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of arguments that every kernel may have: what all adapters offer.
pub(crate) const IMMEDIATE_BYTES: u32 = 64;

/// Workgroup memory that kernels count on.
pub(crate) const WORKGROUP_BYTES: u32 = 32 * 1024;

/// Buffers that the kernel with most of them has beside those of pages.
const OTHER_BUFFERS: u32 = 6;

/// The most buffers of pages that a kernel is bound to.
const MOST_PAGE_BUFFERS: u32 = 16;

/// The environment variable that chooses an adapter by a part of its name.
pub const ADAPTER_VARIABLE: &str = "KVANT_GPU";

/// Why there is no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// Nothing to be opened.
    #[error("no GPU was found: Vulkan, Metal or DirectX 12 is needed; `kvant doctor` lists what there is")]
    NoAdapter,
    /// No adapter of that name.
    #[error("no adapter is called `{name}`; there are: {there}")]
    NoSuchAdapter {
        /// What was asked for.
        name: String,
        /// What there is.
        there: String,
    },
    /// An adapter that kernels cannot run on.
    #[error("{adapter} cannot run kvant: {what}")]
    Unfit {
        /// Which.
        adapter: String,
        /// What is missing.
        what: String,
    },
    /// What the driver said while a device was opened or a kernel was built.
    #[error("{adapter}: {message}")]
    Driver {
        /// Which.
        adapter: String,
        /// Its words.
        message: String,
    },
}

/// An open device with its queue and the kernels built for it. Cloning gives another handle to it.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    adapter: wgpu::Adapter,
    report: AdapterReport,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    exchange: TeamExchange,
    is_timed: bool,
    dispatches: AtomicUsize,
    buffer_bytes: AtomicUsize,
    /// The first thing that went wrong on the device.
    fault: Arc<Mutex<Option<String>>>,
    /// By source text.
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    /// The same by what tells texts apart, which is shorter.
    by_key: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl Gpu {
    /// Opens the adapter that [`ADAPTER_VARIABLE`] names, else the best GPU. Software adapters are opened by name only.
    ///
    /// # Errors
    /// If there is none, or it cannot run the kernels.
    pub fn open() -> Result<Gpu, GpuError> {
        match std::env::var(ADAPTER_VARIABLE) {
            Ok(name) if !name.is_empty() => Gpu::open_named(&name),
            _ => Gpu::choose(None, false),
        }
    }

    /// The same, but where there is no GPU a software adapter is opened.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_any() -> Result<Gpu, GpuError> {
        match std::env::var(ADAPTER_VARIABLE) {
            Ok(name) if !name.is_empty() => Gpu::open_named(&name),
            _ => Gpu::choose(None, true),
        }
    }

    /// Opens the adapter whose name has `name` in it.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_named(name: &str) -> Result<Gpu, GpuError> {
        Gpu::choose(Some(name), true)
    }

    /// Opens an adapter that the caller has: one of an instance of its own, or one that is none of wgpu's making.
    ///
    /// # Errors
    /// If it cannot run the kernels.
    pub fn on_adapter(adapter: &wgpu::Adapter) -> Result<Gpu, GpuError> {
        Gpu::on(report(adapter), adapter)
    }

    /// Another device on the same adapter, which computes products in this way; matrices are those that the adapter has, if any are wanted.
    ///
    /// # Errors
    /// If the driver does not open it.
    pub fn reopened(&self, arithmetic: Arithmetic) -> Result<Gpu, GpuError> {
        let offered = matrices(&self.inner.adapter);
        let arithmetic = Arithmetic { matrices: arithmetic.matrices.and(offered), ..arithmetic };
        Gpu::on(AdapterReport { arithmetic, ..self.inner.report.clone() }, &self.inner.adapter)
    }

    fn choose(name: Option<&str>, software: bool) -> Result<Gpu, GpuError> {
        let found = ready(instance().enumerate_adapters(wgpu::Backends::all()));
        let mut reports: Vec<_> = found.into_iter().map(|adapter| (report(&adapter), adapter)).collect();
        let order = |kind: AdapterKind| match kind {
            AdapterKind::Discrete => 0,
            AdapterKind::Integrated => 1,
            AdapterKind::Virtual => 2,
            AdapterKind::Unknown => 3,
            AdapterKind::Software => 4,
        };
        reports.sort_by_key(|(report, _)| (report.unfit.is_some(), order(report.kind)));
        let chosen = match name {
            Some(name) => {
                let lower = name.to_lowercase();
                let there =
                    reports.iter().map(|(report, _)| report.name.clone()).collect::<Vec<_>>().join(", ");
                let missing = GpuError::NoSuchAdapter { name: name.to_owned(), there };
                reports
                    .into_iter()
                    .find(|(report, _)| report.name.to_lowercase().contains(&lower))
                    .ok_or(missing)?
            }
            None => reports
                .into_iter()
                .find(|(report, _)| software || report.kind.is_gpu())
                .ok_or(GpuError::NoAdapter)?,
        };
        Gpu::on(chosen.0, &chosen.1)
    }

    fn on(report: AdapterReport, adapter: &wgpu::Adapter) -> Result<Gpu, GpuError> {
        if let Some(what) = report.unfit.clone() {
            return Err(GpuError::Unfit { adapter: report.name, what });
        }
        let offered = adapter.limits();
        let limits = wgpu::Limits {
            max_storage_buffer_binding_size: offered.max_storage_buffer_binding_size,
            max_buffer_size: offered.max_buffer_size,
            max_compute_workgroup_storage_size: WORKGROUP_BYTES,
            max_storage_buffers_per_shader_stage: offered
                .max_storage_buffers_per_shader_stage
                .min(OTHER_BUFFERS + MOST_PAGE_BUFFERS),
            max_immediate_size: IMMEDIATE_BYTES,
            ..wgpu::Limits::default()
        };
        let matrices = if report.arithmetic.matrices.is_some() { MATRICES } else { wgpu::Features::empty() };
        let exchange = TeamExchange::of(adapter);
        let timed = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        let is_timed = crate::times::are_wanted() && adapter.features().contains(timed);
        let wanted = wgpu::DeviceDescriptor {
            label: Some("kvant"),
            // Tests that print times read the device's clock too.
            required_features: wgpu::Features::IMMEDIATES
                | matrices
                | exchange.features()
                | if is_timed || cfg!(test) { adapter.features() & timed } else { wgpu::Features::empty() },
            required_limits: limits.clone(),
            // SAFETY: of what wgpu calls experimental kernels use cooperative matrices alone, on memory of the workgroup that is theirs;
            // tests run them against naive loops.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = ready(adapter.request_device(&wanted))
            .map_err(|e| GpuError::Driver { adapter: report.name.clone(), message: e.to_string() })?;
        let fault = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&fault);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            noted.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }));
        let name = format!("gpu ({})", report.name);
        let inner = Inner {
            name,
            adapter: adapter.clone(),
            report,
            device,
            queue,
            limits,
            exchange,
            is_timed,
            dispatches: AtomicUsize::new(0),
            buffer_bytes: AtomicUsize::new(0),
            fault,
            kernels: Mutex::default(),
            by_key: Mutex::default(),
        };
        Ok(Gpu { inner: Arc::new(inner) })
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What is known of its adapter.
    pub fn report(&self) -> &AdapterReport {
        &self.inner.report
    }

    /// How it computes products.
    pub fn arithmetic(&self) -> Arithmetic {
        self.inner.report.arithmetic
    }

    /// How threads that share a page exchange numbers.
    pub(crate) fn team_exchange(&self) -> TeamExchange {
        self.inner.exchange
    }

    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.inner.queue
    }

    /// The most bytes of one binding, in whole blocks of 256.
    pub(crate) fn binding_bytes(&self) -> usize {
        let most = self.inner.limits.max_storage_buffer_binding_size.min(self.inner.limits.max_buffer_size);
        usize::try_from(most).unwrap_or(usize::MAX) / 256 * 256
    }

    /// Whether the time of every kernel is asked for.
    pub(crate) fn is_timed(&self) -> bool {
        self.inner.is_timed
    }

    /// Buffers that a kernel can be bound to.
    pub(crate) fn most_buffers(&self) -> usize {
        self.inner.limits.max_storage_buffers_per_shader_stage as usize
    }

    /// Buffers of pages that kernels can be bound to.
    pub(crate) fn page_buffers(&self) -> usize {
        (self.inner.limits.max_storage_buffers_per_shader_stage - OTHER_BUFFERS) as usize
    }

    /// The kernel of a source text, built on first use.
    pub(crate) fn kernel(&self, label: &'static str, source: String) -> Arc<Kernel> {
        self.built(label, source, true)
    }

    /// The same for texts whose indices all come from sizes and arguments: places in arrays are not checked, which costs a tenth.
    pub(crate) fn unchecked_kernel(&self, label: &'static str, source: String) -> Arc<Kernel> {
        self.built(label, source, false)
    }

    fn built(&self, label: &'static str, source: String, is_checked: bool) -> Arc<Kernel> {
        let mut kernels = self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&source) {
            return Arc::clone(kernel);
        }
        let kernel = Arc::new(Kernel::build(&self.inner.device, label, &source, is_checked));
        kernels.insert(source, Arc::clone(&kernel));
        kernel
    }

    /// The kernel that `key` stands for; its text is asked for on first use.
    pub(crate) fn kernel_of(
        &self,
        label: &'static str,
        key: String,
        source: impl FnOnce() -> String,
    ) -> Arc<Kernel> {
        let mut by_key = self.inner.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_key.entry(key).or_insert_with(|| self.kernel(label, source())))
    }

    /// What has gone wrong on the device since it was opened: no memory, a driver that was reset. Nothing that it computes is worth
    /// anything then.
    pub fn fault(&self) -> Option<String> {
        self.inner.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes of all buffers that there are on it, pages, weights and activations alike.
    pub fn buffer_bytes(&self) -> usize {
        self.inner.buffer_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn buffer_count(&self) -> &AtomicUsize {
        &self.inner.buffer_bytes
    }

    /// Dispatches since it was opened.
    pub fn dispatches(&self) -> usize {
        self.inner.dispatches.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dispatch(&self) {
        self.inner.dispatches.fetch_add(1, Ordering::Relaxed);
    }

    /// How many kernels were built.
    pub fn kernels_built(&self) -> usize {
        self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
