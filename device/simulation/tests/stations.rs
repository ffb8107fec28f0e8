//! NICs that send frames, and receive all frames that reach them.

use std::iter;

use faultline_abi::U32;
use faultline_abi::cqe::{RECV, SUCCESS};
use faultline_abi::qp::QPT_RAW;
use faultline_abi::steering::{CreateFlow, FLOW_KIND_ALL_DEFAULT};
use faultline_abi::wqe::WR_RAW;

use faultline_simulation::process::Processes;

use crate::common::{At, End, Expect, Send};

pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];
/// Octets of a buffer, and buffers.
const SLOT: u64 = 2048;
const SLOTS: u32 = 32;

/// A frame that is no RoCE packet. Its data are longer than a NIC's own copy of headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) dst: [u8; 6],
    pub(crate) src: [u8; 6],
    /// Tag control information of a VLAN tag.
    pub(crate) tag: Option<u16>,
}

impl Frame {
    pub(crate) fn new(dst: [u8; 6], src: [u8; 6]) -> Self {
        Self {
            dst,
            src,
            tag: None,
        }
    }

    pub(crate) fn with_tag(self, tag: Option<u16>) -> Self {
        Self { tag, ..self }
    }

    /// As on the wire, without FCS.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = [self.dst, self.src].concat();
        if let Some(tag) = self.tag {
            out.extend([0x81, 0]);
            out.extend(tag.to_be_bytes());
        }
        out.extend([0x88, 0xb5]);
        out.extend((0..300).map(|at| (at * 7) as u8));
        out
    }
}

/// A NIC that sends frames, and receives all frames that reach it.
pub(crate) struct Station {
    sender: End,
    receiver: End,
    pub(crate) mac: [u8; 6],
}

impl Station {
    pub(crate) fn new(world: &mut Processes, at: At) -> Self {
        let [sender, mut receiver] = [(); 2].map(|()| {
            let len = u64::from(SLOTS) * SLOT;
            let end = End::new(world, at, QPT_RAW, (6, len));
            end.activate(world, 0);
            end
        });
        for tag in 0..SLOTS {
            receiver.receive(world, tag, (u64::from(tag) * SLOT, SLOT));
        }
        let flow = CreateFlow {
            qpn: U32::new(receiver.qp.qpn),
            kind: FLOW_KIND_ALL_DEFAULT,
            ..CreateFlow::default()
        };
        let host = world.at(at);
        host.driver.create_flow(&flow, None).unwrap();
        Self {
            sender,
            receiver,
            mac: host.mac.0,
        }
    }

    /// Sends a frame. It has arrived afterwards.
    pub(crate) fn send(&mut self, world: &mut Processes, frame: &Frame) {
        let (end, bytes) = (&mut self.sender, frame.bytes());
        end.fill(world, 0, &bytes);
        let send = Send {
            opcode: WR_RAW,
            sges: &[(end.mr.va, bytes.len() as u32, end.mr.key)],
            ..Send::default()
        };
        end.post(world, &send);
        end.await_good(world, 1);
        world.settle();
    }

    /// Frames since the last call.
    pub(crate) fn received(&mut self, world: &mut Processes) -> Vec<Vec<u8>> {
        let end = &mut self.receiver;
        let found = iter::from_fn(|| world.at(end.at).driver.poll(&mut end.cq));
        let found: Vec<_> = found.collect();
        let take = |cqe: faultline_abi::cqe::Cqe| {
            assert_eq!((cqe.status, cqe.opcode), (SUCCESS, RECV));
            let (tag, len) = (cqe.wqe.get(), cqe.byte_len.get());
            let at = u64::from(tag) * SLOT;
            let frame = end.read(world, at, len as usize);
            end.receive(world, tag, (at, SLOT));
            frame
        };
        found.into_iter().map(take).collect()
    }
}
