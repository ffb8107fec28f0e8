//! The memory of the host, and that of a pair of guests.

use std::fs;

/// MiB that a pair of guests needs on the host: memory, persistent memory and QEMU's translated code of two guests.
pub const PAIR_MIB: u64 = 3400;

/// MiB that programs can have without swapping, if the host says so.
pub fn available_mib() -> Option<u64> {
    available_in(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// True if the host has memory for a pair in addition to the one that has just booted and will still grow.
pub fn room_for_a_pair() -> bool {
    available_mib().is_some_and(|mib| mib >= 2 * PAIR_MIB)
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_in(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24689116 kB\nMemFree:  1 kB\nMemAvailable:   10485760 kB\n";
        assert_eq!(available_in(text), Some(10_240));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }
}
