//! The adapters of `--lora`.

use super::OpenOptions;
use kvant_model::{Adapter, AdapterMix, AppliedAdapter, Checkpoint, Description, LoadError};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// An adapter's file or folder, and the multiplier of what it adds: `FILE`, or `FILE:SCALE`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFile {
    /// A GGUF file, or a PEFT folder.
    pub path: PathBuf,
    /// 1 for the adapter as it was trained.
    pub scale: f32,
}

impl LoraFile {
    /// Adapters one after another, with commas between them.
    ///
    /// # Errors
    /// Says which of them is mistyped.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').map(str::parse).collect()
    }
}

impl FromStr for LoraFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A colon may also be part of a path.
        let scaled = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((text, 1.0));
        match scale.is_finite() && !path.is_empty() {
            true => Ok(Self { path: path.into(), scale }),
            false => Err(format!("`{text}` is not the FILE of an adapter, or FILE:SCALE")),
        }
    }
}

impl OpenOptions {
    /// The adapters that were asked for, opened for this model.
    pub(super) fn adapters(
        &self,
        checkpoint: &Checkpoint,
        description: &Description,
    ) -> Result<AdapterMix, LoadError> {
        let open = |LoraFile { path, scale }: &LoraFile| {
            let adapter = Arc::new(Adapter::open(path, checkpoint, description)?);
            Ok(AppliedAdapter { adapter, scale: *scale })
        };
        self.lora.iter().map(open).collect::<Result<Vec<_>, LoadError>>().map(AdapterMix::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_follows_the_last_colon_where_it_is_a_number() {
        let file = |path: &str, scale| LoraFile { path: path.into(), scale };
        assert_eq!(LoraFile::list("a.gguf"), Ok(vec![file("a.gguf", 1.0)]));
        let both = vec![file("a.gguf", 0.5), file("C:\\b", 1.0)];
        assert_eq!(LoraFile::list("a.gguf:0.5,C:\\b"), Ok(both));
        for bad in ["", "a,", ":1", "a:nan", "a:inf"] {
            assert!(LoraFile::list(bad).unwrap_err().contains("FILE:SCALE"), "{bad}");
        }
    }
}
