//! Opcodes, sequence numbers, timers and codes against independent copies of the tables.

use faultline_wire::packet::MAX_TRANSPORT_LEN;
use faultline_wire::udp::{flow_label_for_qpns, src_port, src_port_for_flow_label};
use faultline_wire::{
    Headers, NakCode, OpKind, Opcode, PathMtu, Position, Psn, Service, Syndrome, WireError,
    ack_timeout_ns, credit_count, rnr_timer_code, rnr_timer_ns,
};
use proptest::prelude::*;

/// Bytes of BTH and extended headers per operation, by the low five bits of the opcode, from IBTA
/// volume 1, table 38; `None` is reserved.
const RC_LEN: [Option<usize>; 32] = {
    let mut len = [None; 32];
    let mut op = 0;
    while op < 32 {
        len[op] = match op {
            0x00..=0x02 | 0x04 | 0x07 | 0x08 | 0x0e => Some(12),
            0x03 | 0x05 | 0x09 | 0x16 | 0x17 => Some(12 + 4),
            0x06 | 0x0a | 0x0c | 0x1d => Some(12 + 16),
            0x0b | 0x1c => Some(12 + 16 + 4),
            0x0d | 0x0f | 0x10 | 0x11 => Some(12 + 4),
            0x12 => Some(12 + 4 + 8),
            0x13 | 0x14 => Some(12 + 28),
            _ => None,
        };
        op += 1;
    }
    len
};

#[test]
fn opcodes_have_the_lengths_of_the_specification() {
    for byte in 0..=255u8 {
        let op = usize::from(byte & 0x1f);
        let response = (0x0d..=0x12).contains(&op);
        let expected = match byte >> 5 {
            0b000 => RC_LEN[op],
            0b001 if op <= 0x0b => RC_LEN[op],
            0b011 if op == 4 => Some(12 + 8),
            0b011 if op == 5 => Some(12 + 8 + 4),
            0b100 if byte == 0x81 => Some(12),
            0b101 => RC_LEN[op].map(|len| if response { len } else { len + 4 }),
            // READY, in the range of manufacturers.
            0b110 if byte == 0xc0 => Some(12),
            _ => None,
        };
        let found = Opcode::from_u8(byte).map(|opcode| opcode.info().transport_len);
        assert_eq!(found, expected, "opcode {byte:#04x}");
    }
    let longest = Opcode::ALL
        .iter()
        .map(|opcode| opcode.info().transport_len)
        .max();
    assert_eq!(longest, Some(MAX_TRANSPORT_LEN));
}

#[test]
fn opcodes_are_their_bytes() {
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_u8(opcode.to_u8()), Some(opcode));
        assert_eq!(Opcode::try_from(opcode.to_u8()), Ok(opcode));
    }
    assert_eq!(Opcode::try_from(0x15), Err(WireError::UnknownOpcode(0x15)));
    assert!(
        Opcode::ALL
            .windows(2)
            .all(|pair| pair[0].to_u8() < pair[1].to_u8())
    );
}

