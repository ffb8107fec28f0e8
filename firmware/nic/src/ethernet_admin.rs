//! Admin commands of the Ethernet side: groups and flows.

use faultline_abi::Status;
use faultline_abi::steering::{CreateFlow, FLOW_KIND_NORMAL, FLOW_KINDS, FlowFields, Mcast};
use faultline_wire::Gid;
use zerocopy::{FromZeros, IntoBytes};

use crate::dma::Dma;
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

    pub(crate) fn create_flow<M: Dma>(&mut self, mem: &M, cmd: &CreateFlow) -> Result<u32, Status> {
        if cmd.reserved != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if usize::from(cmd.kind) >= FLOW_KINDS.constants.len() {
            return Err(Status::NotSupported);
        }
        let qp = self.qps.get(cmd.qpn.get()).ok_or(Status::BadQp)?;
        if qp.config.kind != QpType::Raw {
            return Err(Status::BadQpType);
        }
        let addr = cmd.fields_addr.get();
        if cmd.kind != FLOW_KIND_NORMAL {
            if addr != 0 {
                return Err(Status::BadParameter);
            }
            return self.steering.create(cmd, None);
        }
        let mut fields = <[FlowFields; 2]>::new_zeroed();
        mem.read(addr, fields.as_mut_bytes())
            .map_err(|_| Status::DmaError)?;
        self.steering.create(cmd, Some(fields.into()))
    }

    pub(crate) fn destroy_flow(&mut self, number: u32) -> Result<(), Status> {
        let flow = self.steering.destroy(number);
        flow.map(drop).ok_or(Status::BadFlow)
    }
}
