//! Admin commands as types: the 128-byte entry of the ring is parsed once.
//!
//! Parsing selects the body by the opcode and makes the common checks: the reserved fields of the header, and that the bytes behind the
//! body are zero. Fields of the body are checked by the function that executes the command, in an order that decides which status is
//! reported. A command without a body ignores the bytes of the body.

use faultline_abi::Status;
use faultline_abi::admin as abi;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey};
use faultline_abi::iwarp::{Accept, Connect, CreateListener, QueryConnection};
use faultline_abi::qp::QpAttr;
use faultline_abi::steering::{
    CreateFlow, CreateRssQp, CreateRwqIndTable, CreateWq, Mcast, ModifyWq,
};
use faultline_abi::tag::CreateTmSrq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const BODY: usize = 112;

/// A parsed admin command: one variant for each opcode, with the number of its object, if it has one, and its body.
/// Shapes and fields are described in `firmware/abi/src/admin.rs`.
#[derive(Clone, Debug)]
pub(super) enum AdminCmd {
    Nop,
    AllocUctx(abi::AllocUctx),
    DeallocUctx { page: u32 },
    CreateEq(abi::CreateEq),
    DestroyEq { eqn: u32 },
    AllocPd(abi::AllocPd),
    DeallocPd { pd: u32 },
    AllocXrcd,
    DeallocXrcd { xrcd: u32 },
    CreateMkey(abi::CreateMkey),
    ModifyMkey { key: u32, body: abi::CreateMkey },
    DestroyMkey { key: u32 },
    CreateCq(abi::CreateCq),
    DestroyCq { cqn: u32 },
    ModifyCq { cqn: u32, body: abi::ModifyCq },
    ResizeCq { cqn: u32, body: abi::ResizeCq },
    CreateSrq(abi::CreateSrq),
    CreateTmSrq(CreateTmSrq),
    DestroySrq { srqn: u32 },
    ResizeSrq { srqn: u32, body: abi::ResizeSrq },
    ModifySrq { srqn: u32, body: abi::ModifySrq },
    QuerySrq { srqn: u32 },
    CreateQp(abi::CreateQp),
    DestroyQp { qpn: u32 },
    ModifyQp { qpn: u32, body: QpAttr },
    QueryQp { qpn: u32 },
    CreateAh(abi::CreateAh),
    DestroyAh { ah: u32 },
    SetGid { index: u32, body: abi::SetGid },
    SetNetdev(abi::SetNetdev),
    SetMacFilter(abi::SetMacFilter),
    AttachMcast { qpn: u32, body: Mcast },
    DetachMcast { qpn: u32, body: Mcast },
    CreateFlow(CreateFlow),
    DestroyFlow { flow: u32 },
    CreateWq(CreateWq),
    DestroyWq { wqn: u32 },
    ModifyWq { wqn: u32, body: ModifyWq },
    CreateRwqIndTable(CreateRwqIndTable),
    DestroyRwqIndTable { table: u32 },
    CreateRssQp(CreateRssQp),
    QueryCounters { set: u32, body: abi::QueryCounters },
    AllocCounters,
    DeallocCounters { set: u32 },
    BindCounters { qpn: u32, body: abi::BindCounters },
    AllocDm(AllocDm),
    DeallocDm { dm: u32 },
    CreateDmMkey(CreateDmMkey),
    CreateListener(CreateListener),
    DestroyListener { listener: u32 },
    Connect { qpn: u32, body: Connect },
    Accept { qpn: u32, body: Accept },
    Reject { request: u32, body: Accept },
    QueryRequest { request: u32, body: QueryConnection },
    QueryConnection { qpn: u32, body: QueryConnection },
}

