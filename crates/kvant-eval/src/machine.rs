//! What a measurement was made on.

use serde::Serialize;
use std::fs;
use std::thread;

/// The machine, as far as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Name of the processor; with family and model on x86, where virtual machines hide the name.
    pub cpu: String,
    /// Logical cores this process may use.
    pub cores: usize,
    /// Operating system.
    pub os: &'static str,
    /// Instruction set.
    pub arch: &'static str,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let arch = std::env::consts::ARCH;
        // Only Linux has the file; elsewhere the instruction set has to do.
        let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| cpu_name(&info));
        Self {
            cpu: cpu.unwrap_or_else(|| arch.to_owned()),
            cores: thread::available_parallelism().map_or(1, |n| n.get()),
            os: std::env::consts::OS,
            arch,
        }
    }
}

/// The processor's name in the text of `/proc/cpuinfo`.
fn cpu_name(info: &str) -> Option<String> {
    let field = |name: &str| {
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, v)| v)
    };
    let name = field("model name")?;
    Some(match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named() {
        let x86 = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Some(R) CPU\n";
        assert_eq!(cpu_name(x86).unwrap(), "Some(R) CPU (family 6, model 207)");
        assert_eq!(cpu_name("model name\t: ARMv8\n").unwrap(), "ARMv8");
        assert_eq!(cpu_name("processor\t: 0\nBogoMIPS\t: 48.00\n"), None);
        let this = Machine::this();
        assert!(!this.cpu.is_empty() && this.cores > 0);
    }
}
