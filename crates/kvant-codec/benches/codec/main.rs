//! The codec bench: `cargo bench -p kvant-codec -- [attend|floor|encode|rotate|stages] [--dim D] [--mib N] [--repeats N] [--only SPEC] [--tier T]`.
//!
//! Every row is compared, in the same run and interleaved, with a plain read of the same number of bytes from a buffer
//! as large; times are the best of N passes. Ratios travel between machines, nanoseconds do not.

mod attend;
mod encode;
mod floor;
mod rotate;
mod rows;
mod stages;
mod stream;

use std::time::{Duration, Instant};

/// What the command line asked for.
pub struct Options {
    /// Head dimensions.
    pub dims: Vec<usize>,
    /// Size of the page arena per codec.
    pub mib: usize,
    /// Passes; the best counts.
    pub repeats: usize,
    /// Only codecs whose spec contains this.
    pub only: String,
    /// Only this instruction set.
    pub tier: Option<kvant_codec::Tier>,
}

impl Options {
    /// The instruction sets to measure, slowest first.
    pub fn tiers(&self) -> impl Iterator<Item = kvant_codec::Tier> {
        kvant_codec::Tier::available().filter(|tier| self.tier.is_none_or(|only| only == *tier))
    }
}

fn main() {
    let mut options = Options { dims: vec![64, 128], mib: 1024, repeats: 7, only: String::new(), tier: None };
    let mut sections = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| usage(&format!("{argument} needs a value")));
        match argument.as_str() {
            "--dim" => options.dims = vec![number(&value())],
            "--mib" => options.mib = number(&value()),
            "--repeats" => options.repeats = number(&value()),
            "--only" => options.only = value(),
            "--tier" => options.tier = Some(value().parse().unwrap_or_else(|()| usage("no such tier"))),
            "attend" | "floor" | "encode" | "rotate" | "stages" => sections.push(argument),
            // What cargo passes to every bench.
            "--bench" => {}
            _ => usage(&format!("unknown argument {argument}")),
        }
    }
    let wanted = |name: &str| sections.is_empty() || sections.iter().any(|section| section == name);
    println!("{}\n", machine());
    if wanted("attend") {
        attend::run(&options);
    }
    if wanted("floor") {
        floor::run(&options);
    }
    if wanted("encode") {
        encode::run(&options);
    }
    if wanted("rotate") {
        rotate::run(&options);
    }
    if wanted("stages") {
        stages::run(&options);
    }
}

fn usage(problem: &str) -> ! {
    eprintln!(
        "{problem}\nusage: cargo bench -p kvant-codec -- [attend|floor|encode|rotate|stages] [--dim D] [--mib N] [--repeats N] [--only SPEC] [--tier T]"
    );
    std::process::exit(2);
}

fn number(text: &str) -> usize {
    text.parse().ok().filter(|n| *n > 0).unwrap_or_else(|| usage(&format!("{text} is no positive number")))
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or(std::env::consts::ARCH, |rest| rest.trim_start_matches([':', ' ', '\t']));
    let model = info.lines().find_map(|line| line.strip_prefix("model\t\t: ")).unwrap_or("?");
    let tiers: Vec<_> = kvant_codec::Tier::available().map(|tier| tier.name()).collect();
    format!("machine: {name} (model {model}), tiers {}, 1 thread", tiers.join(" "))
}

/// The time of one call.
pub fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
