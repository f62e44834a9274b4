//! Where downloaded models live.

use crate::error::{HubError, Result};
use std::ffi::OsString;
use std::path::PathBuf;

/// The cache folder: `KVANT_CACHE`, or `kvant` in the cache folder of the system and user.
pub fn cache_folder() -> Result<PathBuf> {
    choose(|name| std::env::var_os(name)).ok_or_else(|| {
        HubError::missing("no cache folder is known: set KVANT_CACHE to a folder for downloaded models")
    })
}

/// Decides from environment variables alone. Relative values of the system variables are ignored, as the XDG
/// specification asks; a relative `KVANT_CACHE` is the user's own choice and is kept.
fn choose(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    if let Some(chosen) = set("KVANT_CACHE") {
        return Some(chosen);
    }
    let base = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join("Library/Caches")))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
    };
    base.map(|base| base.join("kvant"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        choose(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn the_first_variable_that_says_something_wins() {
        let all = [("KVANT_CACHE", "/k"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(with(&all), Some("/k".into()));
        assert_eq!(with(&all[1..]), Some("/x/kvant".into()));
        let home = if cfg!(target_os = "macos") { "/h/Library/Caches/kvant" } else { "/h/.cache/kvant" };
        assert_eq!(with(&all[2..]), Some(home.into()));
        assert_eq!(with(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]), Some(home.into()));
        assert_eq!(with(&[("KVANT_CACHE", ""), ("XDG_CACHE_HOME", "/x")]), Some("/x/kvant".into()));
        assert_eq!(with(&[]), None);
    }
}
