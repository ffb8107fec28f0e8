//! Flows: which queue pairs receive frames that are no RoCE packets; and that none receives RoCE packets.

use faultline_abi::admin::{Counter, DESTROY_QP, NETDEV_PROMISC, NETDEV_UP, SET_NETDEV, SetNetdev};
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::steering::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U16, U32};
use faultline_simulation::{Cq, CqConfig, Error, Mr, Qp, QpConfig, Send};
use faultline_simulator::pager::run as run_pagers;
use faultline_simulator::{HostPager, World, expect_cqe, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use crate::common::counter;

const LEN: u64 = 64 << 10;
const MULTICAST: [u8; 6] = [0x01, 0x50, 0x56, 0x19, 0x20, 0xa7];
const FOREIGN: [u8; 6] = [0x24, 0x8a, 0x07, 0xa5, 0x28, 0xc8];

/// A raw queue pair with a CQ and a region. That of a process belongs to a context of its own.
struct End {
    host: usize,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(world: &mut World, host: usize, process: bool) -> Self {
        let on = &mut world.hosts[host];
        let uctx = match process {
            true => on.driver.alloc_uctx().unwrap(),
            false => 0,
        };
        let config = CqConfig {
            log_depth: 6,
            eqn: on.eq.eqn,
            uctx,
        };
        let cq = on.driver.create_cq(config).unwrap();
        let config = QpConfig {
            uctx,
            ..on.qp_config(QPT_RAW, &cq)
        };
        let qp = on.driver.create_qp(&config).unwrap();
        let mr = on.mr(LEN).unwrap();
        on.driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
        Self { host, cq, qp, mr }
    }

    fn receive(&mut self, world: &mut World, count: u32) {
        let (host, mr) = (self.host, self.mr);
        for n in 0..count {
            let sge = (mr.va + 4096 * u64::from(1 + n % 8), 4096, mr.key);
            world.hosts[host].driver.post_recv(&mut self.qp, n, &[sge]);
        }
    }

    fn send(&mut self, world: &mut World, frame: &[u8]) {
        self.send_with(world, frame, 0);
    }

    fn send_with(&mut self, world: &mut World, frame: &[u8], flags: u8) {
        let (host, mr) = (self.host, self.mr);
        let driver = &mut world.hosts[host].driver;
        driver.write_mr(&mr, 0, frame);
        let send = Send {
            opcode: wr::WR_RAW,
            flags,
            sges: &[(mr.va, frame.len() as u32, mr.key)],
            ..Send::default()
        };
        driver.post_send(&mut self.qp, &send);
        world.run_for(1_000_000);
    }

    fn flow(&self) -> CreateFlow {
        CreateFlow {
            qpn: U32::new(self.qp.qpn),
            ..CreateFlow::default()
        }
    }

    /// A flow for this end.
    fn steer(&self, world: &mut World, flow: CreateFlow, fields: &Fields) -> u32 {
        let driver = &mut world.hosts[self.host].driver;
        driver
            .create_flow(&flow, Some(&(fields.0, fields.1)))
            .unwrap()
    }

    /// A flow of another kind.
    fn steer_kind(&self, world: &mut World, kind: u8) -> u32 {
        let flow = CreateFlow {
            kind,
            tag: U32::new(u32::from(kind)),
            ..self.flow()
        };
        world.hosts[self.host]
            .driver
            .create_flow(&flow, None)
            .unwrap()
    }

    /// Receives so far: the tag of the flow of each, and the frame of the last.
    fn received(&mut self, world: &mut World) -> Vec<u32> {
        let found = world.completions(self.host, &mut self.cq);
        let receives = found.iter().filter(|cqe| cqe.opcode == cqe::RECV);
        receives
            .map(|cqe| {
                assert_eq!(cqe.status, cqe::SUCCESS);
                cqe.flow_tag.get()
            })
            .collect()
    }
}

type Fields = (FlowFields, FlowFields);

fn anything() -> Fields {
    Fields::default()
}

/// What is not zero must be so.
fn exactly(values: FlowFields) -> Fields {
    use zerocopy::{FromBytes, IntoBytes};
    let mask: Vec<u8> = values
        .as_bytes()
        .iter()
        .map(|byte| if *byte == 0 { 0 } else { 0xff })
        .collect();
    (values, FlowFields::read_from_bytes(&mask).unwrap())
}

fn to_mac(dmac: [u8; 6]) -> Fields {
    exactly(FlowFields {
        dmac,
        ..FlowFields::default()
    })
}

/// Headers of a test frame, by layer.
#[derive(Clone, Copy)]
struct Frame {
    dst: [u8; 6],
    vlan: Option<u16>,
    v6: bool,
    protocol: u8,
    ports: (u16, u16),
}

const UDP: Frame = Frame {
    dst: MULTICAST,
    vlan: None,
    v6: false,
    protocol: 17,
    ports: (1234, 5678),
};

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [&self.dst[..], &FOREIGN].concat();
        if let Some(tci) = self.vlan {
            out.extend([0x81, 0]);
            out.extend(tci.to_be_bytes());
        }
        let transport = if self.protocol == 6 { 20 } else { 8 };
        let len = transport + 60u16;
        if self.v6 {
            out.extend([0x86, 0xdd, 0x61, 0x23, 0x45, 0x67]);
            out.extend(len.to_be_bytes());
            out.extend([self.protocol, 33]);
            out.extend([0xa0; 16]);
            out.extend([0xb0; 16]);
        } else {
            out.extend([0x08, 0x00, 0x45, 0x98]);
            out.extend((len + 20).to_be_bytes());
            out.extend([0, 0, 0x40, 0, 33, self.protocol, 0, 0]);
            out.extend([1, 1, 1, 1, 2, 2, 2, 2]);
        }
        out.extend(self.ports.0.to_be_bytes());
        out.extend(self.ports.1.to_be_bytes());
        let mut rest = vec![0; usize::from(transport) - 4];
        match self.protocol {
            6 => rest[8] = 0x50,
            _ => rest[..2].copy_from_slice(&len.to_be_bytes()),
        }
        out.extend(rest);
        out.extend((0..60).map(|n| n * 3));
        out
    }
}

