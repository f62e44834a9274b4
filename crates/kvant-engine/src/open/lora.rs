//! The adapters of `--lora`.

use super::OpenOptions;
use crate::engine::OpenedAdapter;
use kvant_model::{Adapter, AppliedAdapter, Checkpoint, Description, LoadError};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// An adapter's file or folder, and the multiplier of what it adds: `FILE`, `FILE:SCALE`, or `NAME=FILE:SCALE`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFile {
    /// What requests call it; where there is none, its file's name. A server applies one with a name to requests that ask for it alone.
    pub name: Option<String>,
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

    /// Lets it wait for requests that name it: it is called by its file's name where it has none of its own.
    pub fn wait(&mut self) {
        if self.name.is_none() {
            self.name = self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        }
    }
}

impl FromStr for LoraFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An equals sign may also be part of a path, such as `./r=16.gguf`.
        let named = text.split_once('=').filter(|(name, _)| name.chars().all(is_of_a_name));
        let (name, file) = named.map_or((None, text), |(name, file)| (Some(name), file));
        // And so may a colon.
        let scaled = file.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((file, 1.0));
        match scale.is_finite() && !path.is_empty() && name != Some("") {
            true => Ok(Self { name: name.map(str::to_owned), path: path.into(), scale }),
            false => Err(format!("`{text}` is not the FILE of an adapter, FILE:SCALE, or NAME=FILE:SCALE")),
        }
    }
}

/// Letters that a name may have: none that paths, scales and the tags of models are told by.
fn is_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || "-_.".contains(letter)
}

impl OpenOptions {
    /// The adapters that were asked for, opened for this model.
    pub(super) fn adapters(
        &self,
        checkpoint: &Checkpoint,
        description: &Description,
    ) -> Result<Vec<OpenedAdapter>, LoadError> {
        let open = |LoraFile { name, path, scale }: &LoraFile| {
            let adapter = Adapter::open(path, checkpoint, description)?;
            let on_request = name.is_some();
            let adapter = Arc::new(match name {
                Some(name) => adapter.called(name),
                None => adapter,
            });
            Ok(OpenedAdapter { applied: AppliedAdapter { adapter, scale: *scale }, on_request })
        };
        self.lora.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_follows_the_last_colon_where_it_is_a_number() {
        let file = |path: &str, scale| LoraFile { name: None, path: path.into(), scale };
        assert_eq!(LoraFile::list("a.gguf"), Ok(vec![file("a.gguf", 1.0)]));
        let both = vec![file("a.gguf", 0.5), file("C:\\b", 1.0)];
        assert_eq!(LoraFile::list("a.gguf:0.5,C:\\b"), Ok(both));
        for bad in ["", "a,", ":1", "a:nan", "a:inf", "=a", "n=", "n=:1"] {
            assert!(LoraFile::list(bad).unwrap_err().contains("FILE:SCALE"), "{bad}");
        }
    }

    #[test]
    fn a_name_is_before_the_first_equals_sign_unless_that_is_in_a_path() {
        let file = |name: Option<&str>, path: &str, scale| LoraFile {
            name: name.map(str::to_owned),
            path: path.into(),
            scale,
        };
        let read = |text: &str| text.parse::<LoraFile>().unwrap();
        assert_eq!(read("sql=a.gguf"), file(Some("sql"), "a.gguf", 1.0));
        assert_eq!(read("sql.v2=dir/r=16:0.5"), file(Some("sql.v2"), "dir/r=16", 0.5));
        assert_eq!(read("./r=16.gguf"), file(None, "./r=16.gguf", 1.0));
    }
}