#[test]
fn opcode_info_is_consistent() {
    for &opcode in Opcode::ALL {
        let info = opcode.info();
        let low = opcode.to_u8() & 0x1f;
        assert_eq!(
            info.service,
            match opcode.to_u8() >> 5 {
                0 => Service::Rc,
                1 => Service::Uc,
                3 => Service::Ud,
                4 => Service::Cnp,
                5 => Service::Xrc,
                6 | 7 => Service::Manufacturer,
                other => panic!("service {other}"),
            }
        );
        let has_service = !matches!(info.service, Service::Cnp | Service::Manufacturer);
        if has_service {
            let (kind, position) = match low {
                0x00 => (OpKind::Send, Position::First),
                0x01 => (OpKind::Send, Position::Middle),
                0x02 | 0x03 | 0x16 => (OpKind::Send, Position::Last),
                0x04 | 0x05 | 0x17 => (OpKind::Send, Position::Only),
                0x06 => (OpKind::Write, Position::First),
                0x07 => (OpKind::Write, Position::Middle),
                0x08 | 0x09 => (OpKind::Write, Position::Last),
                0x0a | 0x0b => (OpKind::Write, Position::Only),
                0x0c => (OpKind::ReadRequest, Position::Only),
                0x0d => (OpKind::ReadResponse, Position::First),
                0x0e => (OpKind::ReadResponse, Position::Middle),
                0x0f => (OpKind::ReadResponse, Position::Last),
                0x10 => (OpKind::ReadResponse, Position::Only),
                0x11 => (OpKind::Ack, Position::Only),
                0x12 => (OpKind::AtomicAck, Position::Only),
                0x13 => (OpKind::CompareSwap, Position::Only),
                0x14 => (OpKind::FetchAdd, Position::Only),
                0x1c => (OpKind::Flush, Position::Only),
                0x1d => (OpKind::AtomicWrite, Position::Only),
                _ => panic!("{opcode:?}"),
            };
            assert_eq!((info.kind, info.position), (kind, position), "{opcode:?}");
            assert_eq!(
                opcode.has(Headers::IMM),
                matches!(low, 3 | 5 | 9 | 0xb),
                "{opcode:?}"
            );
            assert_eq!(
                opcode.has(Headers::IETH),
                matches!(low, 0x16 | 0x17),
                "{opcode:?}"
            );
            assert_eq!(
                opcode.has(Headers::RETH),
                matches!(low, 6 | 0xa..=0xc | 0x1c | 0x1d)
            );
        }
        let response = matches!(low, 0x0d..=0x12) && has_service || opcode == Opcode::Ready;
        assert_eq!(opcode.is_response(), response, "{opcode:?}");
        assert_eq!(
            opcode.is_request(),
            !response && opcode != Opcode::Cnp,
            "{opcode:?}"
        );
        assert_eq!(opcode.has(Headers::DETH), info.service == Service::Ud);
        let xrc_request = info.service == Service::Xrc && opcode.is_request();
        assert_eq!(opcode.has(Headers::XRCETH), xrc_request, "{opcode:?}");
        let starts = matches!(info.position, Position::First | Position::Only);
        assert_eq!(opcode.is_first_or_only(), starts);
        let ends = matches!(info.position, Position::Last | Position::Only);
        assert_eq!(opcode.is_last_or_only(), ends);
        assert!(opcode.has(Headers::empty()));
        let payload = matches!(
            info.kind,
            OpKind::Send | OpKind::Write | OpKind::ReadResponse | OpKind::AtomicWrite | OpKind::Cnp
        );
        assert_eq!(info.payload, payload, "{opcode:?}");
    }
}

#[test]
fn operations_are_the_same_in_each_service() {
    use Opcode::*;
    assert_eq!(RcWriteOnly.with_service(Service::Uc), Some(UcWriteOnly));
    assert_eq!(RcReadRequest.with_service(Service::Uc), None);
    assert_eq!(RcSendOnlyWithInvalidate.with_service(Service::Uc), None);
    assert_eq!(RcSendOnly.with_service(Service::Ud), Some(UdSendOnly));
    assert_eq!(RcSendFirst.with_service(Service::Ud), None);
    assert_eq!(XrcFetchAdd.with_service(Service::Rc), Some(RcFetchAdd));
    assert_eq!(Cnp.with_service(Service::Rc), None);
    assert_eq!(Cnp.with_service(Service::Cnp), Some(Cnp));
    assert_eq!(RcSendMiddle.with_service(Service::Cnp), None);
    for service in [Service::Rc, Service::Xrc, Service::Manufacturer] {
        assert_eq!(Ready.with_service(service), Some(Ready));
    }
    for service in [Service::Uc, Service::Ud, Service::Cnp] {
        assert_eq!(Ready.with_service(service), None);
    }
    assert_eq!(RcSendMiddle.with_service(Service::Manufacturer), None);
    for &opcode in Opcode::ALL {
        assert_eq!(opcode.with_service(opcode.info().service), Some(opcode));
        let services = [
            Service::Rc,
            Service::Uc,
            Service::Ud,
            Service::Xrc,
            Service::Cnp,
            Service::Manufacturer,
        ];
        for same in services.iter().filter_map(|to| opcode.with_service(*to)) {
            assert_eq!(same.info().kind, opcode.info().kind, "{opcode:?}");
            assert_eq!(same.info().position, opcode.info().position, "{opcode:?}");
        }
        if opcode.info().service == Service::Rc {
            // XRC has everything that RC has.
            let of_xrc = opcode.with_service(Service::Xrc).unwrap();
            assert_eq!(of_xrc.info().kind, opcode.info().kind);
            assert_eq!(of_xrc.info().position, opcode.info().position);
        }
    }
}