fn refused(status: Status) -> Result<u32, Error> {
    Err(Error::Refused(status))
}

/// Headers and fields of a flow, and which of four frames match: UDP, TCP, UDP over IPv6, and UDP with a VLAN tag.
type Case = (u32, FlowFields, [bool; 4]);

fn cases() -> [Case; 16] {
    let eth = FLOW_HAS_ETH;
    let v4 = |src: [u8; 4], dst: [u8; 4]| {
        let mut fields = FlowFields::default();
        fields.src_ip[12..].copy_from_slice(&src);
        fields.dst_ip[12..].copy_from_slice(&dst);
        fields
    };
    let ports = |src: u16, dst: u16| FlowFields {
        src_port: src.to_be_bytes(),
        dst_port: dst.to_be_bytes(),
        ..FlowFields::default()
    };
    let v6 = FlowFields {
        src_ip: [0xa0; 16],
        dst_ip: [0xb0; 16],
        protocol: 17,
        hop_limit: 33,
        traffic_class: 0x12,
        flow_label: [0, 3, 0x45, 0x67],
        ..FlowFields::default()
    };
    let from = |smac| FlowFields {
        smac,
        ..FlowFields::default()
    };
    let of_type = |ether_type| FlowFields {
        ether_type,
        ..FlowFields::default()
    };
    let vlan = |tci: u16| FlowFields {
        vlan_tci: tci.to_be_bytes(),
        ..FlowFields::default()
    };
    let v4_rest = FlowFields {
        protocol: 17,
        traffic_class: 0x98,
        hop_limit: 33,
        ip_flags: 2,
        ..FlowFields::default()
    };
    [
        (0, FlowFields::default(), [true, true, true, true]),
        (eth, from(FOREIGN), [true, true, true, true]),
        (eth, from([2; 6]), [false; 4]),
        (eth, of_type([8, 0]), [true, true, false, true]),
        (eth, of_type([0x86, 0xdd]), [false, false, true, false]),
        (eth, vlan(0x6123), [false, false, false, true]),
        (
            FLOW_HAS_IPV4,
            FlowFields::default(),
            [true, true, false, true],
        ),
        (
            FLOW_HAS_IPV6,
            FlowFields::default(),
            [false, false, true, false],
        ),
        (FLOW_HAS_IPV4, v4([1; 4], [2; 4]), [true, true, false, true]),
        (FLOW_HAS_IPV4, v4([1; 4], [3; 4]), [false; 4]),
        (FLOW_HAS_IPV4, v4_rest, [true, false, false, true]),
        (FLOW_HAS_IPV6, v6, [false, false, true, false]),
        (
            FLOW_HAS_IPV4 | FLOW_HAS_UDP,
            ports(1234, 5678),
            [true, false, false, true],
        ),
        (
            FLOW_HAS_IPV4 | FLOW_HAS_TCP,
            ports(1234, 5678),
            [false, true, false, false],
        ),
        (FLOW_HAS_IPV4 | FLOW_HAS_UDP, ports(1235, 5678), [false; 4]),
        (
            eth | FLOW_HAS_IPV6 | FLOW_HAS_UDP,
            ports(0, 5678),
            [false, false, true, false],
        ),
    ]
}

