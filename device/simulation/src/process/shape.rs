//! The shape of a process.

use std::time::Duration;

use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::VlanMembership;
use faultline_nic::{Dcqcn, Transport};

/// A NIC of a process.
#[derive(Clone, Debug, Default)]
pub struct NicShape {
    /// Its engine.
    pub engine: usize,
    /// Models of its link: away from the NIC, and to it.
    pub links: [Option<LinkModel>; 2],
    /// Its VLANs; `None`: all. Without VLANs of any port the switches know none.
    pub vlans: Option<VlanMembership>,
    /// Protocol of its queue pairs.
    pub transport: Transport,
    /// Its congestion control.
    pub congestion: Option<Dcqcn>,
    /// It may send frames from addresses of other ports.
    pub is_unchecked: bool,
}

/// An external port of a process.
#[derive(Clone, Debug, Default)]
pub struct PortShape {
    /// Models of its link: to the peer, and from it.
    pub links: [Option<LinkModel>; 2],
    /// Longest time for which it holds senders.
    pub hold: Duration,
    /// Octets in the ring to the peer.
    pub room: usize,
    /// Its VLANs; `None`: all. Without VLANs of any port the switches know none.
    pub vlans: Option<VlanMembership>,
    /// Longest payload of Ethernet frames, if it is limited.
    pub mtu: Option<u16>,
}

/// The shape of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessShape {
    /// Number of engines.
    pub engines: usize,
    /// NICs.
    pub nics: Vec<NicShape>,
    /// External ports, which the first engine has.
    pub ports: Vec<PortShape>,
    /// For the order of passes.
    pub seed: u64,
    /// Addresses of its NICs are counted from this number on: other processes have others.
    pub first_address: usize,
}
