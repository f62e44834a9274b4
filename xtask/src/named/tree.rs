//! Hashes of folders: what git tracks or would track in them, as it lies on the disk.

use std::collections::BTreeMap;
use std::path::Path;

use crate::process::call;

/// Digits of a hash that are kept: enough to tell trees of one repository apart.
const DIGITS: usize = 16;

/// A hash of every folder: over the names and contents of its files.
pub fn hashes(root: &Path, folders: &[String]) -> Result<BTreeMap<String, String>, String> {
    folders.iter().map(|folder| Ok((folder.clone(), hash(root, folder)?))).collect()
}

fn hash(root: &Path, folder: &str) -> Result<String, String> {
    let git = |args: &[&str]| {
        let root = root.display().to_string();
        // The checkout of a CI machine may belong to another user, which git refuses unless told.
        call("git", ["-C", &root, "-c", "safe.directory=*"]).args(args)
    };
    let silent = || format!("git does not tell what is in {folder}");
    let list = git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder]);
    let list = list.probe().ok_or_else(silent)?;
    // A file that is deleted and not yet committed as such is still in the list.
    let mut files: Vec<&str> =
        list.split('\0').filter(|path| !path.is_empty() && root.join(path).is_file()).collect();
    files.sort_unstable();
    files.dedup();
    let contents = git(&["hash-object", "--no-filters", "--stdin-paths"]);
    let contents = contents.probe_with(&lines(files.iter().copied())).ok_or_else(silent)?;
    let named = contents.lines().zip(&files).map(|(hash, file)| format!("{hash} {file}"));
    let whole = git(&["hash-object", "--stdin"]).probe_with(&lines(named)).ok_or_else(silent)?;
    Ok(whole.trim().chars().take(DIGITS).collect())
}

fn lines<S: AsRef<str>>(items: impl Iterator<Item = S>) -> String {
    items.map(|item| format!("{}\n", item.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A repository that goes away.
    struct Repository(PathBuf);

    impl Repository {
        fn new(name: &str) -> Repository {
            let root = std::env::temp_dir().join(format!("kvant-xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("a")).unwrap();
            fs::create_dir_all(root.join("b")).unwrap();
            let repository = Repository(root);
            repository.put("a/one", "1");
            repository.put("b/two", "2");
            let path = repository.0.display().to_string();
            call("git", ["-C", &path, "init", "-q"]).probe().expect("git makes a repository");
            repository
        }

        fn put(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).unwrap();
        }

        fn hashes(&self) -> BTreeMap<String, String> {
            hashes(&self.0, &["a".to_string(), "b".to_string()]).unwrap()
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_hash_follows_names_and_contents_of_its_own_folder() {
        let repository = Repository::new("tree");
        let first = repository.hashes();
        assert_eq!(first["a"].len(), DIGITS);
        assert_eq!(repository.hashes(), first);

        repository.put("a/one", "other");
        let changed = repository.hashes();
        assert_ne!(changed["a"], first["a"]);
        assert_eq!(changed["b"], first["b"]);

        repository.put("a/one", "1");
        assert_eq!(repository.hashes(), first);
        fs::rename(repository.0.join("a/one"), repository.0.join("a/uno")).unwrap();
        assert_ne!(repository.hashes()["a"], first["a"]);
        fs::remove_file(repository.0.join("a/uno")).unwrap();
        assert_ne!(repository.hashes()["a"], first["a"]);
    }

    #[test]
    fn what_git_ignores_and_what_is_committed_make_no_difference() {
        let repository = Repository::new("ignored");
        let first = repository.hashes();
        repository.put(".gitignore", "*.log\n");
        repository.put("a/run.log", "noise");
        assert_eq!(repository.hashes(), first);
        let path = repository.0.display().to_string();
        call("git", ["-C", &path, "add", "a", "b"]).probe().expect("git adds");
        assert_eq!(repository.hashes(), first);
        repository.put("b/new", "untracked, and would be tracked");
        assert_ne!(repository.hashes()["b"], first["b"]);
    }

    #[test]
    fn outside_a_repository_there_is_no_hash() {
        let folder = std::env::temp_dir().join(format!("kvant-xtask-nowhere-{}", std::process::id()));
        let error = hashes(&folder, &["a".to_string()]).unwrap_err();
        assert!(error.contains("git"), "{error}");
    }
}