#[test]
fn a_flow_gets_matching_frames_only() {
    let tcp = Frame { protocol: 6, ..UDP };
    let six = Frame { v6: true, ..UDP };
    let tagged = Frame {
        vlan: Some(0x6123),
        ..UDP
    };
    let all = [UDP, tcp, six, tagged];
    for by_reference in [false, true] {
        for (n, (headers, values, expected)) in cases().iter().enumerate() {
            let mut world = World::new(2, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut sender = End::new(&mut world, 0, true);
            let mut receiver = End::new(&mut world, 1, true);
            let flow = CreateFlow {
                headers: U32::new(*headers),
                tag: U32::new(0x1234_5678),
                ..receiver.flow()
            };
            let flow = receiver.steer(&mut world, flow, &exactly(*values));
            receiver.receive(&mut world, 8);
            for (frame, expected) in all.iter().zip(expected) {
                sender.send(&mut world, &frame.bytes());
                let found = receiver.received(&mut world);
                let tags: &[u32] = if *expected { &[0x1234_5678] } else { &[] };
                assert_eq!(found, tags, "case {n}");
            }
            world.hosts[1].driver.destroy_flow(flow).unwrap();
            sender.send(&mut world, &UDP.bytes());
            assert_eq!(receiver.received(&mut world), [0_u32; 0]);
        }
    }
}

#[test]
fn the_best_priority_wins_and_equals_share() {
    let mut world = World::new(2, 1);
    let mut sender = End::new(&mut world, 0, true);
    let mut ends = [(); 4].map(|()| End::new(&mut world, 1, true));
    let mut netdev = End::new(&mut world, 1, false);
    let (mac, qpn) = (world.hosts[1].mac, netdev.qp.qpn);
    let body = SetNetdev {
        mac: mac.0,
        mtu: U16::new(1500),
        flags: U32::new(NETDEV_UP | NETDEV_PROMISC),
        qpn: U32::new(qpn),
    };
    world.hosts[1].driver.command(SET_NETDEV, 0, &body).unwrap();
    for end in ends.iter_mut().chain([&mut netdev]) {
        end.receive(&mut world, 16);
    }
    let mut who = |world: &mut World, ends: &mut [End; 4]| {
        sender.send(world, &UDP.bytes());
        let mut got: Vec<usize> = Vec::new();
        for (n, end) in ends.iter_mut().chain([&mut netdev]).enumerate() {
            got.extend(end.received(world).iter().map(|_| n));
        }
        got
    };
    let with = |end: &End, priority: u16, flags: u8| CreateFlow {
        priority: U16::new(priority),
        flags,
        ..end.flow()
    };
    assert_eq!(who(&mut world, &mut ends), [4], "the netdev");
    let low = with(&ends[0], 9, 0);
    let low = ends[0].steer(&mut world, low, &anything());
    assert_eq!(who(&mut world, &mut ends), [0]);
    let equal = with(&ends[1], 9, 0);
    let equal = ends[1].steer(&mut world, equal, &anything());
    assert_eq!(who(&mut world, &mut ends), [0, 1]);
    let better = with(&ends[2], 8, 0);
    let better = ends[2].steer(&mut world, better, &anything());
    assert_eq!(who(&mut world, &mut ends), [2]);
    // A flow that does not trap gets a copy, and the search continues.
    let copy = with(&ends[3], 1, FLOW_FLAG_DONT_TRAP);
    ends[3].steer(&mut world, copy, &anything());
    // proves: IBV_FLOW_ATTR_FLAGS_DONT_TRAP
    assert_eq!(who(&mut world, &mut ends), [2, 3]);
    let dropper = with(&ends[1], 2, FLOW_FLAG_DROP);
    let dropper = ends[1].steer(&mut world, dropper, &anything());
    assert_eq!(who(&mut world, &mut ends), [3]);
    // proves: IBV_FLOW_SPEC_ACTION_DROP
    assert_eq!(counter(&mut world, 1, Counter::rx_flow_drops), 1);
    for flow in [dropper, better, low] {
        world.hosts[1].driver.destroy_flow(flow).unwrap();
    }
    assert_eq!(who(&mut world, &mut ends), [1, 3]);
    world.hosts[1].driver.destroy_flow(equal).unwrap();
    assert_eq!(who(&mut world, &mut ends), [3, 4]);
}

#[test]
fn sent_frames_of_a_process_come_back_to_local_flows() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut process = End::new(&mut world, 0, true);
        let mut kernel = End::new(&mut world, 0, false);
        let mut receiver = End::new(&mut world, 0, true);
        let mut far = End::new(&mut world, 1, true);
        for end in [&mut receiver, &mut far] {
            let flow = end.flow();
            end.steer(&mut world, flow, &anything());
            end.receive(&mut world, 8);
        }
        process.send(&mut world, &UDP.bytes());
        assert_eq!(receiver.received(&mut world).len(), 1, "a copy");
        assert_eq!(far.received(&mut world).len(), 1, "and the frame goes on");
        assert_eq!(counter(&mut world, 0, Counter::tx_packets), 1);
        kernel.send(&mut world, &UDP.bytes());
        assert_eq!(receiver.received(&mut world).len(), 0, "not the kernel's");
        assert_eq!(far.received(&mut world).len(), 1);
        // To the own address: once, by way of the switch.
        let own = Frame {
            dst: world.hosts[0].mac.0,
            ..UDP
        };
        process.send(&mut world, &own.bytes());
        assert_eq!(receiver.received(&mut world).len(), 1);
    }
}

