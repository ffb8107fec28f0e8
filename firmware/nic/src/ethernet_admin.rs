//! Admin commands of the Ethernet side: groups.

use faultline_abi::Status;
use faultline_abi::steering::Mcast;
use faultline_wire::Gid;

use crate::nic::Nic;
use crate::qp::QpType;

impl Nic {
    /// Attaching twice is as good as once (IBTA 11.3.1).
    pub(crate) fn attach_mcast(&mut self, qpn: u32, cmd: &Mcast) -> Result<(), Status> {
        let qp = self.qps.get(qpn).ok_or(Status::BadQp)?;
        if qp.config.kind != QpType::Ud {
            return Err(Status::BadQpType);
        }
        self.groups.attach(Gid(cmd.gid), qpn)
    }

    pub(crate) fn detach_mcast(&mut self, qpn: u32, cmd: &Mcast) -> Result<(), Status> {
        self.qps.get(qpn).ok_or(Status::BadQp)?;
        self.groups.detach(Gid(cmd.gid), qpn)
    }
}
