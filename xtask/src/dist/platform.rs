//! What is handed out, and for which systems.

use crate::needs;
use crate::step::Trouble;

/// The oldest C library of Linux that Rust's own standard library runs on.
const OLDEST_GLIBC: &str = "2.17";

/// A system that something is made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    pub triple: String,
    /// How far it reaches.
    pub kind: Kind,
}

/// What a platform gets, and who builds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Linux with any glibc from [`OLDEST_GLIBC`] on: everything. GPU drivers are loaded at run time. Built by zig, which links
    /// against the symbols of an old glibc.
    Glibc,
    /// Linux without any library: the command for CPUs alone, since a static program loads no driver.
    Static,
    /// The system that runs this: everything, by its own compiler and linker.
    Own,
}

/// What zig builds, wherever it runs.
const BY_ZIG: [(&str, Kind); 4] = [
    ("x86_64-unknown-linux-gnu", Kind::Glibc),
    ("aarch64-unknown-linux-gnu", Kind::Glibc),
    ("x86_64-unknown-linux-musl", Kind::Static),
    ("aarch64-unknown-linux-musl", Kind::Static),
];

impl Platform {
    /// The platforms of these triples; this machine's where there are none.
    pub fn named(triples: &[String]) -> Result<Vec<Platform>, Trouble> {
        let own = needs::host_triple()?;
        let names = if triples.is_empty() { std::slice::from_ref(&own) } else { triples };
        names.iter().map(|triple| Platform::of(triple, &own)).collect()
    }

    fn of(triple: &str, own: &str) -> Result<Platform, Trouble> {
        let known = BY_ZIG.iter().find(|(known, _)| *known == triple).map(|&(_, kind)| kind);
        match known {
            Some(kind) => Ok(Platform { triple: triple.to_string(), kind }),
            None if triple == own => Ok(Platform { triple: triple.to_string(), kind: Kind::Own }),
            None => {
                let known: Vec<&str> = BY_ZIG.iter().map(|(known, _)| *known).collect();
                Err(Trouble::failed(format!(
                    "nothing is made for {triple} on this machine: it makes {}, and what is for itself ({own})",
                    known.join(", ")
                )))
            }
        }
    }

    /// What cargo-zigbuild is told: the triple, with the oldest glibc behind it.
    pub fn zig_target(&self) -> String {
        match self.kind {
            Kind::Glibc => format!("{}.{OLDEST_GLIBC}", self.triple),
            Kind::Static | Kind::Own => self.triple.clone(),
        }
    }

    /// The processor, as Rust calls it.
    pub fn processor(&self) -> &str {
        self.triple.split('-').next().unwrap_or(&self.triple)
    }

    /// Whether its programs run here as they are.
    pub fn runs_here(&self) -> bool {
        self.kind == Kind::Own || (cfg!(target_os = "linux") && self.processor() == std::env::consts::ARCH)
    }

    /// What wheels say of the systems that they are for; `None` where Python knows better.
    pub fn wheel_tag(&self) -> Option<String> {
        let glibc = || OLDEST_GLIBC.replace('.', "_");
        (self.kind == Kind::Glibc).then(|| format!("manylinux_{}_{}", glibc(), self.processor()))
    }

    /// The system and the processor as npm calls them, where npm's users have this platform.
    pub fn npm(&self) -> Option<(&'static str, &'static str)> {
        let processor = match self.processor() {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            _ => return None,
        };
        match self.kind {
            Kind::Glibc => Some(("linux", processor)),
            Kind::Static => None,
            Kind::Own if self.triple.contains("apple") => Some(("darwin", processor)),
            Kind::Own if self.triple.contains("windows") => Some(("win32", processor)),
            Kind::Own => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(triple: &str) -> Platform {
        Platform::of(triple, "x86_64-apple-darwin").unwrap_or_else(|trouble| panic!("{trouble:?}"))
    }

    #[test]
    fn a_platform_says_how_old_a_system_may_be() {
        let gnu = platform("aarch64-unknown-linux-gnu");
        assert_eq!(gnu.zig_target(), "aarch64-unknown-linux-gnu.2.17");
        assert_eq!(gnu.wheel_tag().as_deref(), Some("manylinux_2_17_aarch64"));
        assert_eq!(gnu.npm(), Some(("linux", "arm64")));
    }

    #[test]
    fn a_static_program_is_the_command_alone() {
        let musl = platform("x86_64-unknown-linux-musl");
        assert_eq!((musl.kind, musl.wheel_tag(), musl.npm()), (Kind::Static, None, None));
        assert_eq!(musl.zig_target(), musl.triple);
    }

    #[test]
    fn others_are_made_by_their_own_system_alone() {
        assert_eq!(platform("x86_64-apple-darwin").npm(), Some(("darwin", "x64")));
        assert!(Platform::of("x86_64-pc-windows-msvc", "x86_64-apple-darwin").is_err());
    }
}
