//! macOS: `hw.memsize`, and how pages are used by `host_statistics64`, as `vm_stat` prints it.

/// Words of the kernel's `vm_statistics64`, up to and including `total_uncompressed_pages_in_compressor`. Newer systems have
/// more; the kernel writes as many as it is given room for.
const WORDS: usize = 38;
/// Where the counts of pages lie among these words.
const FREE: usize = 0;
const PURGEABLE: usize = 22;
const SPECULATIVE: usize = 23;
const FILE_BACKED: usize = 34;

/// What can be taken without compressing anything: pages that nobody uses, pages of files, which can be read again, and
/// those that their owners allow to be purged. `free_count` includes pages that were read ahead, which count as pages of files too.
fn available(words: &[u32; WORDS], page: u64) -> u64 {
    let unused = u64::from(words[FREE].saturating_sub(words[SPECULATIVE]));
    (unused + u64::from(words[FILE_BACKED]) + u64::from(words[PURGEABLE])) * page
}

#[cfg(target_os = "macos")]
mod system {
    use super::{WORDS, available};
    use crate::memory::Memory;
    use std::ffi::c_int;

    // libc has them as deprecated, or not at all.
    unsafe extern "C" {
        fn mach_host_self() -> libc::mach_port_t;
        static vm_kernel_page_size: libc::vm_size_t;
    }

    /// Asks the system.
    pub fn read() -> Option<Memory> {
        let total = total()?;
        let mut words = [0_u32; WORDS];
        let mut count = WORDS as libc::mach_msg_type_number_t;
        // SAFETY: the call takes nothing.
        let host = unsafe { mach_host_self() };
        // SAFETY: there is room for `count` words, and the kernel writes no more than that.
        let code = unsafe {
            libc::host_statistics64(
                host,
                libc::HOST_VM_INFO64,
                words.as_mut_ptr().cast::<c_int>(),
                &mut count,
            )
        };
        if code != libc::KERN_SUCCESS || (count as usize) < WORDS {
            return None;
        }
        // SAFETY: a constant of the system's library, set before `main`.
        let page = unsafe { vm_kernel_page_size } as u64;
        Some(Memory { total, available: available(&words, page).min(total), limit: None })
    }

    /// The most that this process has held.
    pub fn peak() -> Option<u64> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: there is room for the answer, and zeros are one.
        let usage = unsafe {
            match libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) {
                0 => usage.assume_init(),
                _ => return None,
            }
        };
        // Bytes here, where Linux has kibibytes.
        u64::try_from(usage.ru_maxrss).ok()
    }

    fn total() -> Option<u64> {
        let mut total = 0_u64;
        let mut size = size_of::<u64>();
        // SAFETY: the name ends with a zero, and there is room for `size` bytes; nothing is set.
        let code = unsafe {
            libc::sysctlbyname(
                c"hw.memsize".as_ptr(),
                (&raw mut total).cast(),
                &mut size,
                std::ptr::null_mut(),
                0,
            )
        };
        (code == 0 && size == size_of::<u64>()).then_some(total)
    }
}

#[cfg(target_os = "macos")]
pub use system::{peak, read};

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's words for what `vm_stat` printed: its free pages are those that were not read ahead.
    fn recorded(free: u32, speculative: u32, purgeable: u32, file_backed: u32) -> [u32; WORDS] {
        // Counters of events between them must not be taken for pages.
        let mut words = [u32::MAX; WORDS];
        words[0] = free + speculative;
        words[22] = purgeable;
        words[23] = speculative;
        words[34] = file_backed;
        words
    }

    #[test]
    fn pages_of_real_machines_add_up() {
        // 64 GB, Apple silicon: 1 023 077 pages of programs, 164 337 wired, 35 364 compressed of 4 194 304.
        let available_64 = available(&recorded(1_616_097, 829_846, 125_376, 1_300_312), 16_384);
        assert_eq!(available_64, (1_616_097 + 125_376 + 1_300_312) * 16_384);
        let used = (1_023_077_u64 - 125_376 + 164_337 + 35_364) * 16_384;
        let unaccounted = (64_u64 << 30) - used - available_64;
        assert!(unaccounted < 1 << 30, "the firmware's part: {unaccounted}");
        // 32 GB, Intel, hardly used.
        let available_32 = available(&recorded(6_127_229, 430_715, 11_820, 1_080_348), 4_096);
        assert_eq!(available_32, 7_219_397 * 4_096);
        assert!(available_32 < 32 << 30);
    }

    #[test]
    fn the_words_lie_where_the_kernel_puts_them() {
        /// `vm_statistics64` of `mach/vm_statistics.h`; `natural_t` has 32 bits.
        #[repr(C, align(8))]
        struct VmStatistics {
            free_active_inactive_wire: [u32; 4],
            zero_fill_to_purges: [u64; 9],
            purgeable: u32,
            speculative: u32,
            decompressions_to_swapouts: [u64; 4],
            compressor_and_throttled: [u32; 2],
            external: u32,
            internal: u32,
            uncompressed_in_compressor: u64,
        }
        use std::mem::offset_of;
        assert_eq!(size_of::<VmStatistics>(), 4 * WORDS);
        for (offset, word) in [
            (offset_of!(VmStatistics, free_active_inactive_wire), FREE),
            (offset_of!(VmStatistics, purgeable), PURGEABLE),
            (offset_of!(VmStatistics, speculative), SPECULATIVE),
            (offset_of!(VmStatistics, external), FILE_BACKED),
        ] {
            assert_eq!(offset, 4 * word);
        }
    }
}
