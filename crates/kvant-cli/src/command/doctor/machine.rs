//! Facts about this machine that the standard library does not give by name.

/// Names of the instruction-set extensions that kernels could use, those this processor has.
#[cfg(target_arch = "x86_64")]
pub fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => { [$(($name, is_x86_feature_detected!($name))),*] };
    }
    let all = present!(
        "sse4.1",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avxvnni",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512vnni",
        "avx512vbmi",
        "avx512bf16",
        "avx512fp16"
    );
    all.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Names of the instruction-set extensions that kernels could use, those this processor has.
#[cfg(target_arch = "aarch64")]
pub fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => { [$(($name, std::arch::is_aarch64_feature_detected!($name))),*] };
    }
    let all = present!("neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2");
    all.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Names of the instruction-set extensions that kernels could use: none on other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn features() -> Vec<&'static str> {
    Vec::new()
}

/// Processors of the machine, whether or not we may use them.
pub fn processors_online() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(text.lines().filter(|line| line.starts_with("processor")).count()).filter(|&count| count > 0)
}

/// How many programs wanted to run over the last minute.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Threads in use by default, for people.
pub fn threads_line(threads: usize) -> String {
    match threads {
        1 => "1 (the machine has one)".to_owned(),
        n => format!("{n}, unless --threads says otherwise"),
    }
}
