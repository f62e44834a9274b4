//! Tries what is handed out in places that have nothing else in them.
//!
//! Each thing answers a prompt with a tiny model: the archive below a root folder that holds an older glibc and nothing more, the static
//! command below an empty one, the wheel in a fresh environment, npm's packages in a fresh folder, the container with a read-only root.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{broken, copy, empty};
use super::{FOLDER, make, stem, version_of};
use crate::needs::{self, Package};
use crate::package;
use crate::process::call;
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

/// The platforms whose archives are tried: this machine's processor with an old glibc, and without any.
const TRIED: [&str; 2] = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"];
/// A Debian release with an older glibc (2.31) than the one this is likely to run on.
const OLD_DEBIAN: &str = "bullseye";
/// What of glibc the command links with.
const GLIBC: &str = "libc6";
/// A model of 100 kB that answers nonsense.
const MODEL: &str = "crates/kvant-model/tests/fixtures/llama";
const CONTAINERS: &[Package] = &[Package { name: "buildah", brings: "buildah" }];

/// What tries one thing, by the version in its name.
type Try = fn(&str) -> Result<(), Trouble>;

/// Makes the archives for Linux and tries everything.
pub fn check() -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Trouble::not_run("the archives that are tried are for Linux on x86-64"));
    }
    if call("id", ["-u"]).probe().is_none_or(|id| id.trim() != "0") {
        return Err(Trouble::not_run("only root may change the root folder of a program"));
    }
    make(&TRIED.map(str::to_string))?;
    let version = version_of(&package::workspace()?, "kvant-capi")?;
    let tries: [(&str, Try); 5] = [
        ("the archive, over glibc 2.31", old_glibc),
        ("the static command, over nothing", nothing_else),
        ("the wheel", wheel),
        ("npm's packages", npm),
        ("the container", container),
    ];
    let mut tally = Tally { reports: 1, ..Tally::default() };
    for (what, run) in tries {
        run(&version).inspect_err(|_| println!("{what}: failed"))?;
        println!("{what}: answers");
        tally.passed += 1;
    }
    Ok(tally)
}

/// What a command is asked: some tokens of the tiny model, the same ones every time.
const QUESTION: [&str; 9] = ["run", "--model", "/model", "--greedy", "-n", "4", "--device", "cpu", "a"];

/// Below a folder with the archive, the model, and glibc as an older Debian has it.
fn old_glibc(version: &str) -> Result<(), Trouble> {
    let root = place("old-glibc", TRIED[0], version)?;
    let packages = root.join("packages");
    fs::create_dir_all(packages.join("lists/partial")).map_err(broken("make a folder"))?;
    let site = call("apt-get", ["indextargets", "--format", "$(SITE)", "Created-By: Packages"]).probe();
    let site = site.as_deref().and_then(|sites| sites.lines().find(|site| site.ends_with("debian")));
    let site = site.ok_or_else(|| Trouble::not_run("apt-get names no mirror of Debian"))?;
    let list = packages.join("sources.list").display().to_string();
    fs::write(&list, format!("deb [trusted=yes] {site} {OLD_DEBIAN} main\n"))
        .map_err(broken("write a list"))?;
    let here = packages.display();
    let apart = [
        "-o".to_string(),
        format!("Dir::Etc::sourcelist={list}"),
        "-o".into(),
        "Dir::Etc::sourceparts=-".into(),
        "-o".into(),
        format!("Dir::State::lists={here}/lists"),
    ];
    call("apt-get", &apart).args(["update", "--quiet"]).run()?;
    let script = format!(
        "cd {here} && apt-get {} download {GLIBC} && dpkg-deb --extract {GLIBC}_*.deb ..",
        apart.join(" ")
    );
    call("sh", ["-c", &script]).run()?;
    below(&root, "/kvant/bin/kvant")
}

fn nothing_else(version: &str) -> Result<(), Trouble> {
    below(&place("nothing", TRIED[1], version)?, "/kvant/bin/kvant")
}

