//! From a port to the routes: connections, their bounds, and an orderly end.

use crate::app::{App, ServerOptions};
use crate::connections::Connections;
use crate::models::{ModelLoader, Models, Served, ServedModel};
use crate::route::{self, HEAD_BYTES};
use crate::time::moment_after;
use crate::timeouts::WriteTimeout;
use crate::watched::Watched;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use kvant_engine::scheduler::Handle;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

/// Threads that speak with clients. Computing is done elsewhere.
const THREADS: usize = 2;

/// What is left of the time for an orderly end when answers have been ended.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A server on a port.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Takes the port. Clients can connect from now on, and wait until it [runs](Server::run).
    ///
    /// # Errors
    /// If the address is not to be had, or others could use the server without a key.
    pub fn bind(address: impl ToSocketAddrs, handle: Handle, options: ServerOptions) -> io::Result<Self> {
        let sampling = options.sampling_of(handle.engine().sampling_defaults());
        let served = Served::new(options.model.clone(), handle, sampling);
        Self::bind_models(address, Models::one(served), options)
    }

    /// The same for models that are loaded when they are asked for: within `memory` bytes, those that were not used for longest
    /// are unloaded first, and any that was not used for `idle`.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_on_demand(
        address: impl ToSocketAddrs,
        loader: Arc<dyn ModelLoader>,
        memory: Option<u64>,
        idle: Option<Duration>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let settings = options.clone();
        let sampling = move |handle: &Handle| settings.sampling_of(handle.engine().sampling_defaults());
        Self::bind_models(address, Models::on_demand(loader, memory, idle, sampling), options)
    }

    /// Has a model loaded from the beginning that its loader will load again when it has been unloaded.
    #[must_use]
    pub fn with_loaded(self, name: &str, loaded: ServedModel) -> Self {
        self.app.models.insert(name, loaded);
        self
    }

    fn bind_models(address: impl ToSocketAddrs, models: Models, options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let is_local = address.ip().is_loopback();
        if !is_local && options.keys.is_open() && !options.insecure {
            let message =
                format!("other machines can reach {address} without an API key: set one, or allow it");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Self { listener, app: Arc::new(App::new(models, options, is_local)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers clients until something comes from `ends`, or nothing more can. Answers under way are then finished within the
    /// time that [`Limits::grace`](crate::Limits::grace) allows, or until something comes again. The scheduler ends as well.
    ///
    /// # Errors
    /// If there are no threads, or the port is lost.
    pub fn run(self, ends: UnboundedReceiver<()>) -> io::Result<()> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(THREADS).thread_name("kvant-http").enable_all().build()?;
        let models = Arc::clone(&self.app.models);
        let result = runtime.block_on(self.serve(ends));
        let ended = models.join();
        // What is still being prepared is of no use to anybody.
        runtime.shutdown_background();
        result?;
        match ended {
            true => Ok(()),
            false => Err(io::Error::other("a scheduler has failed; this is a bug")),
        }
    }

    async fn serve(self, mut ends: UnboundedReceiver<()>) -> io::Result<()> {
        let Self { listener, app } = self;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let connections = GracefulShutdown::new();
        tokio::select! {
            _ = ends.recv() => {}
            () = accept(&listener, &app, &connections) => {}
            () = unload_idle(&app) => {}
        }
        drop(listener);
        let grace = app.limits().grace;
        app.models.stop(moment_after(grace));
        let mut shutdown = Box::pin(connections.shutdown());
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = sleep(grace) => {}
            _ = ends.recv() => app.models.stop(Instant::now()),
        }
        // Ended streams are told; who does not listen is not waited for.
        let _ = timeout(SHUTDOWN_GRACE, shutdown).await;
        Ok(())
    }
}

/// How often is looked for models that nobody uses.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Unloads what nobody uses, as long as the server runs.
async fn unload_idle(app: &App) {
    loop {
        sleep(IDLE_CHECK).await;
        app.models.unload_idle().await;
    }
}

/// Lets clients in, as many as there is room for. Those that say nothing make room for others.
async fn accept(listener: &tokio::net::TcpListener, app: &Arc<App>, connections: &GracefulShutdown) {
    let router = route::router(Arc::clone(app));
    let places = Connections::new(app.limits().connections);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Too many files are open, or the client has gone already: both pass.
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = places.enter().await;
        let routes = Watched::new(router.clone(), Arc::clone(&place));
        let connection = connections.watch(connection(stream, app, routes));
        tokio::spawn(async move {
            // How a connection ends is the client's business.
            tokio::select! {
                _ = connection => {}
                () = place.evicted() => {}
            }
        });
    }
}

type Io = TokioIo<WriteTimeout<TcpStream>>;

fn connection(stream: TcpStream, app: &App, routes: Watched) -> http1::Connection<Io, Watched> {
    // Pieces of a stream are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let limits = app.limits();
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, limits.stall)), routes)
}
