//! Windows: `GlobalMemoryStatusEx`.

use super::Memory;

/// The system's `MEMORYSTATUSEX`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Status {
    /// Bytes of this structure, for the system to know which version it is.
    length: u32,
    load: u32,
    total_physical: u64,
    available_physical: u64,
    /// What may be committed in all, by the system or by this process, whichever is less.
    commit_limit: u64,
    /// What this process can still commit.
    available_commit: u64,
    total_virtual: u64,
    available_virtual: u64,
    available_extended_virtual: u64,
}

impl Status {
    /// Memory is committed when it is asked for, so what can be committed bounds what can be taken.
    fn memory(&self) -> Memory {
        Memory {
            total: self.total_physical,
            available: self.available_physical.min(self.available_commit),
            limit: Some(self.commit_limit).filter(|&limit| limit < self.total_physical),
        }
    }
}

#[cfg(windows)]
mod system {
    use super::{Memory, Status};

    // One function of a library that every program on Windows has: less than a dependency that declares all of them.
    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GlobalMemoryStatusEx(status: *mut Status) -> i32;
    }

    /// Asks the system.
    pub fn read() -> Option<Memory> {
        let mut status = Status { length: size_of::<Status>() as u32, ..Status::default() };
        // SAFETY: a structure of the size it says, which the call fills.
        let worked = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
        worked.then(|| status.memory())
    }
}

#[cfg(windows)]
pub use system::read;

#[cfg(test)]
mod tests {
    use super::*;

    /// In kilobytes, as Microsoft's example prints them.
    fn recorded(physical: [u64; 2], commit: [u64; 2]) -> Status {
        let [total_physical, available_physical] = physical.map(|kib| kib << 10);
        let [commit_limit, available_commit] = commit.map(|kib| kib << 10);
        Status { total_physical, available_physical, commit_limit, available_commit, ..Status::default() }
    }

    #[test]
    fn what_cannot_be_committed_is_not_available() {
        let memory = recorded([2_029_968, 987_388], [3_884_620, 2_799_776]).memory();
        let (total, available) = (2_029_968 << 10, 987_388 << 10);
        assert_eq!(memory, Memory { total, available, limit: None });
        // The same machine with a job object that allows one gigabyte, most of which is taken.
        let limited = recorded([2_029_968, 987_388], [1 << 20, 200_000]).memory();
        assert_eq!(limited, Memory { total, available: 200_000 << 10, limit: Some(1 << 30) });
    }

    #[test]
    fn the_structure_is_as_long_as_the_system_expects() {
        assert_eq!(size_of::<Status>(), 64);
    }
}
