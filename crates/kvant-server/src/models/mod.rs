//! The models that are served: one, or several that are loaded when they are asked for.
//!
//! Where there is one, it answers whatever name a client calls it by, since most clients insist on a name. Where there are several
//! a [`ModelLoader`] brings them in on demand. Those that were not used for longest are unloaded to make room for others, and any
//! that was not used for a while.
//!
//! **Invariant:** a model at work is never unloaded. If those at work leave no room for another, its requests are refused for now.

use crate::constraints::Constraints;
use crate::error::ApiError;
use axum::http::StatusCode;
use kvant_engine::Constraint;
use kvant_engine::SamplingParams;
use kvant_engine::grammar::Grammar;
use kvant_engine::scheduler::Handle;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long is waited for models at work to become idle: an answer is sent a moment before its sequence is parted with.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A model that is loaded.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Its scheduler.
    pub handle: Handle,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplingParams,
    /// For answers that are kept to a grammar.
    constraints: Constraints,
}

impl Served {
    pub fn new(name: String, handle: Handle, sampling: SamplingParams) -> Self {
        Self { name, handle, sampling, constraints: Constraints::default() }
    }

    /// Constraints for `count` answers, where a grammar is asked for. Takes a moment.
    pub fn constraints(
        &self,
        grammar: Option<&Grammar>,
        count: usize,
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let Some(grammar) = grammar else { return Ok(Vec::new()) };
        self.constraints.make(self.handle.engine().tokenizer(), grammar, count)
    }
}

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// What clients call it.
    pub name: String,
    /// About how many bytes of memory it takes.
    pub bytes: u64,
}

/// A model that has just been loaded.
pub struct LoadedModel {
    /// Its scheduler.
    pub handle: Handle,
    /// The thread that the scheduler runs on. It ends when the scheduler is told to stop.
    pub worker: JoinHandle<()>,
}

/// Brings models into memory.
pub trait ModelLoader: Send + Sync {
    /// All that there are.
    fn entries(&self) -> Vec<ModelEntry>;

    /// Loads one of them. Takes a while.
    ///
    /// # Errors
    /// If it cannot be loaded, in words for those who asked.
    fn load(&self, name: &str) -> Result<LoadedModel, String>;
}

/// Where a model is.
enum Place {
    Away,
    /// On its way; whoever asks for it waits.
    Coming,
    Here {
        served: Arc<Served>,
        worker: Option<JoinHandle<()>>,
        used: Instant,
    },
}

struct Slot {
    entry: ModelEntry,
    place: Place,
}

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
pub struct ModelStatus {
    /// What clients call it.
    pub name: String,
    /// `loaded`, `loading` or `unloaded`.
    pub state: &'static str,
    /// Where it is loaded.
    pub served: Option<Arc<Served>>,
}

