//! The guests that each suite needs. A suite without special needs gets the plain guests, because a boot takes as long as
//! twenty tests.

use std::path::Path;

use super::image_packages::packages;
use super::suite::Options;
use super::suites::oversubscribe;
use crate::cluster::{Nic, Plan};
use crate::image::Kernel;
use crate::qemu::Hardware;
use crate::wiring::Wiring;

/// MiB of the region in the suite `oversubscribe`.
const OVERSUBSCRIBED: u32 = oversubscribe::TIMES * SMALL_MEMORY;
/// MiB of memory of a guest that is to run out of it.
const SMALL_MEMORY: u32 = 256;
/// Configuration of a NIC on a link that loses and reorders frames.
const LOSSY: &str = "qemu-config/nics/lossy.toml";

/// The guests that `suite` runs in; `root` is the project's.
pub fn plan(root: &Path, suite: &str, kernel: Kernel, options: &Options) -> Plan {
    let plain = plain(kernel, options);
    match suite {
        // Random data does not compress, so it is swapped to a disk, which needs room for other memory, too.
        "oversubscribe" => Plan {
            memory: SMALL_MEMORY,
            hardware: Hardware {
                swap_disk: OVERSUBSCRIBED + 1024,
                ..Hardware::default()
            },
            ..plain
        },
        "swap" => Plan {
            memory: SMALL_MEMORY,
            hardware: Hardware {
                swap_disk: 4 * SMALL_MEMORY,
                ..Hardware::default()
            },
            ..plain
        },
        // Applications need no further modules, but share the guests of the upper-layer protocols, which do.
        "apps" | "programs" | "ulp" => Plan {
            packages: packages(),
            upstream: true,
            ..plain
        },
        "interop" | "interop-on-demand" => mixed(plain),
        "interop-lossy" => Plan {
            config: Some(root.join(LOSSY)),
            ..mixed(plain)
        },
        "interop-programs" => Plan {
            packages: packages(),
            ..mixed(plain)
        },
        "interop-programs-lossy" => Plan {
            config: Some(root.join(LOSSY)),
            packages: packages(),
            ..mixed(plain)
        },
        "vhost" => Plan {
            nic: Nic::Vhost,
            mtu: Some(4200),
            // Each has a queue of its own.
            cpus: Some(2),
            ..plain
        },
        "engines" => wired(plain, Wiring::Engines),
        "wire-unix" => wired(plain, Wiring::Unix),
        "wire-tcp" => wired(plain, Wiring::Tcp),
        "wire-bridge" => wired(plain, Wiring::Bridge),
        "wire-vxlan" => wired(plain, Wiring::Vxlan),
        "pinned" => Plan {
            config: Some(root.join("qemu-config/nics/pinned.toml")),
            ..plain
        },
        "iwarp" | "iwarp-recover" => iwarp(root, "iwarp", plain),
        "iwarp-lossy" => iwarp(root, "iwarp_lossy", plain),
        "interop-siw" => Plan {
            nic: Nic::Siw,
            ..iwarp(root, "iwarp", plain)
        },
        "bounce-buffers" => Plan {
            append: "swiotlb=force".to_owned(),
            ..plain
        },
        "iommu" => Plan {
            packages: packages(),
            hardware: Hardware {
                viommu: true,
                ..plain.hardware
            },
            ..plain
        },
        "recover" | "restart" => Plan {
            supervisor: suite == "restart",
            // QEMU loads an uncompressed kernel again when a machine wakes up.
            packaged_kernel: suite == "recover",
            // Fewer would do, but not for the same image.
            packages: packages(),
            ..plain
        },
        _ => plain,
    }
}

/// The guests of a suite without special needs.
fn plain(kernel: Kernel, options: &Options) -> Plan {
    // The shadow of the debug kernel's checks needs memory. The kernels that are built have no driver of persistent memory.
    let (memory, pmem) = match kernel {
        Kernel::Debug => (2048, 0),
        Kernel::Races => (Plan::default().memory, 0),
        _ => (Plan::default().memory, 256),
    };
    Plan {
        kernel,
        memory,
        nic: options.nic,
        wiring: options.wiring,
        // Drivers fail under concurrency of two processors, and most races need it.
        cpus: options.cpus.or(Some(2)),
        neighbours: 2 * options.pairs.saturating_sub(1),
        hardware: Hardware {
            // Torture moves pages between two nodes, and swaps them to compressed memory.
            nodes: 2,
            zram: 256,
            // pyverbs requests 16; each test has several buffers in them.
            huge_pages: 32,
            // For files in persistent memory, which move and go.
            pmem,
            ..Hardware::default()
        },
        ..Plan::default()
    }
}

/// The NIC in one guest and rxe in the other.
fn mixed(plain: Plan) -> Plan {
    Plan {
        nic: Nic::Mixed,
        mtu: Some(4200),
        ..plain
    }
}

/// iWARP adapters with this configuration.
fn iwarp(root: &Path, config: &str, plain: Plan) -> Plan {
    Plan {
        config: Some(root.join(format!("qemu-config/nics/{config}.toml"))),
        packages: packages(),
        ..plain
    }
}

fn wired(plain: Plan, wiring: Wiring) -> Plan {
    Plan {
        wiring,
        // For path MTUs of 4096.
        mtu: Some(4200),
        ..plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_share_guests_if_they_can() {
        let options = Options {
            run: crate::test::Run::Named,
            suites: Vec::new(),
            kernels: Vec::new(),
            nic: Nic::Faultline,
            wiring: Wiring::Switch,
            cpus: None,
            pairs: 2,
            half_speed: false,
            checks_packets: true,
        };
        let plan = |suite| plan(Path::new(""), suite, Kernel::Stable, &options);
        for suite in [
            "rdmacm",
            "odp",
            "pyverbs",
            "coherence",
            "sight",
            "scenarios",
            "torture",
        ] {
            assert_eq!(plan(suite), plan("pingpong"));
        }
        let debug = super::plan(Path::new(""), "odp", Kernel::Debug, &options).hardware;
        assert_eq!(debug.pmem, 0);
        let races = super::plan(Path::new(""), "odp", Kernel::Races, &options);
        assert_eq!((races.cpus, races.hardware.pmem), (Some(2), 0));
        for suite in ["torture", "torture-long", "swap", "ulp", "robustness"] {
            assert_eq!(plan(suite).cpus, Some(2), "{suite}");
        }
        let debug = super::plan(Path::new(""), "coherence", Kernel::Debug, &options);
        assert_eq!(debug.cpus, Some(2));
        assert_eq!(plan("apps"), plan("ulp"));
        assert_eq!(plan("programs"), plan("ulp"));
        assert_eq!(plan("torture").hardware.nodes, 2);
        let small = plan("oversubscribe");
        assert!(OVERSUBSCRIBED >= 10 * small.memory);
        assert!(small.hardware.swap_disk > OVERSUBSCRIBED);
        let one = Options {
            cpus: Some(1),
            ..options
        };
        let plan_of_one = super::plan(Path::new(""), "odp", Kernel::Stable, &one);
        assert_eq!(plan_of_one.cpus, Some(1));
    }
}
