//! The C header, written from the layouts of this crate.

use std::fmt::Write;

use crate::{Constant, ConstantGroup, StructLayout};
use crate::{admin, caps, cqe, device_memory, doorbell, event, iwarp, qp, regs};
use crate::{status, steering, tag, translation, wqe};

/// Every group of constants, in the order of the header.
pub const GROUPS: &[ConstantGroup] = &[
    regs::PCI,
    regs::OFFSETS,
    regs::STATUS_BITS,
    regs::CONTROL_BITS,
    regs::FATAL_CODES,
    regs::FEATURE_BITS,
    status::STATUSES,
    doorbell::FIELDS,
    doorbell::TYPES,
    caps::ODP_BITS,
    caps::FEATURES,
    qp::TYPES,
    qp::STATES,
    qp::ATTRS,
    qp::ACCESS,
    qp::FAULT_POLICIES,
    wqe::OPCODES,
    wqe::FLAGS,
    wqe::GEOMETRY,
    cqe::OPCODES,
    cqe::STATUSES,
    cqe::FLAGS,
    cqe::VENDOR_ERRS,
    event::KINDS,
    event::FAULT_BITS,
    translation::OPCODES,
    translation::FLAGS,
    translation::ENTRY,
    admin::OPCODES,
    admin::EQ_FLAGS,
    admin::MKEY_FLAGS,
    admin::QP_FLAGS,
    admin::NETDEV_FLAGS,
    admin::COUNTERS,
    iwarp::FLAGS,
    iwarp::CLOSE_REASONS,
    iwarp::GEOMETRY,
    steering::FLOW_KINDS,
    steering::FLOW_FLAGS,
    steering::FLOW_HEADERS,
    steering::WQ_STATES,
    steering::HASH_FIELDS,
    tag::OPS,
    tag::OP_FLAGS,
    tag::HEADERS,
    tag::CQE_FLAGS,
    tag::GEOMETRY,
];

/// Every structure. A structure follows the structures that it contains.
pub const STRUCTS: &[StructLayout] = &[
    doorbell::DoorbellPage::LAYOUT,
    caps::Caps::LAYOUT,
    qp::AddressVector::LAYOUT,
    qp::QpAttr::LAYOUT,
    wqe::Sge::LAYOUT,
    wqe::SqWqe::LAYOUT,
    wqe::RegMrWqe::LAYOUT,
    wqe::BindMwWqe::LAYOUT,
    wqe::FlushWqe::LAYOUT,
    wqe::UdSeg::LAYOUT,
    wqe::RawSeg::LAYOUT,
    wqe::RqWqe::LAYOUT,
    wqe::WqRecord::LAYOUT,
    wqe::CqRecord::LAYOUT,
    cqe::Cqe::LAYOUT,
    event::Eqe::LAYOUT,
    translation::TqCmd::LAYOUT,
    translation::TqComp::LAYOUT,
    admin::RingDesc::LAYOUT,
    admin::AdminHdr::LAYOUT,
    admin::AdminCmd::LAYOUT,
    admin::AdminComp::LAYOUT,
    admin::CreateEq::LAYOUT,
    admin::CreateMkey::LAYOUT,
    admin::CreateCq::LAYOUT,
    admin::ResizeCq::LAYOUT,
    admin::AllocUctx::LAYOUT,
    admin::AllocPd::LAYOUT,
    admin::CreateSrq::LAYOUT,
    admin::ModifySrq::LAYOUT,
    admin::QuerySrq::LAYOUT,
    admin::CreateQp::LAYOUT,
    admin::CreateAh::LAYOUT,
    admin::SetGid::LAYOUT,
    admin::SetNetdev::LAYOUT,
    admin::SetMacFilter::LAYOUT,
    admin::MacFilterEntry::LAYOUT,
    admin::QueryCounters::LAYOUT,
    steering::Mcast::LAYOUT,
    steering::FlowFields::LAYOUT,
    steering::CreateFlow::LAYOUT,
    admin::BindCounters::LAYOUT,
    admin::ModifyCq::LAYOUT,
    admin::ResizeSrq::LAYOUT,
    device_memory::AllocDm::LAYOUT,
    device_memory::DmPlace::LAYOUT,
    device_memory::CreateDmMkey::LAYOUT,
    steering::CreateWq::LAYOUT,
    steering::ModifyWq::LAYOUT,
    steering::CreateRwqIndTable::LAYOUT,
    steering::CreateRssQp::LAYOUT,
    iwarp::ConnectionPath::LAYOUT,
    iwarp::ConnectionParam::LAYOUT,
    iwarp::CreateListener::LAYOUT,
    iwarp::Connect::LAYOUT,
    iwarp::Accept::LAYOUT,
    iwarp::QueryConnection::LAYOUT,
    iwarp::ConnectionInfo::LAYOUT,
    tag::CreateTmSrq::LAYOUT,
    tag::TmOp::LAYOUT,
    tag::Tmh::LAYOUT,
    tag::Rvh::LAYOUT,
];

