//! The speed of a link that is set through the API: ethtool and the RDMA port in the guest have it.

use anyhow::{Result, ensure};

use super::watched::{SHORT, Watched};

/// The NIC of the second guest.
const NIC: &str = "nic1";
/// Mbit/s, and the values of ethtool and of the RDMA port. An RDMA port has only certain speeds: the
/// next one.
const SPEEDS: &[(&str, &str, &str)] = &[
    ("25000", "25000Mb/s", "25 Gb/sec (1X EDR)"),
    ("400000", "400000Mb/s", "400 Gb/sec (4X NDR)"),
    ("1500", "1500Mb/s", "2.5 Gb/sec (1X SDR)"),
    ("0", "Unknown!", "100 Gb/sec (4X EDR)"),
    // As at the beginning.
    ("100000", "100000Mb/s", "100 Gb/sec (4X EDR)"),
];

pub fn run(watched: &Watched<'_>) -> Result<()> {
    for &(mbps, ethtool, rate) in SPEEDS {
        watched.ctl(&["link", NIC, "--speed", mbps])?;
        let script = "ethtool \"$NETDEV\" | sed -n 's/^[[:space:]]*Speed: //p'
            cat /sys/class/infiniband/\"$RDMA_DEV\"/ports/1/rate";
        let seen = watched.client.must(script, SHORT)?;
        let expected = [ethtool, rate];
        ensure!(
            seen.lines().map(str::trim).eq(expected),
            "with --speed {mbps} the guest has {seen:?} instead of {expected:?}"
        );
    }
    Ok(())
}
