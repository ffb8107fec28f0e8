//! Send work requests: the entry of the ring, parsed once into its operation.

use faultline_abi::cqe;
use faultline_abi::wqe::Sge;
use faultline_abi::wqe::{
    self as wr, FLUSH_GLOBAL, FLUSH_PERSISTENT, SQ_WQE_DATA, SqWqe, WR_FLAG_CSUM, WR_FLAG_FENCE,
    WR_FLAG_INLINE, WR_FLAG_SIGNALED, WR_FLAG_SOLICITED,
};
use faultline_wire::Feth;
use faultline_wire::bth::Psn;
use zerocopy::FromBytes;

use super::endpoint::Endpoint;
use super::types::{Failure, QpConfig, QpType};
use crate::config::MAX_MSG_SIZE;
use crate::dma::Dma;
use crate::mkey::{Access, Bind, KeyRange, KeyUser, Register};
use crate::number::low32;
use crate::receive_queue::{SgList, parse_sges};
use crate::ring::Ring;
use crate::tag::message::HEADERS;

const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
const RESERVED: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::RESERVED);
const FETCH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::WQE_FETCH);
const SGE_COUNT: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT);
const LENGTH: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);
const OFFLOAD: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OFFLOAD);

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// The content of the last packet of a SEND besides the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendExtra {
    Nothing,
    /// Immediate data.
    Immediate(u32),
    /// A key of the peer that is invalidated.
    Invalidate(u32),
}

/// The operands of an atomic operation (IBTA 9.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramDest {
    /// Address handle.
    pub ah: u32,
    /// Destination QP number.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
}

/// Offload of a raw frame that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offload {
    Nothing,
    /// Fills in all checksums.
    Checksums,
    /// Fills in one checksum: of the bytes from `start` on, at `start + offset`.
    Partial {
        start: usize,
        offset: usize,
    },
    /// Segments a TCP packet with `header_len` bytes of headers into frames with `mss` bytes of payload.
    Segments {
        mss: u16,
        header_len: usize,
    },
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendOp {
    /// SEND on a connection.
    Send(SendExtra),
    /// SEND of a datagram, with immediate data if there are any.
    Datagram { to: DatagramDest, imm: Option<u32> },
    /// RDMA WRITE, with immediate data if there are any.
    Write { to: Remote, imm: Option<u32> },
    /// RDMA READ. iWARP: after it a local key is invalidated, if it names one.
    Read {
        from: Remote,
        invalidate: Option<u32>,
    },
    /// Atomic operation on eight bytes.
    Atomic { at: Remote, op: AtomicOp },
    /// Atomic WRITE of eight bytes (IBTA A19.4.2).
    AtomicWrite { to: Remote },
    /// FLUSH (IBTA A19.4.1).
    Flush { at: Remote, len: u32, feth: Feth },
    /// Fast registration. Local.
    FastReg(Register),
    /// Binds a memory window. Local.
    BindMw(Bind),
    /// Invalidates a key. Local.
    LocalInv { key: u32 },
    /// A raw Ethernet frame.
    Raw(Offload),
}

impl SendOp {
    /// Parses the operation of an entry of the ring of a queue pair of this type. Fields that the operation does not
    /// use must be zero where the manual says so.
    #[inline]
    fn parse(kind: QpType, wqe: &SqWqe) -> Result<Self, Failure> {
        match kind {
            QpType::Ud | QpType::Gsi => Self::parse_datagram(wqe),
            QpType::Raw => Self::parse_raw(wqe),
            _ if kind.is_reliable() || is_of_uc(wqe.opcode) => Self::parse_connected(wqe),
            _ => Err(OPCODE),
        }
    }