#[test]
fn no_flow_steals_roce_packets() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut thieves = [0, 1].map(|host| End::new(&mut world, host, true));
        for thief in &mut thieves {
            for kind in [
                FLOW_KIND_NORMAL,
                FLOW_KIND_ALL_DEFAULT,
                FLOW_KIND_MC_DEFAULT,
            ] {
                match kind {
                    FLOW_KIND_NORMAL => thief.steer(&mut world, thief.flow(), &anything()),
                    kind => thief.steer_kind(&mut world, kind),
                };
            }
            thief.receive(&mut world, 64);
        }
        let mut pair = world.connect(QPT_RC, LEN, |_| {});
        let data: Vec<u8> = (0..40_000u32).map(|n| (n * n / 7) as u8).collect();
        world.hosts[0].driver.write_mr(&pair.mr[0], 0, &data);
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(pair.mr[0].va, 40_000, pair.mr[0].key)],
            remote_addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
        world.run_for(1_000_000);
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        assert!(world.hosts[1].driver.read_mr(&pair.mr[1], 0, 40_000) == data);
        // Nor do they get a packet made by hand, for a queue pair that is not there.
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        let bth = Bth::new(Opcode::RcSendOnly, 0x12_3456, Psn::new(0));
        let header = RoceHeader::new(to.mac, from.mac, ip, bth);
        thieves[0].send(&mut world, &packet(&header, b"nobody"));
        for thief in &mut thieves {
            assert_eq!(thief.received(&mut world), [0_u32; 0]);
        }
        assert_eq!(counter(&mut world, 1, Counter::rx_bad_qp), 1);
    }
}

