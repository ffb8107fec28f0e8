//! A fatal error that is caused through the API: the guest's devlink reports it, and recovers the device by request.

use anyhow::{Context, Result, ensure};

use super::watched::{SHORT, Watched};
use crate::test::traffic::works;

/// The NIC of the second guest.
const NIC: &str = "nic1";

pub fn run(watched: &Watched<'_>) -> Result<()> {
    let state = || -> Result<String> {
        let nic = watched.ctl(&["show", NIC])?;
        let state = nic["state"].as_str().context("state of a NIC")?;
        Ok(state.to_owned())
    };
    ensure!(state()? == "running", "the NIC is {}", state()?);
    // The report has numbers of queues that have been used.
    works(watched.cluster)?;
    watched.client.must("device_health manual", SHORT)?;
    watched.faultline(&["ctl", "action", NIC, "fatal"])?;
    ensure!(state()? == "fatal", "the NIC is {}", state()?);
    // The reporter has the cause, and the device works again when it is recovered.
    watched.client.must("device_health fatal", 2 * SHORT)?;
    ensure!(state()? == "running", "the NIC is {}", state()?);
    watched.expect_log(
        &[
            "ERROR",
            "nic{name=nic1}:",
            "kind=\"fatal\"",
            "cause=INJECTED",
        ],
        SHORT,
    )?;
    // The RDMA device is a new one, which udev renames.
    let is_back = "lab_until 20 lab_has_gid \"$MY_IP\"";
    watched.client.must(is_back, 2 * SHORT)?;
    works(watched.cluster)
}