    fn parse_datagram(wqe: &SqWqe) -> Result<Self, Failure> {
        // `struct faultline_ud_seg` is in the place of `compare_add` and `swap`.
        if wqe.compare_add.get() >> 32 != 0 || wqe.swap.get() != 0 {
            return Err(RESERVED);
        }
        let to = DatagramDest {
            ah: wqe.ah.get(),
            qpn: wqe.remote_qpn.get() & 0xff_ffff,
            qkey: low32(wqe.compare_add.get()),
        };
        match wqe.opcode {
            wr::WR_SEND => Ok(Self::Datagram { to, imm: None }),
            wr::WR_SEND_IMM => Ok(Self::Datagram {
                to,
                imm: Some(immediate(wqe)),
            }),
            _ => Err(OPCODE),
        }
    }

    fn parse_raw(wqe: &SqWqe) -> Result<Self, Failure> {
        if wqe.swap.get() != 0 {
            return Err(RESERVED);
        }
        match wqe.opcode {
            wr::WR_RAW => Ok(Self::Raw(Offload::parse(wqe)?)),
            _ => Err(OPCODE),
        }
    }

    #[inline]
    fn parse_connected(wqe: &SqWqe) -> Result<Self, Failure> {
        let remote = Remote {
            addr: wqe.remote_addr.get(),
            rkey: wqe.rkey.get(),
        };
        let high_half = wqe.swap.get() >> 32;
        Ok(match wqe.opcode {
            wr::WR_SEND => Self::Send(SendExtra::Nothing),
            wr::WR_SEND_IMM => Self::Send(SendExtra::Immediate(immediate(wqe))),
            wr::WR_SEND_INV => Self::Send(SendExtra::Invalidate(wqe.imm.get())),
            wr::WR_WRITE => Self::Write {
                to: remote,
                imm: None,
            },
            wr::WR_WRITE_IMM => Self::Write {
                to: remote,
                imm: Some(immediate(wqe)),
            },
            wr::WR_READ => Self::Read {
                from: remote,
                invalidate: None,
            },
            wr::WR_READ_INV => Self::Read {
                from: remote,
                invalidate: Some(wqe.imm.get()),
            },
            wr::WR_COMP_SWAP => Self::Atomic {
                at: remote,
                op: AtomicOp::CompareSwap {
                    compare: wqe.compare_add.get(),
                    swap: wqe.swap.get(),
                },
            },
            wr::WR_FETCH_ADD => Self::Atomic {
                at: remote,
                op: AtomicOp::FetchAdd {
                    add: wqe.compare_add.get(),
                },
            },
            wr::WR_ATOMIC_WRITE => Self::AtomicWrite { to: remote },
            // `struct faultline_flush_wqe`.
            wr::WR_FLUSH if high_half != 0 || wqe.ah.get() != 0 => return Err(RESERVED),
            wr::WR_FLUSH => Self::Flush {
                at: remote,
                len: u32::try_from(wqe.compare_add.get()).map_err(|_| RESERVED)?,
                feth: flush_header(wqe.imm.get(), low32(wqe.swap.get())).ok_or(RESERVED)?,
            },
            // `struct faultline_reg_mr_wqe`.
            wr::WR_REG_MR => Self::FastReg(Register {
                key: wqe.rkey.get(),
                access: wqe.imm.get(),
                iova: wqe.remote_addr.get(),
                length: wqe.compare_add.get(),
                list: wqe.swap.get(),
                num_pages: wqe.ah.get(),
                // No page has 2^255 bytes either.
                page_shift: u8::try_from(wqe.remote_qpn.get()).unwrap_or(u8::MAX),
            }),
            // `struct faultline_bind_mw_wqe`.
            wr::WR_BIND_MW if high_half != 0 || wqe.ah.get() != 0 || wqe.remote_qpn.get() != 0 => {
                return Err(RESERVED);
            }
            wr::WR_BIND_MW => Self::BindMw(Bind {
                rkey: wqe.rkey.get(),
                lkey: wqe.imm.get(),
                access: low32(wqe.swap.get()),
                addr: wqe.remote_addr.get(),
                length: wqe.compare_add.get(),
            }),
            wr::WR_LOCAL_INV => Self::LocalInv {
                key: wqe.rkey.get(),
            },
            _ => return Err(OPCODE),
        })
    }

