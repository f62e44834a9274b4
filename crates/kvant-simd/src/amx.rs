//! Whether the tile unit of Sapphire Rapids and later may be used.
//!
//! Its state is large, so the system has to be asked before a program uses it; that is done once, here, for all kernels.

use std::sync::OnceLock;

/// The environment variable that turns the tile unit off: `KVANT_AMX=off`.
pub const AMX_VARIABLE: &str = "KVANT_AMX";

/// Whether products use the tile unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amx {
    /// They do.
    Used,
    /// The processor has none, or another tier was asked for.
    Absent,
    /// [`AMX_VARIABLE`] says so.
    TurnedOff,
    /// The kernel does not let this program use it, for this reason.
    Refused(String),
}

impl Amx {
    /// Asks once per process.
    pub fn status() -> &'static Amx {
        static STATUS: OnceLock<Amx> = OnceLock::new();
        STATUS.get_or_init(|| {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            if crate::Tier::Avx512.is_available() && is_present() {
                if std::env::var(AMX_VARIABLE).is_ok_and(|value| value == "off") {
                    return Amx::TurnedOff;
                }
                return match permission() {
                    Ok(()) => Amx::Used,
                    Err(error) => Amx::Refused(error.to_string()),
                };
            }
            Amx::Absent
        })
    }
}

/// Whether the processor has tiles and integer products of them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_present() -> bool {
    // Leaf 7, EDX: bit 24 tiles, bit 25 integer products.
    const TILES: u32 = 0b11 << 24;
    std::arch::x86_64::__cpuid_count(7, 0).edx & TILES == TILES
}

/// Asks the kernel for the state of the tile unit, for all threads of the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permission() -> std::io::Result<()> {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: a system call that takes two numbers and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
