//! A send work request: what the device keeps of it, and how it gets out of the ring.

use faultline_abi::cqe;
use faultline_abi::wqe::{self as wr, SQ_WQE_DATA, Sge, SqWqe};
use faultline_wire::bth::Psn;
use zerocopy::FromBytes;

use super::tag::Own;
use super::{Failure, Qp, QpType};
use crate::config::MAX_MSG_SIZE;
use crate::core::Core;
use crate::dma::Dma;
use crate::mkey::Access;
use crate::srq::{SgList, parse_sges};

/// A work request that has been read and has not completed.
#[derive(Debug)]
pub(super) struct SendWr {
    /// Running number.
    pub index: u32,
    pub opcode: u8,
    pub flags: u8,
    pub imm: u32,
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub ah: u32,
    pub remote_qpn: u32,
    pub qkey: u32,
    pub sges: SgList,
    /// Address of inline data, and how much there is. It comes before what the SGEs name.
    pub inline: Option<(u64, u32)>,
    /// Of all data.
    pub length: u32,
    /// First PSN, and number of PSNs; a request without packets has none.
    pub first: Psn,
    /// See there.
    pub psns: u32,
    /// Response packets that have arrived, of a request that is answered.
    pub responses: u32,
    /// An operation without packets that has been carried out.
    pub done: bool,
    /// It can't be carried out. Completes so when everything before it has completed.
    pub failed: Option<Failure>,
    /// It is not the program's; `index` is then that of the program's next one.
    pub own: Option<Own>,
}

impl SendWr {
    /// A work request that asks for nothing.
    pub fn new(index: u32) -> Self {
        Self {
            index,
            opcode: 0,
            flags: 0,
            imm: 0,
            rkey: 0,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            ah: 0,
            remote_qpn: 0,
            qkey: 0,
            sges: SgList::new(),
            inline: None,
            length: 0,
            first: Psn::new(0),
            psns: 0,
            responses: 0,
            done: false,
            failed: None,
            own: None,
        }
    }

    pub(super) fn end(&self) -> Psn {
        self.first.add(self.psns)
    }

    pub(super) fn is_read(&self) -> bool {
        self.opcode == wr::WR_READ
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.opcode, wr::WR_COMP_SWAP | wr::WR_FETCH_ADD)
    }

    /// Whether it is carried out on this side, without packets.
    pub fn is_local(&self) -> bool {
        matches!(
            self.opcode,
            wr::WR_LOCAL_INV | wr::WR_REG_MR | wr::WR_BIND_MW
        )
    }

    /// Whether the peer answers it with more than an acknowledgement (IBTA 9.7.5.1.2, A19.4).
    pub(super) fn is_answered(&self) -> bool {
        self.is_read()
            || self.is_atomic()
            || matches!(self.opcode, wr::WR_FLUSH | wr::WR_ATOMIC_WRITE)
    }

    /// Whether an answer is to come.
    pub(super) fn awaits_response(&self) -> bool {
        self.is_answered() && self.responses < self.psns
    }

    /// A raw frame: how much payload a segment of it has; 0: it is not cut.
    pub(super) fn mss(&self) -> u16 {
        (self.compare_add >> 32) as u16
    }

    /// Whether fields are zero that must be, in the layout of the work request on this kind of queue pair.
    fn is_well_formed(&self, kind: QpType) -> bool {
        let behind_key = self.swap >> 32 == 0 && self.ah == 0;
        match (kind, self.opcode) {
            (QpType::Ud | QpType::Gsi, _) => self.compare_add >> 32 == 0 && self.swap == 0,
            (QpType::Raw, _) => self.swap == 0,
            (_, wr::WR_BIND_MW) => behind_key && self.remote_qpn == 0,
            (_, wr::WR_FLUSH) => behind_key,
            _ => true,
        }
    }

    /// Bytes that come back in READ responses.
    pub(super) fn landing(&self) -> u32 {
        if self.is_read() { self.length } else { 0 }
    }

    pub(super) fn wc_opcode(&self) -> u8 {
        match self.opcode {
            wr::WR_WRITE | wr::WR_WRITE_IMM => cqe::RDMA_WRITE,
            wr::WR_READ => cqe::RDMA_READ,
            wr::WR_COMP_SWAP => cqe::COMP_SWAP,
            wr::WR_FETCH_ADD => cqe::FETCH_ADD,
            wr::WR_LOCAL_INV => cqe::LOCAL_INV,
            wr::WR_REG_MR => cqe::REG_MR,
            wr::WR_BIND_MW => cqe::BIND_MW,
            wr::WR_FLUSH => cqe::FLUSH,
            wr::WR_ATOMIC_WRITE => cqe::ATOMIC_WRITE,
            wr::WR_RAW if self.mss() > 0 => cqe::TSO,
            _ => cqe::SEND,
        }
    }
}

impl Qp {
    /// The work request at `fetched`, taken apart. Its own format is checked here, its meaning by the caller.
    pub(super) fn read_work_request<M: Dma>(&mut self, mem: &M) -> SendWr {
        let index = self.sq.fetched;
        self.sq.fetched = index.wrapping_add(1);
        let mut wr = SendWr {
            flags: wr::WR_FLAG_SIGNALED,
            ..SendWr::new(index)
        };
        wr.failed = self.parse_work_request(mem, &mut wr).err();
        wr
    }