    /// Returns true if it is executed locally, without packets.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self,
            Self::FastReg(_) | Self::BindMw(_) | Self::LocalInv { .. }
        )
    }

    /// Whether the peer answers it with more than an acknowledgement (IBTA 9.7.5.1.2, A19.4).
    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::Atomic { .. } | Self::Flush { .. } | Self::AtomicWrite { .. }
        )
    }

    /// Whether its response is written to local memory.
    pub(crate) fn writes_locally(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// The opcode of its completion.
    pub(crate) fn completion_opcode(&self) -> u8 {
        match self {
            Self::Send(_) | Self::Datagram { .. } => cqe::SEND,
            Self::Write { .. } => cqe::RDMA_WRITE,
            Self::Read { .. } => cqe::RDMA_READ,
            Self::Atomic {
                op: AtomicOp::CompareSwap { .. },
                ..
            } => cqe::COMP_SWAP,
            Self::Atomic {
                op: AtomicOp::FetchAdd { .. },
                ..
            } => cqe::FETCH_ADD,
            Self::AtomicWrite { .. } => cqe::ATOMIC_WRITE,
            Self::Flush { .. } => cqe::FLUSH,
            Self::FastReg(_) => cqe::REG_MR,
            Self::BindMw(_) => cqe::BIND_MW,
            Self::LocalInv { .. } => cqe::LOCAL_INV,
            Self::Raw(Offload::Segments { .. }) => cqe::TSO,
            Self::Raw(_) => cqe::SEND,
        }
    }
}

impl Offload {
    /// From `struct faultline_raw_seg`, which is in the place of `compare_add` and `swap`.
    fn parse(wqe: &SqWqe) -> Result<Self, Failure> {
        let seg = wqe.compare_add.get();
        let field = |shift: u32| ((seg >> shift) & 0xffff) as u16;
        let [start, offset, mss, header_len] = [0, 16, 32, 48].map(field);
        let wants_csum = wqe.flags & WR_FLAG_CSUM != 0;
        match (wants_csum, mss) {
            (false, 0) if seg == 0 => Ok(Self::Nothing),
            (true, 0) if header_len == 0 => match (start, offset) {
                (0, 0) => Ok(Self::Checksums),
                (0, _) => Err(OFFLOAD),
                _ => Ok(Self::Partial {
                    start: usize::from(start),
                    offset: usize::from(offset),
                }),
            },
            // Every segment gets new checksums, so `start` and `offset` are allowed and not used.
            (_, 1..) => Ok(Self::Segments {
                mss,
                header_len: usize::from(header_len),
            }),
            _ => Err(OFFLOAD),
        }
    }
}

/// True if unreliable connections have this operation, too. Keys are changed on any connection.
fn is_of_uc(opcode: u8) -> bool {
    matches!(
        opcode,
        wr::WR_SEND
            | wr::WR_SEND_IMM
            | wr::WR_WRITE
            | wr::WR_WRITE_IMM
            | wr::WR_LOCAL_INV
            | wr::WR_REG_MR
            | wr::WR_BIND_MW
    )
}

/// Immediate data are in wire order in the entry.
fn immediate(wqe: &SqWqe) -> u32 {
    u32::from_be_bytes(wqe.imm.get().to_le_bytes())
}

/// The header of a FLUSH, if placement and selectivity are known.
fn flush_header(placement: u32, selectivity: u32) -> Option<Feth> {
    let known = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    let valid = placement != 0 && placement & !known == 0 && selectivity <= 1;
    valid.then_some(Feth {
        placement: (placement & 0xff) as u8,
        selectivity: (selectivity & 0xff) as u8,
    })
}