impl AdminCmd {
    /// Parses an entry of the ring. Unknown opcodes are [`Status::BadOpcode`].
    pub(super) fn parse(raw: &abi::AdminCmd) -> Result<Self, Status> {
        if raw.hdr.reserved0.get() != 0 || raw.hdr.reserved1.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let handle = raw.hdr.handle.get();
        Ok(match raw.hdr.opcode.get() {
            abi::NOP => Self::Nop,
            abi::ALLOC_UCTX => Self::AllocUctx(body(raw)?),
            abi::DEALLOC_UCTX => Self::DeallocUctx { page: handle },
            abi::CREATE_EQ => Self::CreateEq(body(raw)?),
            abi::DESTROY_EQ => Self::DestroyEq { eqn: handle },
            abi::ALLOC_PD => Self::AllocPd(body(raw)?),
            abi::DEALLOC_PD => Self::DeallocPd { pd: handle },
            abi::ALLOC_XRCD => Self::AllocXrcd,
            abi::DEALLOC_XRCD => Self::DeallocXrcd { xrcd: handle },
            abi::CREATE_MKEY => Self::CreateMkey(body(raw)?),
            abi::MODIFY_MKEY => Self::ModifyMkey {
                key: handle,
                body: body(raw)?,
            },
            abi::DESTROY_MKEY => Self::DestroyMkey { key: handle },
            abi::CREATE_CQ => Self::CreateCq(body(raw)?),
            abi::DESTROY_CQ => Self::DestroyCq { cqn: handle },
            abi::MODIFY_CQ => Self::ModifyCq {
                cqn: handle,
                body: body(raw)?,
            },
            abi::RESIZE_CQ => Self::ResizeCq {
                cqn: handle,
                body: body(raw)?,
            },
            abi::CREATE_SRQ => Self::CreateSrq(body(raw)?),
            abi::CREATE_TM_SRQ => Self::CreateTmSrq(body(raw)?),
            abi::DESTROY_SRQ => Self::DestroySrq { srqn: handle },
            abi::RESIZE_SRQ => Self::ResizeSrq {
                srqn: handle,
                body: body(raw)?,
            },
            abi::MODIFY_SRQ => Self::ModifySrq {
                srqn: handle,
                body: body(raw)?,
            },
            abi::QUERY_SRQ => Self::QuerySrq { srqn: handle },
            abi::CREATE_QP => Self::CreateQp(body(raw)?),
            abi::DESTROY_QP => Self::DestroyQp { qpn: handle },
            abi::MODIFY_QP => Self::ModifyQp {
                qpn: handle,
                body: body(raw)?,
            },
            abi::QUERY_QP => Self::QueryQp { qpn: handle },
            abi::CREATE_AH => Self::CreateAh(body(raw)?),
            abi::DESTROY_AH => Self::DestroyAh { ah: handle },
            abi::SET_GID => Self::SetGid {
                index: handle,
                body: body(raw)?,
            },
            abi::SET_NETDEV => Self::SetNetdev(body(raw)?),
            abi::SET_MAC_FILTER => Self::SetMacFilter(body(raw)?),
            abi::ATTACH_MCAST => Self::AttachMcast {
                qpn: handle,
                body: body(raw)?,
            },
            abi::DETACH_MCAST => Self::DetachMcast {
                qpn: handle,
                body: body(raw)?,
            },
            abi::CREATE_FLOW => Self::CreateFlow(body(raw)?),
            abi::DESTROY_FLOW => Self::DestroyFlow { flow: handle },
            abi::CREATE_WQ => Self::CreateWq(body(raw)?),
            abi::DESTROY_WQ => Self::DestroyWq { wqn: handle },
            abi::MODIFY_WQ => Self::ModifyWq {
                wqn: handle,
                body: body(raw)?,
            },
            abi::CREATE_RWQ_IND_TABLE => Self::CreateRwqIndTable(body(raw)?),
            abi::DESTROY_RWQ_IND_TABLE => Self::DestroyRwqIndTable { table: handle },
            abi::CREATE_RSS_QP => Self::CreateRssQp(body(raw)?),
            abi::QUERY_COUNTERS => Self::QueryCounters {
                set: handle,
                body: body(raw)?,
            },
            abi::ALLOC_COUNTERS => Self::AllocCounters,
            abi::DEALLOC_COUNTERS => Self::DeallocCounters { set: handle },
            abi::BIND_COUNTERS => Self::BindCounters {
                qpn: handle,
                body: body(raw)?,
            },
            abi::ALLOC_DM => Self::AllocDm(body(raw)?),
            abi::DEALLOC_DM => Self::DeallocDm { dm: handle },
            abi::CREATE_DM_MKEY => Self::CreateDmMkey(body(raw)?),
            abi::CREATE_LISTENER..=abi::QUERY_CONNECTION => Self::parse_iwarp(raw)?,
            _ => return Err(Status::BadOpcode),
        })
    }

