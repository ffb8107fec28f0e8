//! Work requests.

use faultline_abi::wqe::{self, Sge};

use crate::domain::{Ah, Remote};

/// Data of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// In the work request itself.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// FAULTLINE_WR_*.
    pub opcode: u8,
    /// FAULTLINE_WR_FLAG_*.
    pub flags: u8,
    /// Local buffers, or inline data.
    pub data: Data<'a>,
    /// Immediate data in wire order, or the rkey to invalidate.
    pub imm: u32,
    /// WRITE, READ, atomics: remote address and key.
    pub remote: Remote,
    /// Compare value of a compare-and-swap, addend of a fetch-and-add.
    pub compare_add: u64,
    /// Swap value of a compare-and-swap.
    pub swap: u64,
    /// UD, GSI: address handle.
    pub ah: u32,
    /// UD, GSI: destination QP. XRC: destination SRQ.
    pub remote_qpn: u32,
}

impl<'a> SendWr<'a> {
    const fn new(opcode: u8, data: Data<'a>) -> Self {
        Self {
            opcode,
            flags: 0,
            data,
            imm: 0,
            remote: Remote { addr: 0, key: 0 },
            compare_add: 0,
            swap: 0,
            ah: 0,
            remote_qpn: 0,
        }
    }

    /// SEND.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(wqe::WR_SEND, Data::Sges(sges))
    }

    /// SEND of inline data.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        let mut wr = Self::new(wqe::WR_SEND, Data::Inline(data));
        wr.flags = wqe::WR_FLAG_INLINE;
        wr
    }

    /// A raw Ethernet frame.
    pub const fn raw(sges: &'a [Sge]) -> Self {
        Self::new(wqe::WR_RAW, Data::Sges(sges))
    }

    /// RDMA WRITE.
    pub const fn write(sges: &'a [Sge], remote: Remote) -> Self {
        let mut wr = Self::new(wqe::WR_WRITE, Data::Sges(sges));
        wr.remote = remote;
        wr
    }

    /// RDMA WRITE of inline data.
    pub const fn write_inline(data: &'a [u8], remote: Remote) -> Self {
        let mut wr = Self::new(wqe::WR_WRITE, Data::Inline(data));
        wr.remote = remote;
        wr.flags = wqe::WR_FLAG_INLINE;
        wr
    }

    /// RDMA READ.
    pub const fn read(sges: &'a [Sge], remote: Remote) -> Self {
        let mut wr = Self::new(wqe::WR_READ, Data::Sges(sges));
        wr.remote = remote;
        wr
    }

    /// Fetch and add; the 8 bytes of `sges` get the old value.
    pub const fn fetch_add(sges: &'a [Sge], remote: Remote, add: u64) -> Self {
        let mut wr = Self::new(wqe::WR_FETCH_ADD, Data::Sges(sges));
        wr.remote = remote;
        wr.compare_add = add;
        wr
    }

    /// Compare and swap; the 8 bytes of `sges` get the old value.
    pub const fn comp_swap(sges: &'a [Sge], remote: Remote, compare: u64, swap: u64) -> Self {
        let mut wr = Self::new(wqe::WR_COMP_SWAP, Data::Sges(sges));
        wr.remote = remote;
        wr.compare_add = compare;
        wr.swap = swap;
        wr
    }

    /// With a completion.
    pub const fn signaled(mut self) -> Self {
        self.flags |= wqe::WR_FLAG_SIGNALED;
        self
    }

    /// With a solicited event for the receiver.
    pub const fn solicited(mut self) -> Self {
        self.flags |= wqe::WR_FLAG_SOLICITED;
        self
    }

    /// After earlier READs and atomics.
    pub const fn fenced(mut self) -> Self {
        self.flags |= wqe::WR_FLAG_FENCE;
        self
    }

    /// With immediate data.
    pub const fn imm(mut self, imm: u32) -> Self {
        self.imm = imm;
        self.opcode = match self.opcode {
            wqe::WR_WRITE => wqe::WR_WRITE_IMM,
            _ => wqe::WR_SEND_IMM,
        };
        self
    }

    /// As a datagram.
    pub fn to(mut self, ah: &Ah, qpn: u32, qkey: u32) -> Self {
        self.ah = ah.number();
        self.remote_qpn = qpn;
        self.compare_add = u64::from(qkey);
        self
    }
}