    fn parse_work_request<M: Dma>(&self, mem: &M, wr: &mut SendWr) -> Result<(), Failure> {
        const FETCH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::WQE_FETCH);
        const FIRST: usize = 64;
        let ring = self.sq.ring.as_ref().ok_or(FETCH)?;
        let entry = ring.entry(wr.index);
        let mut bytes = [0; 1 << wr::MAX_STRIDE_SHIFT];
        let first = bytes.get_mut(..FIRST).ok_or(FETCH)?;
        mem.read(entry, first).map_err(|_| FETCH)?;
        let (wqe, _) = SqWqe::read_from_prefix(&bytes).map_err(|_| FETCH)?;
        wr.opcode = wqe.opcode;
        wr.flags = wqe.flags;
        wr.imm = wqe.imm.get();
        wr.rkey = wqe.rkey.get();
        wr.remote_addr = wqe.remote_addr.get();
        wr.compare_add = wqe.compare_add.get();
        wr.swap = wqe.swap.get();
        wr.ah = wqe.ah.get();
        wr.remote_qpn = wqe.remote_qpn.get();
        wr.qkey = wqe.compare_add.get() as u32;
        const KNOWN: u8 = wr::WR_FLAG_SIGNALED
            | wr::WR_FLAG_SOLICITED
            | wr::WR_FLAG_FENCE
            | wr::WR_FLAG_INLINE
            | wr::WR_FLAG_CSUM;
        let well_formed = wr.is_well_formed(self.config.kind);
        if wqe.reserved0 != 0 || wqe.flags & !KNOWN != 0 || !well_formed {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::RESERVED));
        }
        let data = SQ_WQE_DATA as usize;
        let inline_len = wqe.inline_len.get();
        let is_inline = wqe.flags & wr::WR_FLAG_INLINE != 0;
        let mixed = is_inline && wqe.num_sge > 0;
        if (inline_len > 0 && !is_inline)
            || inline_len > self.config.max_inline
            || (mixed && wqe.opcode != wr::WR_RAW)
        {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
        }
        let sges = data + (inline_len as usize).next_multiple_of(size_of::<Sge>());
        let end = sges + usize::from(wqe.num_sge) * size_of::<Sge>();
        if wqe.num_sge > self.config.max_send_sge || end > ring.stride() {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
        }
        if is_inline {
            wr.inline = Some((entry + data as u64, inline_len));
        }
        if wqe.num_sge > 0 && end > FIRST {
            let rest = bytes.get_mut(FIRST..end).ok_or(FETCH)?;
            mem.read(entry + FIRST as u64, rest).map_err(|_| FETCH)?;
        }
        wr.sges = parse_sges(bytes.get(sges..end).unwrap_or(&[]));
        let named: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        wr.length = u32::try_from(u64::from(inline_len) + named)
            .ok()
            .filter(|len| *len <= MAX_MSG_SIZE)
            .ok_or(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH))?;
        Ok(())
    }

    /// Whether a connected QP can carry out a work request (IBTA 10.7.2.2, 11.4.1.1).
    pub(super) fn check_connected(&self, core: &Core, wr: &SendWr) -> Result<(), Failure> {
        const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
        let rc = self.config.kind.is_reliable();
        let access = match wr.opcode {
            wr::WR_SEND | wr::WR_SEND_IMM | wr::WR_WRITE | wr::WR_WRITE_IMM => Access::LocalRead,
            wr::WR_SEND_INV | wr::WR_ATOMIC_WRITE | wr::WR_FLUSH if rc => Access::LocalRead,
            wr::WR_READ | wr::WR_COMP_SWAP | wr::WR_FETCH_ADD if rc => Access::LocalWrite,
            // The list of a registration has DMA addresses, which only the kernel may name.
            wr::WR_REG_MR if self.config.uctx == 0 => Access::LocalRead,
            wr::WR_LOCAL_INV | wr::WR_BIND_MW => Access::LocalRead,
            _ => return Err(OPCODE),
        };
        let without_data = wr.is_local() || wr.opcode == wr::WR_FLUSH;
        if without_data && (!wr.sges.is_empty() || wr.inline.is_some()) {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
        }
        if wr.flags & wr::WR_FLAG_CSUM != 0 {
            return Err(OPCODE);
        }
        if access == Access::LocalWrite && wr.inline.is_some() {
            return Err(OPCODE);
        }
        if wr.is_answered() && self.attr.max_rd_atomic == 0 {
            return Err(OPCODE);
        }
        let word = wr.is_atomic() || wr.opcode == wr::WR_ATOMIC_WRITE;
        if word && wr.length != 8 {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH));
        }
        for sge in wr.sges.iter().filter(|sge| sge.len > 0) {
            core.mkeys
                .check(sge.lkey, self.bearer_of(wr), sge.addr, sge.len, access)
                .map_err(Failure::local)?;
        }
        Ok(())
    }
}
