//! Which is faster, the processor or a device: measured once for a model and a device, and kept in a file.

use crate::engine::Engine;
use crate::session::GenerateError;
use kvant_cache::Policy;
use kvant_device::Kept;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens that are read, and then as many passes of one token.
const PROMPT: usize = 64;
const ANSWER: usize = 8;

/// How long a device works before it is timed: cards that were idle run at a fraction of their clock for a while.
pub(crate) const WARM_UP: Duration = Duration::from_millis(400);

/// Milliseconds of a short prompt with a short answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// On the device.
    pub device_ms: f64,
    /// On the processor.
    pub cpu_ms: f64,
}

impl Measured {
    /// Whether the device is worth it.
    pub fn is_faster(&self) -> bool {
        self.device_ms < self.cpu_ms
    }
}

/// The file that measurements are kept in.
pub struct Measurements {
    path: PathBuf,
}

impl Measurements {
    /// Of a cache folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("devices.json") }
    }

    /// What a model and a device are kept under. Another version measures again.
    pub fn key(model: &[u8; 32], device: &str) -> String {
        let model: String = model.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{model} {device} kvant {}", env!("CARGO_PKG_VERSION"))
    }

    /// What is known of a model and a device. A file that cannot be read knows nothing.
    pub fn get(&self, key: &str) -> Option<Measured> {
        let all = self.read();
        let entry = all.get(key)?;
        Some(Measured { device_ms: entry["device_ms"].as_f64()?, cpu_ms: entry["cpu_ms"].as_f64()? })
    }

    /// Keeps it; where that cannot be, it is measured again the next time.
    pub fn keep(&self, key: &str, measured: &Measured) {
        self.insert(key, json!({"device_ms": measured.device_ms, "cpu_ms": measured.cpu_ms}));
    }

    fn insert(&self, key: &str, found: Value) {
        let mut all = self.read();
        all.insert(key.to_owned(), found);
        let _ = self.write(&Value::Object(all));
    }

    /// What a device keeps of itself.
    pub fn choice(&self, key: &str) -> Option<String> {
        Some(self.read().get(key)?.as_str()?.to_owned())
    }

    fn read(&self) -> serde_json::Map<String, Value> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        match serde_json::from_str(&text) {
            Ok(Value::Object(all)) => all,
            _ => serde_json::Map::new(),
        }
    }

    /// In one step, so that another process sees the old file or the new.
    fn write(&self, all: &Value) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let part = self.path.with_extension(format!("{}.part", std::process::id()));
        fs::write(&part, format!("{all:#}\n"))?;
        fs::rename(&part, &self.path)
    }
}

impl Kept for Measurements {
    fn get(&self, key: &str) -> Option<String> {
        self.choice(key)
    }

    fn keep(&self, key: &str, found: &str) {
        self.insert(key, Value::from(found));
    }
}

/// Milliseconds of a short prompt with a short answer, the shorter of two after it was done for so long: the first time builds kernels and
/// touches weights.
pub(crate) fn time(engine: &Arc<Engine>, policy: &Policy, warm_up: Duration) -> Result<f64, GenerateError> {
    let limit = engine.model().position_limit().unwrap_or(usize::MAX).min(PROMPT + ANSWER);
    let prompt = limit.saturating_sub(ANSWER).max(1);
    let tokens: Vec<u32> = (0..limit).map(|n| (n % engine.model().vocabulary()) as u32).collect();
    let once = || -> Result<f64, GenerateError> {
        let Ok(mut session) = engine.session(policy, limit) else { return Ok(f64::INFINITY) };
        let start = Instant::now();
        session.prefill(&tokens[..prompt])?;
        for &token in &tokens[prompt..] {
            session.step(token)?;
        }
        Ok(1e3 * start.elapsed().as_secs_f64())
    };
    let begin = Instant::now();
    while begin.elapsed() < warm_up && once()?.is_finite() {}
    Ok(once()?.min(once()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Measurements::in_folder(&folder.path().join("cache"));
        let (one, two) = (Measurements::key(&[1; 32], "gpu (a)"), Measurements::key(&[1; 32], "gpu (b)"));
        assert_ne!(one, two);
        assert_eq!(kept.get(&one), None);
        let faster = Measured { device_ms: 1.5, cpu_ms: 3.0 };
        kept.keep(&one, &faster);
        kept.keep(&two, &Measured { device_ms: 3.0, cpu_ms: 1.0 });
        assert_eq!(kept.get(&one), Some(faster));
        assert!(faster.is_faster() && !kept.get(&two).unwrap().is_faster());
        Kept::keep(&kept, "kernels of a", "dots");
        assert_eq!((kept.choice("kernels of a").as_deref(), kept.choice(&one)), (Some("dots"), None));
        assert_eq!(kept.get(&one), Some(faster));
        fs::write(folder.path().join("cache/devices.json"), "[1").unwrap();
        assert_eq!(kept.get(&one), None);
    }
}