/// A root folder with an archive as it is unpacked, and the model.
fn place(name: &str, triple: &str, version: &str) -> Result<PathBuf, Trouble> {
    let root = Path::new(FOLDER).join("clean").join(name);
    empty(&root)?;
    let stem = stem(version, triple);
    let (from, to) = (format!("{FOLDER}/{stem}.tar.gz"), root.display().to_string());
    call("tar", ["-xzf", &from, "-C", &to]).run()?;
    fs::rename(root.join(&stem), root.join("kvant")).map_err(broken("move what was unpacked"))?;
    model(&root.join("model"))?;
    Ok(root)
}

fn model(to: &Path) -> Result<(), Trouble> {
    for file in super::files::files(Path::new(MODEL))? {
        copy(&file, &to.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// Runs the command with `root` as the root folder.
fn below(root: &Path, command: &str) -> Result<(), Trouble> {
    let root = root.display().to_string();
    call("chroot", [&root, command]).args(QUESTION).run().map(drop)
}

/// A fresh environment with the wheel: the command and the module.
fn wheel(version: &str) -> Result<(), Trouble> {
    let folder = Path::new(FOLDER).join("clean/wheel");
    empty(&folder)?;
    let place = folder.display().to_string();
    call("python3", ["-m", "venv", &place]).run()?;
    let wheel = format!("{FOLDER}/kvant-{version}-cp311-abi3-manylinux_2_17_x86_64.whl");
    call(&format!("{place}/bin/pip"), ["install", "--quiet", "--disable-pip-version-check", &wheel]).run()?;
    model(&folder.join("model"))?;
    let model = folder.join("model").display().to_string();
    let question = QUESTION.map(|word| if word == "/model" { model.as_str() } else { word });
    call(&format!("{place}/bin/kvant"), question).run()?;
    let generate =
        "import sys, kvant; print(kvant.Engine.open(sys.argv[1]).generate('a', max_tokens=4, seed=1).text)";
    call(&format!("{place}/bin/python"), ["-c", generate, &model]).run().map(drop)
}

/// A fresh folder with npm's packages, by the name that people type.
fn npm(version: &str) -> Result<(), Trouble> {
    if call("npm", ["--version"]).probe().is_none() {
        return Err(Trouble::not_run("there is no npm here"));
    }
    let folder = Path::new(FOLDER).join("clean/npm");
    empty(&folder)?;
    let packed = |name: &str| -> Result<String, Trouble> {
        let path = Path::new(FOLDER).join("npm").join(format!("{name}-{version}.tgz"));
        Ok(path.canonicalize().map_err(broken("find a package"))?.display().to_string())
    };
    let place = folder.display().to_string();
    let install = ["install", "--silent", "--omit=optional", "--prefix", &place];
    call("npm", install).args([packed("kvant-linux-x64")?, packed("kvant")?]).run()?;
    model(&folder.join("model"))?;
    let model = folder.join("model").display().to_string();
    let question = QUESTION.map(|word| if word == "/model" { model.as_str() } else { word });
    call("npx", ["--no-install", "--prefix", &place, "kvant"]).args(question).run().map(drop)
}

/// An image made of the recipe, as its ordinary user and with a root folder that nobody may write to.
fn container(version: &str) -> Result<(), Trouble> {
    needs::packages(CONTAINERS)?;
    let image = format!("kvant:{version}");
    let driver = ["--storage-driver", "vfs"];
    let build =
        ["build", "--isolation", "chroot", "--file", "packaging/Containerfile", "--tag", &image, FOLDER];
    call("buildah", driver).args(build).run()?;
    let name = call("buildah", driver).args(["from", &image]).probe();
    let name = name.ok_or_else(|| Trouble::failed("no container can be made of the image"))?;
    let (name, source) = (name.trim(), Path::new(MODEL).canonicalize().map_err(broken("find the model"))?);
    let mount = format!("{}:/model:ro", source.display());
    let run = ["run", "--isolation", "chroot", "--volume", &mount, name, "--", "/kvant"];
    let ran = call("buildah", driver).args(run).args(QUESTION).run();
    call("buildah", driver).args(["rm", name]).run()?;
    ran.map(drop)
}
