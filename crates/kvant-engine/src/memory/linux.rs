//! Linux: `/proc/meminfo`, and the limits of control groups, which containers are made of.

use super::Memory;
use std::fs;
use std::path::{Path, PathBuf};

/// Asks the system.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn read() -> Option<Memory> {
    read_below(Path::new("/"))
}

/// The most that this process has held. `getrusage` would count what its parent held before it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn peak() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// The bytes of a line such as `VmHWM:  1234 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The same with the system's files under another root.
fn read_below(root: &Path) -> Option<Memory> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| kibibytes(&meminfo, name);
    let mut memory = Memory { total: field("MemTotal")?, available: field("MemAvailable")?, limit: None };
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for (limit, available) in groups.lines().flat_map(|line| group_limits(root, line)) {
        if limit < memory.limit.unwrap_or(memory.total) {
            memory.limit = Some(limit);
        }
        memory.available = memory.available.min(available);
    }
    Some(memory)
}

/// The limits that one line of `/proc/self/cgroup` leads to, each with what is left of it: of the group and of all
/// groups it is in.
fn group_limits(root: &Path, line: &str) -> Vec<(u64, u64)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (base, names) = if controllers.is_empty() {
        (root.join("sys/fs/cgroup"), ["memory.max", "memory.current", "inactive_file"])
    } else if controllers.split(',').any(|name| name == "memory") {
        let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
        (root.join("sys/fs/cgroup/memory"), names)
    } else {
        return Vec::new();
    };
    let own = base.join(path.trim_start_matches('/'));
    // Inside a container the path may be that of the host; the mount then shows the container's own group.
    let own = if own.is_dir() { own } else { base.clone() };
    own.ancestors()
        .take_while(|folder| folder.starts_with(&base))
        .filter_map(|f| group_limit(f, names))
        .collect()
}

fn group_limit(folder: &Path, [limit, usage, idle]: [&str; 3]) -> Option<(u64, u64)> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // "max", the absence of a limit, is no number.
    let limit = number(folder.join(limit))?;
    let usage = number(folder.join(usage)).unwrap_or(0);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    // Pages of files that nobody has used lately count as used, but are given up when needed.
    let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse().ok()).unwrap_or(0);
    Some((limit, limit.saturating_sub(usage.saturating_sub(idle))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    const MEMINFO: &str = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:   8000 kB\n";

    #[test]
    fn a_limit_of_any_enclosing_group_counts_less_what_is_used() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/meminfo", MEMINFO);
        let machine = Memory { total: 16_384_000, available: 8_192_000, limit: None };
        assert_eq!(read_below(root), Some(machine));

        write(root, "proc/self/cgroup", "0::/outer/inner\n");
        write(root, "sys/fs/cgroup/outer/inner/memory.max", "max\n");
        write(root, "sys/fs/cgroup/outer/memory.max", "5000000\n");
        write(root, "sys/fs/cgroup/outer/memory.current", "3000000\n");
        write(root, "sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 1000000\n");
        let limited = Memory { available: 3_000_000, limit: Some(5_000_000), ..machine };
        assert_eq!(read_below(root), Some(limited));
    }

    #[test]
    fn the_older_groups_are_understood_and_a_host_path_is_not_needed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/meminfo", MEMINFO);
        write(root, "proc/self/cgroup", "5:cpu,memory:/docker/abc\n1:name=systemd:/\n");
        write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n");
        write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
        let memory = read_below(root).unwrap();
        assert_eq!((memory.limit, memory.available), (Some(4_000_000), 3_000_000));
        assert_eq!(read_below(&root.join("nowhere")), None);
    }
}