    /// Parses a command of an iWARP adapter.
    fn parse_iwarp(raw: &abi::AdminCmd) -> Result<Self, Status> {
        let handle = raw.hdr.handle.get();
        Ok(match raw.hdr.opcode.get() {
            abi::CREATE_LISTENER => Self::CreateListener(body(raw)?),
            abi::DESTROY_LISTENER => Self::DestroyListener { listener: handle },
            abi::CONNECT => Self::Connect {
                qpn: handle,
                body: body(raw)?,
            },
            abi::ACCEPT => Self::Accept {
                qpn: handle,
                body: body(raw)?,
            },
            abi::REJECT => Self::Reject {
                request: handle,
                body: body(raw)?,
            },
            abi::QUERY_REQUEST => Self::QueryRequest {
                request: handle,
                body: body(raw)?,
            },
            abi::QUERY_CONNECTION => Self::QueryConnection {
                qpn: handle,
                body: body(raw)?,
            },
            _ => return Err(Status::BadOpcode),
        })
    }
}

/// The body of a command as the structure of its opcode. The bytes behind that structure must be zero.
fn body<T: FromBytes + KnownLayout + Immutable>(raw: &abi::AdminCmd) -> Result<T, Status> {
    let (body, rest) = T::read_from_prefix(&raw.body).map_err(|_| Status::BadParameter)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Status::ReservedNotZero);
    }
    Ok(body)
}

/// The result of a command that has been executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Handle of the completion. None: that of the command.
    pub handle: Option<u32>,
    /// Body of the completion.
    pub body: [u8; BODY],
}

impl Answer {
    /// A completion that returns the handle of the command.
    pub(super) fn done((): ()) -> Self {
        Self {
            handle: None,
            body: [0; BODY],
        }
    }

    /// A completion that returns the number of an object.
    pub(super) fn object(handle: u32) -> Self {
        Self {
            handle: Some(handle),
            body: [0; BODY],
        }
    }

    /// A completion that returns the number of an object and a structure.
    pub(super) fn with_value<T: IntoBytes + Immutable>(handle: u32, value: &T) -> Self {
        let mut answer = Self::object(handle);
        for (to, from) in answer.body.iter_mut().zip(value.as_bytes()) {
            *to = *from;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_abi::{U16, U32};

    fn raw(opcode: u16) -> abi::AdminCmd {
        let mut raw = abi::AdminCmd::default();
        raw.hdr.opcode = U16::new(opcode);
        raw.hdr.handle = U32::new(7);
        raw
    }

    #[test]
    fn every_opcode_of_the_abi_is_parsed_and_no_other() {
        let known: Vec<u16> = abi::OPCODES
            .constants
            .iter()
            .map(|c| u16::try_from(c.value).unwrap())
            .collect();
        for opcode in 0..=u16::MAX {
            let parsed = AdminCmd::parse(&raw(opcode));
            match known.contains(&opcode) {
                true => assert!(parsed.is_ok(), "{opcode:#x}"),
                false => assert_eq!(parsed.err(), Some(Status::BadOpcode), "{opcode:#x}"),
            }
        }
    }

    #[test]
    fn the_header_is_checked_before_the_opcode_and_the_bytes_behind_the_body_are_zero() {
        let mut unknown = raw(u16::MAX);
        unknown.hdr.reserved1 = U32::new(1);
        assert_eq!(
            AdminCmd::parse(&unknown).err(),
            Some(Status::ReservedNotZero)
        );
        let mut long = raw(abi::MODIFY_CQ);
        let size = size_of::<abi::ModifyCq>();
        long.body[size - 1] = 1;
        assert!(matches!(
            AdminCmd::parse(&long),
            Ok(AdminCmd::ModifyCq { cqn: 7, .. })
        ));
        long.body[size] = 1;
        assert_eq!(AdminCmd::parse(&long).err(), Some(Status::ReservedNotZero));
        // A command without a body.
        let mut destroy = raw(abi::DESTROY_CQ);
        destroy.body[0] = 1;
        assert!(matches!(
            AdminCmd::parse(&destroy),
            Ok(AdminCmd::DestroyCq { cqn: 7 })
        ));
    }
}
