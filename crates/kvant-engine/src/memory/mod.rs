//! How much memory there is, on Linux, macOS and Windows.
//!
//! Each system has a file: what it tells, read as plain numbers, and from these numbers a [`Memory`]. The second part knows no
//! system and is tested everywhere, on numbers that real machines gave.

#[cfg(any(target_os = "linux", target_os = "android", test))]
mod linux;
#[cfg(any(target_os = "macos", test))]
mod macos;
#[cfg(any(windows, test))]
mod windows;

/// Memory of this machine as this process may use it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What can be taken without pushing others out.
    pub available: u64,
    /// The limit a container or service sets, where it is below the total.
    pub limit: Option<u64>,
}

impl Memory {
    /// Asks the system; `None` where it does not say.
    pub fn read() -> Option<Self> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return linux::read();
        #[cfg(target_os = "macos")]
        return macos::read();
        #[cfg(windows)]
        return windows::read();
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", windows)))]
        return None;
    }

    /// The most bytes of memory that this process has held so far, pages of mapped files included; `None` where the system does not
    /// say.
    pub fn peak() -> Option<u64> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return linux::peak();
        #[cfg(target_os = "macos")]
        return macos::peak();
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
        return None;
    }
}

/// A size for people: `3.2 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut size = count as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_os = "linux", target_os = "macos", windows))]
    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::read().unwrap();
        assert!(memory.available > 0 && memory.available <= memory.total, "{memory:?}");
        assert!(memory.limit.is_none_or(|limit| limit < memory.total), "{memory:?}");
    }

    #[cfg(any(target_os = "linux", target_os = "macos"))]
    #[test]
    fn the_peak_grows_with_what_is_held() {
        let before = Memory::peak().unwrap();
        let held = vec![1u8; 256 << 20];
        assert!(held.iter().step_by(4096).all(|byte| *byte == 1));
        let peak = Memory::peak().unwrap();
        assert!(peak >= before.max(256 << 20), "{before} {peak}");
    }

    #[test]
    fn sizes_read_well() {
        let shown = [0, 1023, 1024, 98_362_432, (1 << 40) - 1].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "93.8 MiB", "1.0 TiB"]);
    }
}