#[test]
fn a_sniffer_sees_everything_and_changes_nothing() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut sniffers = [0, 1].map(|host| End::new(&mut world, host, true));
        for sniffer in &mut sniffers {
            sniffer.steer_kind(&mut world, FLOW_KIND_SNIFFER);
            sniffer.receive(&mut world, 200);
        }
        let mut pair = world.connect(QPT_RC, LEN, |_| {});
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(pair.mr[0].va, 10 * 1024, pair.mr[0].key)],
            remote_addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
        world.run_for(1_000_000);
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let sent: u64 = (0..2)
            .map(|n| counter(&mut world, n, Counter::tx_packets))
            .sum();
        assert!(sent >= 11);
        for sniffer in &mut sniffers {
            let tags = sniffer.received(&mut world);
            // proves: IBV_FLOW_ATTR_SNIFFER
            assert_eq!(tags.len() as u64, sent, "requests and replies");
            assert!(tags.iter().all(|tag| *tag == u32::from(FLOW_KIND_SNIFFER)));
        }
        // What it sees is the packet as it is on the wire, down to the checksum.
        let again = Send {
            opcode: wr::WR_WRITE,
            sges: &[(pair.mr[0].va + 100, 333, pair.mr[0].key)],
            ..write
        };
        let data: Vec<u8> = (0..333u32).map(|n| (n * n / 5) as u8).collect();
        world.hosts[0].driver.write_mr(&pair.mr[0], 100, &data);
        world.hosts[0].driver.post_send(&mut pair.qp[0], &again);
        world.run_for(1_000_000);
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let seen = world.completions(1, &mut sniffers[1].cq);
        let place = 4096 * u64::from(1 + seen[0].wqe.get() % 8);
        let len = seen[0].byte_len.get() as usize;
        let bytes = world.hosts[1].driver.read_mr(&sniffers[1].mr, place, len);
        let parsed = faultline_wire::packet::parse(&bytes).unwrap();
        assert!(parsed.icrc_ok);
        assert_eq!(parsed.header.bth.opcode, Opcode::RcWriteOnly);
        assert_eq!(parsed.payload, data);
        sniffers[0].received(&mut world);
        // Frames too: where they are sent and where they arrive.
        let mut sender = End::new(&mut world, 0, false);
        sender.send(&mut world, &UDP.bytes());
        for sniffer in &mut sniffers {
            assert_eq!(sniffer.received(&mut world).len(), 1);
        }
    }
}

#[test]
fn default_flows_get_the_remaining_frames() {
    let mut world = World::new(2, 1);
    let mut sender = End::new(&mut world, 0, true);
    let mut multicast = End::new(&mut world, 1, true);
    let mut all = End::new(&mut world, 1, true);
    let mut netdev = End::new(&mut world, 1, false);
    let (mac, qpn) = (world.hosts[1].mac, netdev.qp.qpn);
    world.hosts[1].driver.set_netdev(mac, 1500, qpn).unwrap();
    multicast.steer_kind(&mut world, FLOW_KIND_MC_DEFAULT);
    all.steer_kind(&mut world, FLOW_KIND_ALL_DEFAULT);
    for end in [&mut multicast, &mut all, &mut netdev] {
        end.receive(&mut world, 8);
    }
    let cases = [
        (mac.0, [0, 0, 1]),
        ([0xff; 6], [0, 0, 1]),
        (MULTICAST, [1, 1, 0]),
        ([2, 7, 7, 7, 7, 7], [0, 1, 0]),
    ];
    for (dst, expected) in cases {
        sender.send(&mut world, &Frame { dst, ..UDP }.bytes());
        let got = [&mut multicast, &mut all, &mut netdev].map(|end| end.received(&mut world).len());
        // proves: IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT
        assert_eq!(got, expected, "{dst:x?}");
    }
}

