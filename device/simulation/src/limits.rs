//! Limits of scenarios for simulations.

use std::fmt::Display;

use faultline_scenario::file::Scenario;
use faultline_scenario::traffic::{Operation, Service, Traffic};

use crate::error::SimulationError;

fn out_of_range(key: String, value: impl Display, allowed: &str) -> SimulationError {
    SimulationError::Value {
        key,
        value: value.to_string(),
        allowed: allowed.to_owned(),
    }
}

/// Index of the host that has a NIC.
pub(crate) fn host_of(
    scenario: &Scenario,
    nic: &str,
    traffic: usize,
    key: &str,
) -> Result<usize, SimulationError> {
    let hosts = usize::from(scenario.simulator.hosts);
    let number = nic.strip_prefix("nic").and_then(|n| n.parse().ok());
    number.filter(|host| *host < hosts).ok_or_else(|| {
        let last = hosts.saturating_sub(1);
        let allowed = format!("the simulated NICs are nic0 to nic{last}");
        out_of_range(
            format!("traffic[{traffic}].{key}"),
            format!("{nic:?}"),
            &allowed,
        )
    })
}

/// Checks that a scenario can be simulated.
pub(crate) fn check(scenario: &Scenario) -> Result<(), SimulationError> {
    let simulator = &scenario.simulator;
    let of_simulator = |key: &str, value: u32, is_allowed: bool, allowed: &str| match is_allowed {
        true => Ok(()),
        false => Err(out_of_range(format!("simulator.{key}"), value, allowed)),
    };
    let hosts = simulator.hosts;
    let frames = simulator.page_frames;
    let queue = simulator.fault_queue;
    of_simulator(
        "hosts",
        hosts.into(),
        (1..=8).contains(&hosts),
        "1 to 8 are possible",
    )?;
    of_simulator(
        "page_frames",
        frames,
        (2..=2048).contains(&frames),
        "2 to 2048 are possible",
    )?;
    of_simulator(
        "fault_queue",
        queue,
        queue.is_power_of_two() && (2..=65536).contains(&queue),
        "it must be a power of two from 2 to 65536",
    )?;
    for (index, traffic) in scenario.traffic.iter().enumerate() {
        check_traffic(index, traffic)?;
    }
    let connections = scenario.traffic.iter().map(|t| u64::from(t.connections));
    let connections: u64 = connections.sum();
    match connections {
        ..=4096 => Ok(()),
        _ => Err(out_of_range(
            "the sum of all traffic.connections".to_owned(),
            connections,
            "at most 4096 are possible",
        )),
    }
}

fn check_traffic(index: usize, traffic: &Traffic) -> Result<(), SimulationError> {
    const MIB: u32 = 1 << 20;
    let require = |key: &str, value: &dyn Display, is_allowed: bool, allowed: &str| {
        if is_allowed {
            return Ok(());
        }
        Err(out_of_range(
            format!("traffic[{index}].{key}"),
            value,
            allowed,
        ))
    };
    let number = |key: &str, value: u32, first: u32, last: u32| {
        let is_allowed = (first..=last).contains(&value);
        require(
            key,
            &value,
            is_allowed,
            &format!("{first} to {last} are possible"),
        )
    };
    number("size", traffic.size, 1, 16 * MIB)?;
    number("count", traffic.count, 1, 1_000_000)?;
    number("depth", traffic.depth, 1, 1024)?;
    number("connections", traffic.connections, 1, 4096)?;
    number("receives", traffic.receives.unwrap_or(0), 0, 4096)?;
    number("sges", traffic.sges.into(), 1, 4)?;
    number("timeout", traffic.timeout.into(), 0, 31)?;
    number("retry_count", traffic.retry_count.into(), 0, 7)?;
    number("rnr_retry", traffic.rnr_retry.into(), 0, 7)?;
    number("min_rnr_timer", traffic.min_rnr_timer.into(), 0, 31)?;
    let is_mtu = traffic.mtu.is_power_of_two() && (256..=4096).contains(&traffic.mtu);
    require(
        "mtu",
        &traffic.mtu,
        is_mtu,
        "it must be 256, 512, 1024, 2048 or 4096",
    )?;
    let is_atomic = matches!(traffic.op, Operation::FetchAdd | Operation::CompareSwap);
    let atomic_size = !is_atomic || traffic.size == 8 && traffic.sges == 1;
    require(
        "size",
        &traffic.size,
        atomic_size,
        "atomics have 8 bytes and one entry",
    )?;
    let is_allowed = match traffic.service {
        Service::Rc => true,
        Service::Uc => !is_atomic && traffic.op != Operation::Read,
        Service::Ud => traffic.op == Operation::Send,
    };
    let op = format!("{:?}", traffic.op);
    require(
        "op",
        &op,
        is_allowed,
        "UC has no READ and no atomics, UD has only SEND (IBTA table 38)",
    )?;
    let fits = traffic.service != Service::Ud || traffic.size <= u32::from(traffic.mtu);
    require(
        "size",
        &traffic.size,
        fits,
        "a datagram is not longer than `mtu`",
    )
}