/// A work request that the device has created.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceRequest {
    /// Reads the data of a rendezvous into a place of the tag list; `pd` is the protection domain of the SRQ.
    Read {
        /// The place.
        slot: u32,
        pd: u32,
    },
    /// Reports to the sender that its data has been read.
    Fin([u8; HEADERS]),
}

/// A work request that has been read and has not completed.
#[derive(Debug)]
pub(crate) struct SendWr {
    /// Running number. Of a request of the device: that of the program's next one.
    pub index: u32,
    /// The operation. `None`: the entry is invalid, and `failed` has the reason.
    pub op: Option<SendOp>,
    /// `WR_FLAG_*`.
    pub flags: u8,
    /// XRC: the SRQ of the peer that the request is for.
    pub remote_srqn: u32,
    /// Local memory, after the inline data.
    pub sges: SgList,
    /// DMA address and length of inline data.
    pub inline: Option<(u64, u32)>,
    /// Bytes of the message.
    pub length: u32,
    /// First PSN.
    pub first: Psn,
    /// Number of PSNs. Zero if it has no packets.
    pub psns: u32,
    /// Number of the message in the connection, if it has packets.
    pub number: Psn,
    /// Response packets that have arrived, of a request that is answered.
    pub responses: u32,
    /// An executed local operation.
    pub done: bool,
    /// It cannot be executed, and completes with this failure after all earlier ones.
    pub failed: Option<Failure>,
    /// Set if the device has created it, instead of the program.
    pub device: Option<DeviceRequest>,
}

impl SendWr {
    /// A request without data.
    #[inline]
    pub(crate) fn new(index: u32, op: Option<SendOp>) -> Self {
        Self {
            index,
            op,
            flags: 0,
            remote_srqn: 0,
            sges: SgList::new(),
            inline: None,
            length: 0,
            first: Psn::new(0),
            psns: 0,
            number: Psn::new(0),
            responses: 0,
            done: false,
            failed: None,
            device: None,
        }
    }