#[test]
fn psn_wraps() {
    let last = Psn::new(0xff_ffff);
    let zero = Psn::new(0);
    assert_eq!(last.next(), zero);
    assert_eq!(zero.prev(), last);
    assert_eq!(zero.diff(last), 1);
    assert_eq!(last.diff(zero), -1);
    assert_eq!(Psn::new(0x80_0000).diff(zero), 1 << 23);
    assert_eq!(zero.diff(Psn::new(0x80_0000)), 1 << 23);
    assert_eq!(Psn::new(0x80_0001).diff(zero), 1 - (1 << 23));
    assert_eq!(Psn::from(0x0100_0005).get(), 5);
    assert_eq!(u32::from(last), 0xff_ffff);
}

proptest! {
    #[test]
    fn psn_arithmetic_agrees_with_distance(start in any::<u32>(), step in -(1i32 << 23) + 1..=1 << 23) {
        let start = Psn::new(start);
        let end = start.add(step as u32);
        prop_assert_eq!(end.diff(start), step);
        prop_assert_eq!(end.sub(step as u32), start);
        prop_assert!(end.get() <= Psn::MAX);
    }

    #[test]
    fn rnr_timer_code_is_the_tightest(ns in 0..700_000_000u64) {
        let code = rnr_timer_code(ns);
        let wait = rnr_timer_ns(code);
        prop_assert!(wait >= ns || code == 0);
        for other in 0..32 {
            prop_assert!(rnr_timer_ns(other) < ns || rnr_timer_ns(other) >= wait);
        }
    }
}

#[test]
fn syndromes_are_total_and_keep_their_byte() {
    for byte in 0..=255u8 {
        assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
    }
    assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK);
    assert_eq!(Syndrome::from_u8(0x00), Syndrome::Ack { credits: 0 });
    assert_eq!(Syndrome::from_u8(0x2e), Syndrome::RnrNak { timer: 14 });
    assert_eq!(
        Syndrome::from_u8(0x60),
        Syndrome::Nak(NakCode::PsnSequenceError)
    );
    assert_eq!(
        Syndrome::from_u8(0x61),
        Syndrome::Nak(NakCode::InvalidRequest)
    );
    assert_eq!(
        Syndrome::from_u8(0x62),
        Syndrome::Nak(NakCode::RemoteAccessError)
    );
    assert_eq!(
        Syndrome::from_u8(0x63),
        Syndrome::Nak(NakCode::RemoteOperationalError)
    );
    assert_eq!(
        Syndrome::from_u8(0x64),
        Syndrome::Nak(NakCode::InvalidRdRequest)
    );
    assert_eq!(Syndrome::from_u8(0x65), Syndrome::Reserved(0x65));
    assert_eq!(Syndrome::from_u8(0x40), Syndrome::Reserved(0x40));
    assert_eq!(Syndrome::from_u8(0x80), Syndrome::Reserved(0x80));
}

