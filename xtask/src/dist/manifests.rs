//! What package managers read: a formula for Homebrew, a manifest for winget.
//!
//! Both name archives by address and checksum. The address begins with [`URL`]; without it they say where it belongs.

use std::path::{Path, PathBuf};

use super::files::{self, checksums};
use super::platform::{Kind, Platform};
use super::{FOLDER, stem};
use crate::step::Trouble;

/// Where the archives will lie, in the environment.
const URL: &str = "KVANT_DIST_URL";
const NO_URL: &str = "FOLDER-OF-THE-ARCHIVES";

const WINGET: &str = "packaging/winget/kvant.yaml";

/// Writes those that the archives of this run have a place in.
pub fn write(archives: &[(Platform, PathBuf)], version: &str) -> Result<(), Trouble> {
    let folder = std::env::var(URL).unwrap_or_else(|_| NO_URL.to_string());
    if folder == NO_URL {
        println!("{URL} is not set: manifests say {NO_URL} where the address of the archives belongs");
    }
    let mut parts = Vec::new();
    for (platform, archive) in archives {
        let sums = checksums(Path::new(FOLDER), std::slice::from_ref(archive))?;
        let sha256 = sums.split_whitespace().next().unwrap_or_default().to_string();
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        parts.push(Part { platform, url: format!("{folder}/{name}"), sha256 });
    }
    if let Some(formula) = formula(version, &parts) {
        files::write(&Path::new(FOLDER).join("kvant.rb"), &formula)?;
    }
    if let Some(part) = parts.iter().find(|part| part.platform.triple == "x86_64-pc-windows-msvc") {
        let filled = filled(&files::read(WINGET)?, version, part);
        files::write(&Path::new(FOLDER).join("kvant.yaml"), &filled)?;
    }
    Ok(())
}

/// An archive as a manifest names it.
struct Part<'a> {
    platform: &'a Platform,
    url: String,
    sha256: String,
}

/// The formula, where there is an archive for one of Homebrew's systems.
fn formula(version: &str, parts: &[Part]) -> Option<String> {
    let block = |part: &&Part| {
        let system = if part.platform.triple.contains("apple") { "macos" } else { "linux" };
        let processor = if part.platform.processor() == "aarch64" { "arm" } else { "intel" };
        format!(
            "\n  on_{system} do\n    on_{processor} do\n      url \"{}\"\n      sha256 \"{}\"\n    end\n  end\n",
            part.url, part.sha256
        )
    };
    let is_for_brew =
        |part: &&Part| part.platform.kind != Kind::Static && !part.platform.triple.contains("windows");
    let blocks: String = parts.iter().filter(is_for_brew).map(|part| block(&part)).collect();
    let text = format!(
        "class Kvant < Formula\n  \
           desc \"Local LLM engine whose 4-bit KV cache is faster than fp16\"\n  \
           license \"Apache-2.0\"\n  \
           version \"{version}\"\n{blocks}\n  \
           def install\n    \
             prefix.install Dir[\"*\"]\n  \
           end\n\n  \
           test do\n    \
             assert_match version.to_s, shell_output(\"#{{bin}}/kvant --version\")\n  \
           end\n\
         end\n"
    );
    (!blocks.is_empty()).then_some(text)
}

fn filled(template: &str, version: &str, part: &Part) -> String {
    let values = [
        ("{version}", version.to_string()),
        ("{stem}", stem(version, &part.platform.triple)),
        ("{url}", part.url.clone()),
        ("{sha256}", part.sha256.to_uppercase()),
    ];
    values.iter().fold(template.to_string(), |text, (place, value)| text.replace(place, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(platform: &Platform) -> Part<'_> {
        Part { platform, url: format!("u/{}", platform.triple), sha256: "ab".into() }
    }

    #[test]
    fn homebrew_gets_the_archives_that_are_for_it() {
        let platform = |triple: &str, kind| Platform { triple: triple.into(), kind };
        let glibc = platform("aarch64-unknown-linux-gnu", Kind::Glibc);
        let musl = platform("x86_64-unknown-linux-musl", Kind::Static);
        let text = formula("1.2.3", &[part(&glibc), part(&musl)]).unwrap();
        assert!(
            text.contains("on_linux do\n    on_arm do\n      url \"u/aarch64-unknown-linux-gnu\""),
            "{text}"
        );
        assert!(!text.contains("musl") && text.contains("version \"1.2.3\""), "{text}");
        assert_eq!(formula("1.2.3", &[part(&musl)]), None);
    }

    #[test]
    fn the_manifest_for_windows_has_no_place_left_open() {
        let windows = Platform { triple: "x86_64-pc-windows-msvc".into(), kind: Kind::Own };
        let template =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(WINGET)).unwrap();
        let text = filled(&template, "1.2.3", &part(&windows));
        assert!(!text.contains('{') && text.contains("InstallerSha256: AB"), "{text}");
    }
}