#[test]
fn a_copy_that_waits_for_a_page_keeps_its_tag() {
    for policy in [FAULT_POLICY_STALL, FAULT_POLICY_RNR] {
        let mut world = World::new(2, 1);
        let mut sender = End::new(&mut world, 0, true);
        let mut ends = [7, 8].map(|_| End::new(&mut world, 1, true));
        let mut pager = HostPager::new(&mut world, 1, 64, 5);
        let region = pager.register(&mut world, 0x10_0000, 8192);
        for (n, end) in ends.iter_mut().enumerate() {
            let flow = CreateFlow {
                tag: U32::new(7 + n as u32),
                ..end.flow()
            };
            end.steer(&mut world, flow, &anything());
        }
        let sge = pager.sge(region, 0, 4096);
        let driver = &mut world.hosts[1].driver;
        driver.set_fault_policy(ends[0].qp.qpn, policy).unwrap();
        driver.post_recv(&mut ends[0].qp, 0, &[sge]);
        ends[1].receive(&mut world, 4);
        let frame = UDP.bytes();
        sender.send(&mut world, &frame);
        assert_eq!(ends[0].received(&mut world), [0_u32; 0]);
        assert_eq!(ends[1].received(&mut world), [8]);
        run_pagers(&mut world, &mut [&mut pager]);
        // proves: IBV_FLOW_SPEC_ACTION_TAG
        assert_eq!(ends[0].received(&mut world), [7]);
        assert_eq!(ends[1].received(&mut world), [0_u32; 0], "once is enough");
        assert!(pager.read(&world, region, 0, frame.len()) == frame);
        assert_eq!(
            counter(&mut world, 1, Counter::stalls) > 0,
            policy == FAULT_POLICY_STALL
        );
    }
}

