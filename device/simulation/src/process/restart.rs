//! Resets of a NIC, and the restart of its driver.

use faultline_abi::regs;
use faultline_fabric::PortId;

use super::Process;
use crate::bus::Bus;
use crate::driver::Error;
use crate::host::Host;

impl Process {
    /// Resets a NIC by its register, as a rebooting guest does. It is disabled until [`Process::restart_host`].
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
            *host = Host::start(bus, host.mac, host.gid)?;
        }
        Ok(())
    }
}