    /// Reads entry `index` of the ring. Its format is checked here; whether the queue pair can carry it out is checked by
    /// the requester.
    pub(crate) fn read<M: Dma>(
        ring: Option<&Ring>,
        index: u32,
        config: &QpConfig,
        mem: &M,
    ) -> Self {
        let mut request = Self {
            flags: WR_FLAG_SIGNALED,
            ..Self::new(index, None)
        };
        let parsed = match ring {
            Some(ring) => request.parse(ring, config, mem),
            None => Err(FETCH),
        };
        request.failed = parsed.err();
        request
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "inline data and the number of SGEs are limited, and an entry lies within its ring, which does not wrap"
    )]
    fn parse<M: Dma>(&mut self, ring: &Ring, config: &QpConfig, mem: &M) -> Result<(), Failure> {
        const KNOWN: u8 =
            WR_FLAG_SIGNALED | WR_FLAG_SOLICITED | WR_FLAG_FENCE | WR_FLAG_INLINE | WR_FLAG_CSUM;
        /// Bytes of the first access: all of nearly all entries.
        const FIRST: usize = 64;
        let entry = ring.entry(self.index);
        let mut first = [0; FIRST];
        mem.read(entry, &mut first).map_err(|_| FETCH)?;
        // Not copied: a wide load of bytes that were just stored in parts waits for all of these stores.
        let (wqe, _) = SqWqe::ref_from_prefix(&first).map_err(|_| FETCH)?;
        self.flags = wqe.flags;
        self.remote_srqn = wqe.remote_qpn.get() & 0xff_ffff;
        if wqe.reserved0 != 0 || wqe.flags & !KNOWN != 0 {
            return Err(RESERVED);
        }
        // An invalid operation is reported after all other errors.
        let parsed = SendOp::parse(config.kind, wqe).map(|op| self.op = Some(op));
        let data = SQ_WQE_DATA as usize;
        let inline_len = wqe.inline_len.get();
        let is_inline = wqe.flags & WR_FLAG_INLINE != 0;
        let mixed = is_inline && wqe.num_sge > 0;
        if (inline_len > 0 && !is_inline)
            || inline_len > config.max_inline
            || (mixed && wqe.opcode != wr::WR_RAW)
        {
            return Err(SGE_COUNT);
        }
        let sges = data + (inline_len as usize).next_multiple_of(size_of::<Sge>());
        let end = sges + usize::from(wqe.num_sge) * size_of::<Sge>();
        if wqe.num_sge > config.max_send_sge || end > ring.stride() {
            return Err(SGE_COUNT);
        }
        if is_inline {
            self.inline = Some((entry + data as u64, inline_len));
        }
        if wqe.num_sge == 0 {
            // Nearly all that have inline data.
        } else if end > FIRST {
            let mut whole = [0; 1 << wr::MAX_STRIDE_SHIFT];
            let (start, rest) = whole.split_at_mut_checked(FIRST).ok_or(FETCH)?;
            start.copy_from_slice(&first);
            let rest = rest.get_mut(..end - FIRST).ok_or(FETCH)?;
            mem.read(entry + FIRST as u64, rest).map_err(|_| FETCH)?;
            self.sges = parse_sges(whole.get(sges..end).unwrap_or(&[]));
        } else {
            self.sges = parse_sges(first.get(sges..end).unwrap_or(&[]));
        }
        let named: u64 = self.sges.iter().map(|sge| u64::from(sge.len)).sum();
        self.length = u32::try_from(u64::from(inline_len) + named)
            .ok()
            .filter(|len| *len <= MAX_MSG_SIZE)
            .ok_or(LENGTH)?;
        parsed
    }

    /// PSN after its last one.
    pub(crate) fn end(&self) -> Psn {
        self.first.add(self.psns)
    }

    pub(crate) fn is_local(&self) -> bool {
        self.op.as_ref().is_some_and(SendOp::is_local)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, Some(SendOp::Read { .. }))
    }

    /// The local key that it invalidates when its response has arrived.
    pub(crate) fn invalidates(&self) -> Option<u32> {
        match self.op {
            Some(SendOp::Read { invalidate, .. }) => invalidate,
            _ => None,
        }
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.op, Some(SendOp::Atomic { .. }))
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.op.as_ref().is_some_and(SendOp::is_answered)
    }

    /// Returns true if it takes a receive request of the peer.
    pub(crate) fn takes_receive_request(&self) -> bool {
        matches!(
            self.op,
            Some(SendOp::Send(_) | SendOp::Write { imm: Some(_), .. })
        )
    }

    /// Whether a response is outstanding.
    pub(crate) fn awaits_response(&self) -> bool {
        self.is_answered() && self.responses < self.psns
    }

    /// The opcode of its completion.
    pub(crate) fn completion_opcode(&self) -> u8 {
        self.op.map_or(cqe::SEND, |op| op.completion_opcode())
    }

    /// Bytes of the READ responses.
    pub(crate) fn read_len(&self) -> u32 {
        if self.is_read() { self.length } else { 0 }
    }

    /// Whether this flag is set.
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl SendWr {
    /// Protection domain and queue pair for which the local keys of its buffers are checked.
    pub(crate) fn key_user(&self, qp: &Endpoint) -> KeyUser {
        match self.device {
            Some(DeviceRequest::Read { pd, .. }) => qp.key_user_in(pd),
            _ => qp.key_user(),
        }
    }

    /// The accesses to its buffers.
    pub(crate) fn key_ranges(&self, qp: &Endpoint) -> impl Iterator<Item = KeyRange> {
        let user = self.key_user(qp);
        let access = match self.op.as_ref().is_some_and(SendOp::writes_locally) {
            true => Access::LocalWrite,
            false => Access::LocalRead,
        };
        let sges = self.sges.iter().filter(|sge| sge.len > 0);
        sges.map(move |sge| KeyRange {
            key: sge.lkey,
            user,
            va: sge.addr,
            len: sge.len,
            access,
        })
    }
}