impl Models {
    /// One model that stays.
    pub fn one(served: Served) -> Self {
        let entry = ModelEntry { name: served.name.clone(), bytes: 0 };
        let place = Place::Here { served: Arc::new(served), worker: None, used: Instant::now() };
        Self {
            slots: Mutex::new(vec![Slot { entry, place }]),
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
        let slots = loader.entries().into_iter().map(|entry| Slot { entry, place: Place::Away }).collect();
        Self {
            slots: Mutex::new(slots),
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
    /// answers to every name, unless names are to be `strict`.
    pub async fn get(self: &Arc<Self>, name: Option<&str>, strict: bool) -> Result<Arc<Served>, ApiError> {
        let name = self.resolve(name, strict)?;
        loop {
            // Registered before the look, so that no change is missed.
            let changed = self.changed.notified();
            let start = {
                let mut slots = self.slots();
                let Some(slot) = slots.iter_mut().find(|slot| slot.entry.name == name) else {
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

    fn resolve(&self, name: Option<&str>, strict: bool) -> Result<String, ApiError> {
        let slots = self.slots();
        let find = |wanted: &str| slots.iter().find(|slot| slot.entry.name == wanted);
        // Ollama's clients add a tag to every name.
        let named = name.and_then(|name| find(name).or_else(|| find(name.strip_suffix(":latest")?)));
        let loaded = || slots.iter().find(|slot| matches!(slot.place, Place::Here { .. }));
        let slot = match (named, name) {
            (Some(slot), _) => Some(slot),
            (None, Some(name)) if strict || slots.len() != 1 => return Err(unknown(name, &slots)),
            _ => loaded().or(slots.first()),
        };
        slot.map(|slot| slot.entry.name.clone()).ok_or_else(|| ApiError::bad("no model is served here"))
    }

    async fn load(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let failed = |message: String, status| {
            if let Some(slot) = self.slots().iter_mut().find(|slot| slot.entry.name == name) {
                slot.place = Place::Away;
            }
            self.changed.notify_waiters();
            Err(ApiError::new(status, message))
        };
        let Some(loader) = self.loader.clone() else {
            return failed(format!("the model {name:?} was unloaded"), StatusCode::SERVICE_UNAVAILABLE);
        };
        if let Err(message) = self.make_room(name).await {
            return failed(message, StatusCode::SERVICE_UNAVAILABLE);
        }
        let wanted = name.to_owned();
        let loaded = tokio::task::spawn_blocking(move || loader.load(&wanted)).await;
        let LoadedModel { handle, worker } = match loaded {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(message)) => return failed(message, StatusCode::INTERNAL_SERVER_ERROR),
            Err(_) => {
                return failed(format!("{name} could not be loaded"), StatusCode::INTERNAL_SERVER_ERROR);
            }
        };
        let sampling = (self.sampling)(&handle);
        let served = Arc::new(Served::new(name.to_owned(), handle, sampling));
        if let Some(slot) = self.slots().iter_mut().find(|slot| slot.entry.name == name) {
            slot.place =
                Place::Here { served: Arc::clone(&served), worker: Some(worker), used: Instant::now() };
        }
        self.changed.notify_waiters();
        Ok(served)
    }

    /// Unloads those that were used least recently until the model fits.
    async fn make_room(&self, name: &str) -> Result<(), String> {
        let Some(memory) = self.memory else { return Ok(()) };
        let start = Instant::now();
        loop {
            let victim = {
                let slots = self.slots();
                let taken: u64 = slots
                    .iter()
                    .filter(|slot| !matches!(slot.place, Place::Away))
                    .map(|slot| slot.entry.bytes)
                    .sum();
                if taken <= memory {
                    return Ok(());
                }
                let idle = slots.iter().filter(|slot| slot.is_idle() && slot.entry.name != name);
                idle.min_by_key(|slot| slot.used()).map(|slot| slot.entry.name.clone())
            };
            match victim {
                Some(victim) => self.unload(&victim).await?,
                None if start.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                None => {
                    return Err(format!(
                        "there is no memory for {name} while other models are at work; try again in a while"
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
                None if start.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                None => return Err(format!("{name} is at work")),
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
        let slot = slots.iter_mut().find(|slot| slot.entry.name == name);
        let slot = slot.ok_or_else(|| format!("there is no model {name:?}"))?;
        if matches!(slot.place, Place::Away) {
            return Ok(Some(None));
        }
        if self.loader.is_none() {
            return Err(format!("{name} is the only model here, and stays"));
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

    /// Unloads what nobody has asked for in a while. Called now and then.
    pub async fn unload_idle(&self) {
        let Some(idle) = self.idle else { return };
        let old: Vec<String> = {
            let slots = self.slots();
            let is_old =
                |slot: &&Slot| slot.is_idle() && slot.used().is_some_and(|used| used.elapsed() > idle);
            slots.iter().filter(is_old).map(|slot| slot.entry.name.clone()).collect()
        };
        for name in old {
            // What is at work again by now stays.
            let _ = self.unload(&name).await;
        }
    }

    /// All of them.
    pub fn list(&self) -> Vec<ModelStatus> {
        let status = |slot: &Slot| {
            let (state, served) = match &slot.place {
                Place::Away => ("unloaded", None),
                Place::Coming => ("loading", None),
                Place::Here { served, .. } => ("loaded", Some(Arc::clone(served))),
            };
            ModelStatus { name: slot.entry.name.clone(), state, served }
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

    /// Waits until those that were loaded on demand have ended.
    pub fn join(&self) {
        let places: Vec<Place> =
            self.slots().iter_mut().map(|slot| std::mem::replace(&mut slot.place, Place::Away)).collect();
        for place in places {
            if let Place::Here { worker: Some(worker), .. } = place {
                // A scheduler that failed has told its clients so.
                let _ = worker.join();
            }
        }
    }
}

impl Slot {
    /// Loaded, and nobody waits for it or is about to.
    fn is_idle(&self) -> bool {
        match &self.place {
            Place::Here { served, .. } => {
                let counters = served.handle.counters();
                Arc::strong_count(served) == 1 && counters.running + counters.waiting == 0
            }
            Place::Away | Place::Coming => false,
        }
    }

    fn used(&self) -> Option<Instant> {
        match &self.place {
            Place::Here { used, .. } => Some(*used),
            Place::Away | Place::Coming => None,
        }
    }
}

fn unknown(name: &str, slots: &[Slot]) -> ApiError {
    let names: Vec<String> = slots.iter().map(|slot| format!("{:?}", slot.entry.name)).collect();
    let (list, verb) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
    let message = format!("the model {name:?} is not served here; {list} {verb}");
    ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
}
