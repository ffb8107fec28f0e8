//! A host: a driver with its addresses, and the objects that its connections share.

use faultline_abi::admin::QP_FLAG_SIG_ALL;
use faultline_wire::{Gid, MacAddr};

use crate::bus::Bus;
use crate::driver::{ALL_ACCESS, Connect, Cq, CqConfig, Driver, Eq, Error, Mr, Qp, QpConfig};

/// MTU of network interfaces.
const MTU: u16 = 9000;
/// log2 of the entries of the event queue.
const EVENTS_LOG_DEPTH: u8 = 10;
/// First I/O virtual address of [`Host::mr`].
const VA: u64 = 0x7f00_0000_0123;

/// A host, which reaches its NIC by a bus.
#[derive(Debug)]
pub struct Host<B> {
    /// The driver.
    pub driver: Driver<B>,
    /// MAC address.
    pub mac: MacAddr,
    /// IPv4 address, entry 0 of the GID table.
    pub gid: Gid,
    /// A protection domain.
    pub pd: u32,
    /// The user context of [`Host::cq`] and [`Host::qp_config`]: at first the kernel's, 0.
    pub uctx: u32,
    /// Event queue of completion notices, on vector 1.
    pub eq: Eq,
}

impl<B: Bus> Host<B> {
    /// Starts a driver with unused memory.
    ///
    /// # Errors
    /// The NIC refuses a command, or the memory is too small.
    pub fn start(bus: B, mac: MacAddr, gid: Gid) -> Result<Self, Error> {
        let mut driver = Driver::new(bus)?;
        driver.set_gid(0, gid, mac)?;
        driver.set_netdev(mac, MTU, 0)?;
        let pd = driver.alloc_pd()?;
        let eq = driver.create_eq(0, 1, EVENTS_LOG_DEPTH)?;
        Ok(Self {
            driver,
            mac,
            gid,
            pd,
            uctx: 0,
            eq,
        })
    }

    /// Creates a completion queue of 2^`log_depth` entries.
    ///
    /// # Errors
    /// The NIC refuses it, or there is no more memory.
    pub fn cq(&mut self, log_depth: u8) -> Result<Cq, Error> {
        self.driver.create_cq(CqConfig {
            log_depth,
            eqn: self.eq.eqn,
            uctx: self.uctx,
        })
    }

    /// Registers a region with all rights, whose pages do not begin at a page boundary of the I/O address space.
    ///
    /// # Errors
    /// The NIC refuses it, or there is no more memory.
    pub fn mr(&mut self, len: u64) -> Result<Mr, Error> {
        self.driver.reg_mr(self.pd, VA, len, ALL_ACCESS)
    }

    /// Creates a queue pair of the usual shape, whose sends and receives complete on one CQ.
    ///
    /// # Errors
    /// The NIC refuses it, or there is no more memory.
    pub fn qp(&mut self, kind: u8, cq: &Cq) -> Result<Qp, Error> {
        let config = self.qp_config(kind, cq);
        self.driver.create_qp(&config)
    }

    /// The usual shape of a queue pair: 256 sends and receives of up to 4 segments. Each send has a completion.
    pub fn qp_config(&self, kind: u8, cq: &Cq) -> QpConfig {
        QpConfig {
            kind,
            pd: self.pd,
            uctx: self.uctx,
            send_cqn: cq.cqn,
            recv_cqn: cq.cqn,
            srqn: None,
            log_depth: 8,
            max_sge: 4,
            flags: QP_FLAG_SIG_ALL,
        }
    }

    /// The path of other hosts to a queue pair of this host.
    pub fn path(&self, qpn: u32) -> Connect {
        Connect::to(self.gid, self.mac, qpn)
    }
}
