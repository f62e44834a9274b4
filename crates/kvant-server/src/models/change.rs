//! Models that come to a server, and leave it.

use super::{Models, Place, PullProgress, Slot};
use crate::models::ModelLoader;
use std::sync::Arc;

impl Models {
    fn changeable(&self) -> Result<&Arc<dyn ModelLoader>, String> {
        self.loader.as_ref().ok_or_else(|| "this server cannot change its model".to_owned())
    }

    /// Fetches a model, which is served from then on. Takes a while.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn pull(&self, name: &str, report: &mut dyn FnMut(PullProgress<'_>)) -> Result<(), String> {
        self.changeable()?.pull(name, report)?;
        self.refresh()
    }

    /// Unloads a model and removes its files.
    ///
    /// # Errors
    /// If it is at work, or not one that was fetched.
    pub async fn remove(&self, name: &str) -> Result<(), String> {
        let loader = Arc::clone(self.changeable()?);
        self.unload(name).await?;
        let wanted = name.to_owned();
        let removed = tokio::task::spawn_blocking(move || loader.remove(&wanted)).await;
        removed.map_err(|_| format!("{name} could not be removed"))??;
        self.refresh()
    }

    /// Gives a model one more name.
    ///
    /// # Errors
    /// If there is a model of that name.
    pub fn copy(&self, name: &str, other: &str) -> Result<(), String> {
        self.changeable()?.copy(name, other)?;
        self.refresh()
    }

    /// Takes in the models that the loader has now. What is loaded, or on its way, stays until it is unloaded.
    fn refresh(&self) -> Result<(), String> {
        let loader = self.changeable()?;
        let names = loader.names();
        let known: Vec<String> = self.slots().iter().map(|slot| slot.name.clone()).collect();
        let new: Vec<Slot> = names
            .iter()
            .filter(|name| !known.contains(name))
            .map(|name| Slot::away(loader.as_ref(), name.clone()))
            .collect();
        let mut slots = self.slots();
        slots.retain(|slot| names.contains(&slot.name) || !matches!(slot.place, Place::Away));
        for slot in new {
            // Somebody else may have taken it in meanwhile.
            if !slots.iter().any(|other| other.name == slot.name) {
                slots.push(slot);
            }
        }
        Ok(())
    }
}
