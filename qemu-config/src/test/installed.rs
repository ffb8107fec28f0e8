//! Checks in guests that have the packages installed.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::exchange::{self, Exchange, Ready};
use crate::guest::Guest;

/// The packages that a user copies into a guest.
pub const OF_GUEST: [&str; 3] = [
    "faultline-dkms",
    "libfaultline1",
    "faultline-ibverbs-provider",
];
const SHORT: Duration = Duration::from_secs(60);

/// The guests; there must be two.
pub fn pair(cluster: &Cluster) -> Result<(&Guest, &Guest)> {
    match cluster.guests.as_slice() {
        [first, second] => Ok((first, second)),
        _ => anyhow::bail!("two guests are needed"),
    }
}

/// The boot has loaded DKMS's module, and programs find the device.
pub fn booted(cluster: &Cluster) -> Result<()> {
    for guest in &cluster.guests {
        guest.must(
            "set -eux\n\
             systemctl is-active systemd-modules-load\n\
             grep '^faultline ' /proc/modules\n\
             modinfo -F filename faultline | grep /updates/dkms/\n\
             dkms status -k $(uname -r) | grep '^faultline/.*: installed'\n\
             test ! -e /usr/lib/modules/$(uname -r)/updates/faultline.ko\n\
             rdma link show $RDMA_DEV/1 | grep 'state ACTIVE'\n\
             ibv_devinfo -d $RDMA_DEV | grep PORT_ACTIVE",
            SHORT,
        )?;
    }
    Ok(())
}

/// Ping-pongs between two guests.
pub fn pingpong(cluster: &Cluster, options: &str) -> Result<()> {
    let (first, second) = pair(cluster)?;
    let server = format!("ibv_rc_pingpong -c {options} -d $RDMA_DEV -g $GID_INDEX");
    let exchange = Exchange {
        client: format!("{server} $PEER_IP"),
        server,
        ready: Ready::Tcp(18515),
        limit: SHORT,
    };
    let report = exchange::run(first, second, &exchange)?;
    ensure!(
        report.success() && report.client.text().contains("usec/iter"),
        "{}",
        report.text(30)
    );
    Ok(())
}

/// Memory that is registered on demand, without and after page faults of the NIC.
pub fn on_demand(cluster: &Cluster) -> Result<()> {
    pingpong(cluster, "-o")?;
    let (first, _) = pair(cluster)?;
    let said = first.must("odp_faults kept", SHORT)?;
    ensure!(said.contains("PASS"), "odp_faults did not pass:\n{said}");
    Ok(())
}
