//! The models that are served: one, or several that are loaded when they are asked for.
//!
//! Where there is one, it answers whatever name a client calls it by, since most clients insist on a name. Where there are several
//! a [`ModelLoader`] brings them in on demand. Those that were not used for longest are unloaded to make room for others, and any
//! that was not used for a while: the server's time for that, or the one that a request wants ([`KeepAlive`]).
//!
//! **Invariant:** a model at work is never unloaded. If those at work leave no room for another, its requests are refused for now.

mod adapters;
mod change;
mod keep_alive;
mod loader;
mod served;
mod slot;

pub use keep_alive::KeepAlive;
pub use loader::{ModelFacts, ModelLoader, PullProgress, ServedModel};
pub use served::Served;

use crate::error::ApiError;
use axum::http::StatusCode;
use kvant_engine::SamplingParams;
use kvant_engine::scheduler::Handle;
use slot::{Place, Slot, limit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long is waited for models at work to become idle: an answer is sent a moment before its sequence is parted with.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// All models.
pub struct Models {
    slots: Mutex<Vec<Slot>>,
    loader: Option<Arc<dyn ModelLoader>>,
    /// Bytes that models may take together.
    memory: Option<u64>,
    idle: Option<Duration>,
    changed: tokio::sync::Notify,
    sampling: Box<dyn Fn(&Handle) -> SamplingParams + Send + Sync>,
}

/// What is known about a model.
#[derive(Clone)]
pub struct ModelStatus {
    /// What clients call it.
    pub name: String,
    /// `loaded`, `loading` or `unloaded`.
    pub state: &'static str,
    /// Where it is loaded.
    pub served: Option<Arc<Served>>,
    /// The most bytes that it takes in memory; 0 where that is not known.
    pub bytes: u64,
    /// What its files say, where they are here.
    pub facts: Option<ModelFacts>,
    /// What its LoRA adapters are called, where that is known.
    pub adapters: Vec<String>,
    /// Tokens of its context, where that is known.
    pub context: Option<usize>,
    /// When it will be unloaded if nobody asks for it; none if it stays.
    pub expires: Option<Duration>,
}

impl Models {
    /// One model that stays.
    pub fn one(served: Served) -> Self {
        let (name, context) = (served.name.clone(), Some(served.handle.context()));
        let adapters = served.adapters.names().map(str::to_owned).collect();
        let place = Place::here(Arc::new(served), None);
        Self {
            slots: Mutex::new(vec![Slot { name, bytes: 0, context, adapters, facts: None, place }]),
            loader: None,
            memory: None,
            idle: None,
            changed: tokio::sync::Notify::new(),
            sampling: Box::new(|_| SamplingParams::default()),
        }
    }

    /// Models that are loaded when they are asked for, within so many bytes, and unloaded when nobody asked for so long.
    pub fn on_demand(
        loader: Arc<dyn ModelLoader>,
        memory: Option<u64>,
        idle: Option<Duration>,
        sampling: impl Fn(&Handle) -> SamplingParams + Send + Sync + 'static,
    ) -> Self {
        Self {
            slots: Mutex::new(
                loader.names().into_iter().map(|name| Slot::away(loader.as_ref(), name)).collect(),
            ),
            loader: Some(loader),
            memory,
            idle,
            changed: tokio::sync::Notify::new(),
            sampling: Box::new(sampling),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this name, loaded if need be; the first, or the one that is loaded, without a name. Where there is only one it
    /// answers to every name, unless names are to be `strict`. The name of an adapter is the model with that adapter.
    pub async fn get(self: &Arc<Self>, name: Option<&str>, strict: bool) -> Result<Arc<Served>, ApiError> {
        let adapted = name.and_then(|name| adapter_of(name, &self.slots())).transpose()?;
        let Some((model, adapter)) = adapted else {
            let model = self.resolve(name, strict)?;
            return self.get_model(model).await;
        };
        let served = self.get_model(model).await?;
        let mix = served.adapters.named(&adapter).ok_or_else(|| unknown(&adapter, &self.slots()))?;
        Ok(served.with(name.unwrap_or(&adapter), mix))
    }

    async fn get_model(self: &Arc<Self>, name: String) -> Result<Arc<Served>, ApiError> {
        loop {
            // Registered before the look, so that no change is missed.
            let changed = self.changed.notified();
            let start = {
                let mut slots = self.slots();
                let Some(slot) = slots.iter_mut().find(|slot| slot.name == name) else {
                    return Err(unknown(&name, &slots));
                };
                match &mut slot.place {
                    Place::Here { served, used, .. } => {
                        *used = Instant::now();
                        return Ok(Arc::clone(served));
                    }
                    Place::Coming => false,
                    Place::Away => {
                        slot.place = Place::Coming;
                        true
                    }
                }
            };
            if !start {
                changed.await;
                continue;
            }
            // Goes on when whoever asked has left: others may wait for it too.
            let (models, wanted) = (Arc::clone(self), name.clone());
            let loading = tokio::spawn(async move { models.load(&wanted).await });
            let failed =
                |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the model could not be loaded");
            return loading.await.map_err(failed)?;
        }
    }

    /// The name of the model that a request means.
    pub fn resolve(&self, name: Option<&str>, strict: bool) -> Result<String, ApiError> {
        let slots = self.slots();
        let find = |wanted: &str| slots.iter().find(|slot| slot.name == wanted);
        // Ollama's clients add a tag to every name.
        let named = name.and_then(|name| find(name).or_else(|| find(name.strip_suffix(":latest")?)));
        let loaded = || slots.iter().find(|slot| matches!(slot.place, Place::Here { .. }));
        let slot = match (named, name) {
            (Some(slot), _) => Some(slot),
            (None, Some(name)) if strict || slots.len() != 1 => return Err(unknown(name, &slots)),
            _ => loaded().or(slots.first()),
        };
        slot.map(|slot| slot.name.clone()).ok_or_else(|| ApiError::bad("this server has no model"))
    }

    async fn load(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let failed = |message: String, status| {
            if let Some(slot) = self.slots().iter_mut().find(|slot| slot.name == name) {
                slot.place = Place::Away;
            }
            self.changed.notify_waiters();
            Err(ApiError::new(status, message))
        };
        let Some(loader) = self.loader.clone() else {
            return failed(format!("the model {name:?} was unloaded"), StatusCode::SERVICE_UNAVAILABLE);
        };
        let (asked, wanted) = (Arc::clone(&loader), name.to_owned());
        let size = match tokio::task::spawn_blocking(move || asked.size(&wanted)).await {
            Ok(Ok(size)) => size,
            Ok(Err(message)) => return failed(message, StatusCode::INTERNAL_SERVER_ERROR),
            Err(_) => {
                return failed(format!("{name} could not be loaded"), StatusCode::INTERNAL_SERVER_ERROR);
            }
        };
        self.set_bytes(name, size);
        if let Err(message) = self.make_room(name).await {
            return failed(message, StatusCode::SERVICE_UNAVAILABLE);
        }
        let (room, wanted) = (self.room(name), name.to_owned());
        match tokio::task::spawn_blocking(move || loader.load(&wanted, room)).await {
            Ok(Ok(loaded)) => Ok(self.insert(name, loaded)),
            Ok(Err(message)) => failed(message, StatusCode::INTERNAL_SERVER_ERROR),
            Err(_) => failed(format!("{name} could not be loaded"), StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    fn set_bytes(&self, name: &str, bytes: u64) {
        if let Some(slot) = self.slots().iter_mut().find(|slot| slot.name == name) {
            slot.bytes = bytes;
        }
    }

    /// Bytes that a model may take beside those that are loaded.
    fn room(&self, name: &str) -> Option<u64> {
        let others = self.slots().iter().filter(|slot| slot.name != name).map(Slot::taken).sum();
        self.memory.map(|memory| memory.saturating_sub(others))
    }

    /// Takes in a model that has been loaded.
    pub fn insert(&self, name: &str, loaded: ServedModel) -> Arc<Served> {
        let ServedModel { handle, worker, bytes } = loaded;
        let sampling = (self.sampling)(&handle);
        // Its files may have been fetched for it.
        let facts = self.loader.as_ref().and_then(|loader| loader.facts(name));
        let served = Arc::new(Served::new(name.to_owned(), handle, sampling));
        if let Some(slot) = self.slots().iter_mut().find(|slot| slot.name == name) {
            slot.context = Some(served.handle.context());
            slot.adapters = served.adapters.names().map(str::to_owned).collect();
            slot.place = Place::here(Arc::clone(&served), Some(worker));
            slot.bytes = bytes;
            slot.facts = facts.or(slot.facts.take());
        }
        self.changed.notify_waiters();
        served
    }

    /// Unloads those that were used least recently until the model fits.
    async fn make_room(&self, name: &str) -> Result<(), String> {
        let Some(memory) = self.memory else { return Ok(()) };
        let start = Instant::now();
        loop {
            let victim = {
                let slots = self.slots();
                if slots.iter().map(Slot::taken).sum::<u64>() <= memory {
                    return Ok(());
                }
                let idle = slots.iter().filter(|slot| slot.is_idle() && slot.name != name);
                idle.min_by_key(|slot| slot.used()).map(|slot| slot.name.clone())
            };
            match victim {
                Some(victim) => self.unload(&victim).await?,
                None if start.elapsed() < IDLE_TIMEOUT => tokio::time::sleep(PAUSE).await,
                None => {
                    return Err(format!(
                        "not enough memory for {name} while other models are busy; try again later"
                    ));
                }
            }
        }
    }

    /// Unloads a model that is not at work.
    ///
    /// # Errors
    /// If it is at work, or stays.
    pub async fn unload(&self, name: &str) -> Result<(), String> {
        let start = Instant::now();
        let worker = loop {
            match self.take_out(name)? {
                Some(worker) => break worker,
                None if start.elapsed() < IDLE_TIMEOUT => tokio::time::sleep(PAUSE).await,
                None => return Err(format!("{name} is busy")),
            }
        };
        if let Some(worker) = worker {
            // Its memory is free when its thread has ended.
            let _ = tokio::task::spawn_blocking(move || worker.join()).await;
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// Takes a model out, and tells its thread to end; none if it is at work.
    fn take_out(&self, name: &str) -> Result<Option<Option<JoinHandle<()>>>, String> {
        let mut slots = self.slots();
        let slot = slots.iter_mut().find(|slot| slot.name == name);
        let slot = slot.ok_or_else(|| format!("there is no model {name:?}"))?;
        if matches!(slot.place, Place::Away) {
            return Ok(Some(None));
        }
        if self.loader.is_none() {
            return Err(format!("{name} is the server's only model and cannot be unloaded"));
        }
        if !slot.is_idle() {
            return Ok(None);
        }
        Ok(Some(match std::mem::replace(&mut slot.place, Place::Away) {
            Place::Here { served, worker, .. } => {
                served.handle.stop(Instant::now());
                worker
            }
            Place::Away | Place::Coming => None,
        }))
    }

    /// Lets a model stay for so long after its requests, in place of the server's time for that.
    pub fn keep(&self, name: &str, wanted: KeepAlive) {
        if let Some(slot) = self.slots().iter_mut().find(|slot| slot.name == name)
            && let Place::Here { keep, .. } = &mut slot.place
        {
            *keep = Some(wanted);
        }
    }

    /// Unloads what nobody has asked for in a while. Called now and then.
    pub async fn unload_idle(&self) {
        let mut old = Vec::new();
        for slot in self.slots().iter_mut() {
            let is_idle = slot.is_idle();
            if let Place::Here { used, keep, .. } = &mut slot.place {
                if !is_idle {
                    *used = Instant::now();
                } else if limit(*keep, self.idle).is_some_and(|limit| used.elapsed() >= limit) {
                    old.push(slot.name.clone());
                }
            }
        }
        for name in old {
            // What is at work again by now stays.
            let _ = self.unload(&name).await;
        }
    }

    /// All of them.
    pub fn list(&self) -> Vec<ModelStatus> {
        let status = |slot: &Slot| {
            let (state, served, expires) = match &slot.place {
                Place::Away => ("unloaded", None, None),
                Place::Coming => ("loading", None, None),
                Place::Here { served, used, keep, .. } => {
                    let limit = limit(*keep, self.idle).filter(|_| self.loader.is_some());
                    let expires = limit.map(|limit| limit.saturating_sub(used.elapsed()));
                    ("loaded", Some(Arc::clone(served)), expires)
                }
            };
            let (name, context) = (slot.name.clone(), slot.context);
            ModelStatus {
                name,
                state,
                served,
                bytes: slot.bytes,
                facts: slot.facts.clone(),
                adapters: slot.adapters.clone(),
                context,
                expires,
            }
        };
        self.slots().iter().map(status).collect()
    }

    /// Those that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        self.list().into_iter().filter_map(|status| status.served).collect()
    }

    /// Whether models come and go.
    pub fn is_on_demand(&self) -> bool {
        self.loader.is_some()
    }

    /// Tells all of them to end.
    pub fn stop(&self, deadline: Instant) {
        self.loaded().iter().for_each(|served| served.handle.stop(deadline));
    }

    /// Waits until those that were loaded on demand have ended; false if one of their schedulers has failed.
    pub fn join(&self) -> bool {
        let places: Vec<Place> =
            self.slots().iter_mut().map(|slot| std::mem::replace(&mut slot.place, Place::Away)).collect();
        let mut is_well = true;
        for place in places {
            if let Place::Here { worker: Some(worker), .. } = place {
                is_well &= worker.join().is_ok();
            }
        }
        is_well
    }
}

/// The model and the adapter that a name means: that of an adapter, or both with a colon between them. None where it means a model.
fn adapter_of(name: &str, slots: &[Slot]) -> Option<Result<(String, String), ApiError>> {
    let named = |slot: &Slot, adapter: &str| (slot.name.clone(), adapter.to_owned());
    let has = |slot: &Slot, adapter: &str| slot.adapters.iter().any(|known| known == adapter);
    if slots.iter().any(|slot| slot.name == name) {
        return None;
    }
    if let Some(slot) = slots.iter().find(|slot| has(slot, name)) {
        return Some(Ok(named(slot, name)));
    }
    let of_model =
        |slot: &&Slot| name.strip_prefix(slot.name.as_str()).is_some_and(|rest| rest.starts_with(':'));
    let slot = slots.iter().filter(|slot| !slot.adapters.is_empty()).find(of_model)?;
    match &name[slot.name.len() + 1..] {
        "latest" => None,
        adapter if has(slot, adapter) => Some(Ok(named(slot, adapter))),
        // Not the model alone: somebody has mistyped an adapter.
        _ => Some(Err(unknown(name, slots))),
    }
}

fn unknown(name: &str, slots: &[Slot]) -> ApiError {
    let all = slots.iter().flat_map(|slot| std::iter::once(&slot.name).chain(&slot.adapters));
    let names: Vec<String> = all.map(|name| format!("{name:?}")).collect();
    let message = format!("this server has no model {name:?}; it has {}", names.join(", "));
    ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
}
