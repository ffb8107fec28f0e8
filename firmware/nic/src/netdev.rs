//! The Ethernet side of the NIC, as the driver has configured it.

use faultline_abi::admin::{NETDEV_ALLMULTI, NETDEV_PROMISC, NETDEV_UP, SetNetdev};
use faultline_wire::MacAddr;

/// The Ethernet side as SET_NETDEV and SET_MAC_FILTER have left it.
#[derive(Clone, Debug)]
pub(crate) struct Netdev {
    /// Own address.
    pub mac: MacAddr,
    /// Largest payload of a frame.
    pub mtu: u16,
    /// `NETDEV_*` bits.
    pub flags: u32,
    /// Raw QP that receives, 0 = none.
    pub qpn: u32,
    /// Further addresses and groups, sorted.
    pub filter: Vec<MacAddr>,
}

impl Netdev {
    /// Applies a SET_NETDEV command, whose values have been checked.
    pub(crate) fn configure(&mut self, cmd: &SetNetdev) {
        self.mac = MacAddr(cmd.mac);
        self.mtu = cmd.mtu.get();
        self.flags = cmd.flags.get();
        self.qpn = cmd.qpn.get();
    }

    /// True if the driver has requested frames to this address.
    #[inline]
    pub(crate) fn wants(&self, dst: MacAddr) -> bool {
        dst == self.mac
            || dst.is_broadcast()
            || self.flags & NETDEV_PROMISC != 0
            || (dst.is_multicast() && self.flags & NETDEV_ALLMULTI != 0)
            || self.filter.binary_search(&dst).is_ok()
    }

    /// Whether the interface is up.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.flags & NETDEV_UP != 0
    }
}