#[test]
fn bad_commands_are_refused() {
    let mut world = World::with_config(1, 1, |config| config.limits.max_flow = 2);
    let end = End::new(&mut world, 0, true);
    let good = end.flow();
    let cq = world.hosts[0].cq(4).unwrap();
    let rc = world.hosts[0].qp(QPT_RC, &cq).unwrap().qpn;
    let ud = world.hosts[0].qp(QPT_UD, &cq).unwrap().qpn;
    let driver = &mut world.hosts[0].driver;
    let mut try_flow =
        |flow: CreateFlow, fields: Option<Fields>| driver.create_flow(&flow, fields.as_ref());
    let change = |change: fn(&mut CreateFlow)| {
        let mut flow = good;
        change(&mut flow);
        flow
    };
    let plain = Some(anything());
    for (qpn, status) in [
        (0, Status::BadQp),
        (1, Status::BadQp),
        (u32::MAX, Status::BadQp),
        (rc, Status::BadQpType),
        (ud, Status::BadQpType),
    ] {
        let flow = CreateFlow {
            qpn: U32::new(qpn),
            ..good
        };
        assert_eq!(try_flow(flow, plain), refused(status));
    }
    let cases = [
        (
            change(|f| f.reserved[7] = 1),
            plain,
            Status::ReservedNotZero,
        ),
        (change(|f| f.kind = 4), None, Status::NotSupported),
        (change(|f| f.flags = 4), plain, Status::BadParameter),
        (
            change(|f| f.headers.set(1 << 5)),
            plain,
            Status::BadParameter,
        ),
        (change(|f| f.kind = 1), plain, Status::BadParameter),
        (
            change(|f| (f.kind, f.flags) = (3, FLOW_FLAG_DROP)),
            None,
            Status::BadParameter,
        ),
        (
            change(|f| (f.kind, f.priority) = (2, U16::new(1))),
            None,
            Status::BadParameter,
        ),
        (
            change(|f| f.fields_addr.set(u64::MAX - 3)),
            None,
            Status::DmaError,
        ),
        (good, Some(to_mac(MULTICAST)), Status::BadFlowFields),
        (
            change(|f| f.headers.set(FLOW_HAS_TCP)),
            plain,
            Status::BadFlowFields,
        ),
        (
            change(|f| f.headers.set(FLOW_HAS_IPV4 | FLOW_HAS_IPV6)),
            plain,
            Status::BadFlowFields,
        ),
    ];
    for (n, (flow, fields, status)) in cases.into_iter().enumerate() {
        assert_eq!(try_flow(flow, fields), refused(status), "case {n}");
    }
    let first = try_flow(good, plain).unwrap();
    let second = try_flow(good, plain).unwrap();
    assert_ne!(first, second);
    assert_eq!(try_flow(good, plain), refused(Status::NoResources));
    let in_use = driver.command(DESTROY_QP, end.qp.qpn, &()).map(drop);
    assert_eq!(in_use, Err(Error::Refused(Status::InUse)));
    driver.destroy_flow(first).unwrap();
    for flow in [first, 0, u32::MAX] {
        let gone = driver.destroy_flow(flow);
        assert_eq!(gone, Err(Error::Refused(Status::BadFlow)));
    }
    driver.destroy_flow(second).unwrap();
    driver.command(DESTROY_QP, end.qp.qpn, &()).unwrap();
}

/// A sender changes a frame while it is on its way: the delivered headers are those that the flows have read.
#[test]
fn a_sender_that_races_passes_no_flow() {
    let port = FlowFields {
        dst_port: 4000u16.to_be_bytes(),
        ..FlowFields::default()
    };
    let from = FlowFields {
        smac: [2; 6],
        ..FlowFields::default()
    };
    // Offset of the change, its bytes, and the rule that would drop the changed frame.
    let cases = [
        (36, vec![0x0f, 0xa0], FLOW_HAS_IPV4 | FLOW_HAS_UDP, port),
        (6, vec![2; 6], FLOW_HAS_ETH, from),
    ];
    for (at, bytes, headers, fields) in cases {
        // The device's reads that still find the old bytes.
        for reads in 0..6 {
            for flags in [0, wr::WR_FLAG_CSUM] {
                let mut world = World::new(2, 1);
                world.hand_over_by_reference();
                let mut sender = End::new(&mut world, 0, true);
                let mut receiver = End::new(&mut world, 1, true);
                let drops = CreateFlow {
                    flags: FLOW_FLAG_DROP,
                    headers: U32::new(headers),
                    ..receiver.flow()
                };
                receiver.steer(&mut world, drops, &exactly(fields));
                let takes = CreateFlow {
                    priority: U16::new(1),
                    ..receiver.flow()
                };
                receiver.steer(&mut world, takes, &anything());
                receiver.receive(&mut world, 1);
                world.change_after(0, sender.mr.addr + at as u64, &bytes, reads);
                sender.send_with(&mut world, &UDP.bytes(), flags);
                let got = receiver.received(&mut world).len() as u64;
                let dropped = counter(&mut world, 1, Counter::rx_flow_drops);
                let case = format!("at {at} after {reads} reads, flags {flags}");
                assert_eq!(
                    (got, dropped),
                    if reads == 0 { (0, 1) } else { (1, 0) },
                    "{case}"
                );
                let mr = receiver.mr;
                let frame = world.hosts[1].driver.read_mr(&mr, 4096, 100);
                assert!(frame[at..at + bytes.len()] != bytes, "{case}");
            }
        }
    }
}
