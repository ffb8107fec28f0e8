//! The start of a driver, and resets of its NIC.

use faultline_abi::regs;
use faultline_fabric::PortId;
use faultline_wire::{Gid, MacAddr};

use super::{Process, ProcessBus, ProcessHost};
use crate::bus::Bus;
use crate::driver::{Driver, Error};

impl ProcessHost {
    /// Starts a driver, which has used none of its memory yet.
    pub(super) fn start(bus: ProcessBus, mac: MacAddr, gid: Gid) -> Result<Self, Error> {
        let mut driver = Driver::new(bus)?;
        driver.set_gid(0, gid, mac)?;
        driver.set_netdev(mac, 9000, 0)?;
        let pd = driver.alloc_pd()?;
        let eq = driver.create_eq(0, 1, 10)?;
        Ok(Self {
            driver,
            mac,
            gid,
            pd,
            eqn: eq.eqn,
        })
    }
}

impl Process {
    /// Resets a NIC by its register, as a guest does that reboots. It is disabled until [`Process::restart_host`].
    pub fn reset_nic(&mut self, nic: PortId) {
        if let Some(host) = self.hosts.get_mut(nic) {
            host.driver.bus.write_register(regs::CONTROL, regs::RESET);
            host.driver.bus.take_interrupts();
            // The state before the reset is freed.
            drop(self.with_port(nic, |port| port.nic.take_remains()));
        }
    }

    /// Starts the driver of a NIC again. The memory of the host keeps its content.
    ///
    /// # Errors
    /// The driver does not start.
    pub fn restart_host(&mut self, nic: PortId) -> Result<(), Error> {
        if let Some(host) = self.hosts.get_mut(nic) {
            let bus = host.driver.bus.clone();
            *host = ProcessHost::start(bus, host.mac, host.gid)?;
        }
        Ok(())
    }
}
