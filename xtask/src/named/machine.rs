//! Where and when: the machine in a few words, and the date.

use std::fs;

use crate::cuda::GraphicsCard;

/// The processor and how many cores of it there are; the first NVIDIA card and its driver, where there is one.
pub fn name() -> String {
    // Only Linux has the file; elsewhere the instruction set has to do.
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpu = cpu(&info).unwrap_or_else(|| std::env::consts::ARCH.to_string());
    let card = GraphicsCard::first().map(|card| format!("; {}", card.shown())).unwrap_or_default();
    format!("{cpu}, {cores} {}{card}", if cores == 1 { "core" } else { "cores" })
}

/// The processor's name, with its model where there is one: virtual machines hide the name.
fn cpu(info: &str) -> Option<String> {
    let field = |name: &str| {
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, v)| v)
    };
    let name = field("model name")?;
    Some(match field("model") {
        Some(model) => format!("{name} (model {model})"),
        None => name.to_string(),
    })
}

/// The day, in UTC, as 2031-02-03.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_named_with_its_model() {
        let info =
            "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor\nprocessor\t: 1\n";
        assert_eq!(cpu(info).as_deref(), Some("Intel(R) Xeon(R) Processor (model 207)"));
        assert_eq!(cpu("processor : 0\nBogoMIPS : 50\n"), None);
        assert!(name().contains("core"));
    }
}