/// The text of `guest-driver/include/faultline_abi.h`.
pub fn c_header() -> String {
    let mut out = String::from(
        "/* SPDX-License-Identifier: (GPL-2.0 OR BSD-3-Clause) OR Apache-2.0 OR MIT */\n\
         /*\n * Contract between the Faultline device and its drivers.\n *\n \
         * Generated from firmware/abi; do not edit. See docs/hardware-manual.md.\n */\n\
         #ifndef FAULTLINE_ABI_H\n#define FAULTLINE_ABI_H\n\n#include <linux/types.h>\n\n",
    );
    let versions = [
        Constant {
            name: "FAULTLINE_ABI_VERSION",
            value: crate::ABI_VERSION as u64,
            doc: &[],
        },
        Constant {
            name: "FAULTLINE_MAGIC",
            value: crate::MAGIC as u64,
            doc: &[],
        },
    ];
    for constant in versions {
        write_constant(&mut out, constant);
    }
    for group in GROUPS {
        out.push('\n');
        comment(&mut out, "", group.doc);
        for constant in group.constants {
            write_constant(&mut out, *constant);
        }
    }
    for layout in STRUCTS {
        write_struct(&mut out, layout);
    }
    out.push_str("\n#endif /* FAULTLINE_ABI_H */\n");
    out
}

fn write_constant(out: &mut String, constant: Constant) {
    comment(out, "", constant.doc);
    let Constant { name, value, .. } = constant;
    let _ = if value > u64::from(u32::MAX) {
        writeln!(out, "#define {name} 0x{value:x}ULL")
    } else if value > 9 {
        writeln!(out, "#define {name} 0x{value:x}")
    } else {
        writeln!(out, "#define {name} {value}")
    };
}

fn write_struct(out: &mut String, layout: &StructLayout) {
    out.push('\n');
    comment(out, "", layout.doc);
    let _ = writeln!(out, "struct {} {{", layout.name);
    for field in layout.fields {
        comment(out, "\t", field.doc);
        let _ = match field.dim {
            0 => writeln!(out, "\t{} {};", field.ctype, field.name),
            n => writeln!(out, "\t{} {}[{n}];", field.ctype, field.name),
        };
    }
    out.push_str("};\n");
}

/// Columns of a line in the kernel, and of a tab in it.
const COLUMNS: usize = 80;
const TAB: usize = 8;

fn comment(out: &mut String, indent: &str, doc: &[&str]) {
    let room = COLUMNS.saturating_sub(indent.len().saturating_mul(TAB));
    let one_line = doc.first().filter(|line| {
        // With the marks of the comment.
        doc.len() == 1 && line.len().saturating_add(5) <= room
    });
    if let Some(line) = one_line {
        let _ = writeln!(out, "{indent}/*{line} */");
    } else if !doc.is_empty() {
        let _ = writeln!(out, "{indent}/*");
        for line in filled(doc, room.saturating_sub(2)) {
            let _ = writeln!(out, "{indent} *{line}");
        }
        let _ = writeln!(out, "{indent} */");
    }
}

/// Paragraphs and items of lists with lines of at most `room` columns. As in `doc`, each begins with a space.
fn filled(doc: &[&str], room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut begins = true;
    for line in doc {
        begins |= line.trim().is_empty() || line.starts_with(" -");
        if line.trim().is_empty() {
            lines.push(String::new());
            continue;
        }
        for word in line.split_whitespace() {
            match lines.last_mut() {
                Some(last)
                    if !begins
                        && last.len().saturating_add(word.len()).saturating_add(1) <= room =>
                {
                    last.push(' ');
                    last.push_str(word);
                }
                _ => lines.push(format!(" {word}")),
            }
            begins = false;
        }
    }
    lines
}