/// IBTA volume 1, table 45, in milliseconds, as it is printed.
#[test]
fn rnr_timers_are_those_of_table_45() {
    let table = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
        1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88,
        163.84, 245.76, 327.68, 491.52,
    ];
    for (code, ms) in table.into_iter().enumerate() {
        assert_eq!(
            rnr_timer_ns(code as u8),
            (ms * 1e6f64).round() as u64,
            "code {code}"
        );
        assert_eq!(rnr_timer_code(rnr_timer_ns(code as u8)), code as u8);
    }
    assert_eq!(rnr_timer_code(0), 1);
    assert_eq!(rnr_timer_code(10_001), 2);
    assert_eq!(rnr_timer_code(491_520_001), 0);
    assert_eq!(rnr_timer_code(u64::MAX), 0);
}

/// IBTA volume 1, chapter 9.7.7.2: from code 4 on, two codes for each doubling.
#[test]
fn credits_are_those_of_the_table() {
    for code in 0..4 {
        assert_eq!(credit_count(code), Some(u32::from(code)));
    }
    for code in 4..31 {
        let power = 1 << (code / 2);
        let credits = if code % 2 == 0 { power } else { power / 2 * 3 };
        assert_eq!(credit_count(code), Some(credits), "code {code}");
    }
    assert_eq!(credit_count(30), Some(32768));
    assert_eq!(credit_count(31), None);
    assert_eq!(credit_count(0xe0), Some(0));
    assert_eq!(credit_count(0xff), None);
}

#[test]
fn ack_timeouts_double() {
    assert_eq!(ack_timeout_ns(0), None);
    assert_eq!(ack_timeout_ns(1), Some(8_192));
    assert_eq!(ack_timeout_ns(14), Some(67_108_864));
    assert_eq!(ack_timeout_ns(31), Some(8_796_093_022_208));
}

#[test]
fn path_mtu_codes() {
    let expected = [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)];
    for (code, bytes) in expected {
        let mtu = PathMtu::from_code(code).unwrap();
        assert_eq!((mtu.bytes(), mtu.code()), (bytes, code));
    }
    for code in [0, 6, 255] {
        assert_eq!(PathMtu::from_code(code), Err(WireError::UnknownCode(code)));
    }
    assert_eq!(PathMtu::for_ip_mtu(1500), Some(PathMtu::Mtu1024));
    assert_eq!(PathMtu::for_ip_mtu(9000), Some(PathMtu::Mtu4096));
    assert_eq!(PathMtu::for_ip_mtu(4096), Some(PathMtu::Mtu2048));
    assert_eq!(PathMtu::for_ip_mtu(256), None);
}

#[test]
fn flow_labels_spread_over_the_dynamic_ports() {
    assert_eq!(src_port_for_flow_label(0), 0xc000);
    assert_eq!(src_port_for_flow_label(0x3fff), 0xffff);
    assert_eq!(src_port_for_flow_label(0xf_ffff), 0xffff ^ 0x3f);
    assert_eq!(src_port_for_flow_label(0x4000), 0xc001);
}

/// Values of `rdma_calc_flow_label` and `rdma_get_udp_sport` (Linux, `include/rdma/ib_verbs.h`), computed by hand.
#[test]
fn source_ports_are_those_of_linux() {
    for (local, remote, label, port) in [
        (17, 18, 0x132, 0xc132),
        (2, 3, 6, 0xc006),
        (0x1_2345, 0x5_4321, 0x9_c52e, 0xc509),
        (0xff_ffff, 0xff_fffe, 0xf_ff2d, 0xff12),
        (0xab_cdef, 0x12_3456, 0xa_c3e3, 0xc3c8),
        (0, 5, 0, 0xc000),
        (0xff_ffff, 1, 0xf_fff0, 0xffcf),
    ] {
        assert_eq!(flow_label_for_qpns(local, remote), label);
        assert_eq!(flow_label_for_qpns(remote, local), label);
        assert_eq!(src_port(0, local, remote), port);
        // A flow label wins.
        assert_eq!(src_port(0x1_2345, local, remote), 0xe341);
    }
    for (label, port) in [(1, 0xc001), (0xf_c000, 0xc03f), (0x8_0000, 0xc020)] {
        assert_eq!(src_port(label, 17, 18), port);
    }
}
