//! iWARP: the octets of a peer that keeps to no rule of MPA, DDP and RDMAP, on a connection that it has opened in order.

use faultline_abi::admin::DESTROY_QP;
use faultline_abi::qp::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, QPS_RTS,
    QPT_RC,
};
use faultline_abi::{cqe, event, wqe};
use faultline_checker::Rule;
use faultline_nic::Transport;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Cq, Mr, Private, Qp, Send, listener_path};
use faultline_simulator::World;
use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget, queue};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::mpa::{Crc32c, EnhancedSetup, Fpdu, MpaFlags, MpaRole, MpaSetup};
use faultline_wire::rdmap::{
    AtomicRequest, AtomicResponse, RdmapControl, RdmapOpcode, ReadRequest,
};
use faultline_wire::{EtherType, Ethernet, Gid, Ip, Seq, Tcp, TcpFlags};

use crate::input::{Input, pattern};

/// Port of the listener, and those of the peer's two connections.
const PORT: u16 = 4791;
const HOSTILE: u16 = 40_000;
const BYSTANDER: u16 = 40_001;
/// Octets of each region.
const LEN: u64 = 8192;
/// First address of the regions that the peer has no rights to.
const CLOSED: u64 = 0x10_0000;
const RECEIVES: u32 = 4;
/// Octets of each receive request.
const RECEIVE: u32 = 2000;
/// READs and atomics of the NIC, whose responses the peer makes.
const REQUESTS: u32 = 2;
/// Segments of an input.
const STEPS: usize = 24;
/// Memory that a connection may add to the budget: kept octets (a window), messages and copies.
const MAX_HELD: usize = 768 << 10;
/// Time in which a half-open connection ends, in nanoseconds.
const SETUP_TIMEOUT: u64 = 15_000_000_000;
const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// The peer's end of a connection.
struct Peer {
    port: u16,
    /// Next octet to send.
    seq: Seq,
    /// Octet after the last one that the NIC has sent.
    seen: Seq,
    /// Messages that have ended, by queue.
    msns: [u32; 4],
}

/// A queue pair of the NIC, and what belongs to it.
struct Target {
    cq: Cq,
    qp: Qp,
    open: Mr,
    peer: Peer,
}

impl Peer {
    /// A segment. `octets` is its data.
    fn frame(&self, world: &World, seq: Seq, flags: TcpFlags, octets: &[u8]) -> Vec<u8> {
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let tcp = Tcp {
            src_port: self.port,
            dst_port: PORT,
            seq,
            ack: self.seen,
            flags,
            window: 0xffff,
            ..Tcp::default()
        };
        let mut ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        if let Ip::V4(ip) = &mut ip {
            ip.protocol = PROTOCOL_TCP;
        }
        let len = tcp.header_len() + octets.len();
        ip.set_payload_len(len).expect("a short segment");
        let ethernet = Ethernet {
            dst: to.mac,
            src: from.mac,
            vlan: None,
            ethertype: EtherType::IPV4,
        };
        let mut out = vec![0; 60 + len];
        let at_ip = ethernet.emit(&mut out).expect("room");
        let at = at_ip + ip.emit(&mut out[at_ip..]).expect("room");
        let end = at + tcp.emit(&mut out[at..]).expect("room");
        let sum = Tcp::checksum(&ip, &out[at..end], std::iter::once(octets));
        out[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        out.truncate(end);
        out.extend_from_slice(octets);
        out
    }

    fn send(&mut self, world: &World, flags: TcpFlags, octets: &[u8]) {
        world.inject(0, self.frame(world, self.seq, flags, octets));
        self.seq = self.seq.add(octets.len() as u32);
    }

    /// Reads the sequence number after what the NIC has sent to this end.
    fn see(&mut self, frames: &[(usize, Vec<u8>)]) {
        for (_, frame) in frames.iter().filter(|(host, _)| *host == 1) {
            let Ok((_, at_ip)) = Ethernet::parse(frame) else {
                continue;
            };
            let Ok((ip, ip_len)) = Ip::parse(&frame[at_ip..]) else {
                continue;
            };
            let Ok((tcp, tcp_len)) = Tcp::parse(&frame[at_ip + ip_len..]) else {
                continue;
            };
            if tcp.dst_port != self.port || tcp.flags.contains(TcpFlags::RST) {
                continue;
            }
            let control = u32::from(tcp.flags.intersects(TcpFlags::SYN | TcpFlags::FIN));
            let end = tcp.seq.add((ip.payload_len() - tcp_len) as u32 + control);
            if tcp.flags.contains(TcpFlags::SYN) || end.diff(self.seen) > 0 {
                self.seen = end;
            }
        }
    }
}

/// The FPDU of a ULPDU.
fn fpdu(ulpdu: &[u8], is_damaged: bool) -> Vec<u8> {
    let fpdu = Fpdu {
        ulpdu_len: ulpdu.len() as u16,
    };
    let mut out = vec![0; fpdu.len()];
    let at = fpdu.emit(&mut out).expect("room");
    out[at..at + ulpdu.len()].copy_from_slice(ulpdu);
    let end = out.len() - Fpdu::CRC_LEN;
    let mut crc = Crc32c::default();
    crc.update(&out[..end]);
    let crc = crc.finish() ^ u32::from(is_damaged);
    out[end..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The ULPDU of a message in one segment.
fn ulpdu(opcode: RdmapOpcode, target: DdpTarget, payload: &[u8]) -> Vec<u8> {
    let ddp = Ddp {
        last: true,
        version: DDP_VERSION,
        upper_control: RdmapControl::new(opcode).to_u8(),
        target,
    };
    let mut out = vec![0; ddp.header_len()];
    ddp.emit(&mut out).expect("room");
    out.extend_from_slice(payload);
    out
}

/// The setup frame of the peer, which may demand markers.
fn setup(markers: bool) -> Vec<u8> {
    let depths = EnhancedSetup {
        ird: 4,
        ord: 4,
        peer_to_peer: true,
        rtr_write: true,
        ..EnhancedSetup::default()
    };
    let mut flags = MpaFlags::CRC | MpaFlags::ENHANCED;
    flags.set(MpaFlags::MARKERS, markers);
    let setup = MpaSetup {
        role: MpaRole::Request,
        flags,
        revision: 2,
        private_data_len: EnhancedSetup::LEN as u16,
    };
    let mut out = vec![0; MpaSetup::LEN + EnhancedSetup::LEN];
    let at = setup.emit(&mut out).expect("room");
    depths.emit(&mut out[at..]).expect("room");
    out
}

/// Opens a connection of the peer to a new queue pair of host 1, and sends the empty WRITE after which the NIC may send.
fn open(world: &mut World, port: u16, (cq, open): (Cq, Mr), markers: bool) -> Target {
    let qp = world.hosts[1].qp(QPT_RC, &cq).expect("QP");
    world.hosts[1].driver.to_init(qp.qpn, RIGHTS).expect("INIT");
    let mut peer = Peer {
        port,
        seq: Seq(0xffff_ff00),
        seen: Seq(0),
        msns: [0; 4],
    };
    world.inject(0, peer.frame(world, peer.seq, TcpFlags::SYN, &[]));
    peer.seq = peer.seq.add(1);
    world.run_for(5_000);
    peer.see(&world.take_capture());
    peer.send(world, TcpFlags::ACK, &setup(markers));
    world.run_for(5_000);
    let events = world.hosts[1].driver.whole_events();
    let request = events
        .iter()
        .find(|event| event.kind == event::CONNECTION_REQUEST);
    let request = request.expect("a request").token.get() as u32;
    let driver = &mut world.hosts[1].driver;
    let welcome = Private::default();
    driver.accept(qp.qpn, request, &welcome).expect("accepted");
    world.run_for(5_000);
    peer.see(&world.take_capture());
    let target = DdpTarget::Tagged { stag: 0, offset: 0 };
    let rtr = fpdu(&ulpdu(RdmapOpcode::Write, target, &[]), false);
    peer.send(world, TcpFlags::ACK, &rtr);
    world.run_for(5_000);
    Target { cq, qp, open, peer }
}

/// Posts receives, and requests whose responses the peer makes.
fn post(world: &mut World, to: &mut Target) {
    let driver = &mut world.hosts[1].driver;
    for tag in 0..RECEIVES {
        let sges = [(to.open.va, RECEIVE, to.open.key)];
        driver.post_recv(&mut to.qp, tag, &sges);
    }
    for opcode in [wqe::WR_READ, wqe::WR_FETCH_ADD] {
        let len = if opcode == wqe::WR_READ { RECEIVE } else { 8 };
        let send = Send {
            opcode,
            sges: &[(to.open.va + 4096, len, to.open.key)],
            remote_addr: 0x1000,
            rkey: 0x100,
            compare_add: 1,
            ..Send::default()
        };
        driver.post_send(&mut to.qp, &send);
    }
    world.run_for(5_000);
    to.peer.see(&world.take_capture());
}

/// What the peer names.
struct Aim {
    /// Most requests name the first.
    keys: [u32; 3],
    va: u64,
}

impl Aim {
    fn key(&self, input: &mut Input<'_>) -> u32 {
        match input.u8() % 8 {
            0 => input.u32(),
            1 => self.keys[0] ^ u32::from(input.u8()),
            2 => self.keys[1],
            3 => self.keys[2],
            _ => self.keys[0],
        }
    }

    fn addr(&self, input: &mut Input<'_>) -> u64 {
        match input.u8() % 8 {
            0 => input.u64(),
            1 => u64::from(input.u16()).wrapping_neg(),
            2 => CLOSED + u64::from(input.u16()),
            _ => self.va + u64::from(input.u16()),
        }
    }
}

/// A ULPDU which is right in most of its parts.
fn request(input: &mut Input<'_>, aim: &Aim, peer: &mut Peer) -> Vec<u8> {
    let which = usize::from(input.u8());
    let opcode = RdmapOpcode::ALL[which % RdmapOpcode::ALL.len()];
    let how = input.u8();
    let mut control = RdmapControl::new(opcode);
    if how & 7 == 7 {
        (control.version, control.opcode) = (input.u8() & 3, input.u8() & 15);
    }
    let is_last = how & 8 == 0;
    let target = match opcode.queue() {
        None => DdpTarget::Tagged {
            stag: aim.key(input),
            offset: aim.addr(input),
        },
        Some(number) => {
            let msn = &mut peer.msns[number as usize];
            let next = msn.wrapping_add(1);
            if is_last {
                *msn = next;
            }
            DdpTarget::Untagged {
                upper: aim.key(input),
                queue: if how & 16 == 0 {
                    number
                } else {
                    input.u32() % 5
                },
                msn: if how & 32 == 0 { next } else { input.u32() },
                offset: if how & 64 == 0 {
                    0
                } else {
                    u32::from(input.u16())
                },
            }
        }
    };
    let ddp = Ddp {
        last: is_last,
        version: if how & 0x87 == 0x85 {
            input.u8() & 3
        } else {
            DDP_VERSION
        },
        upper_control: control.to_u8(),
        target,
    };
    let mut out = vec![0; ddp.header_len()];
    ddp.emit(&mut out).expect("room");
    payload(&mut out, input, aim, opcode);
    out
}

/// The header of RDMAP, or data.
fn payload(out: &mut Vec<u8>, input: &mut Input<'_>, aim: &Aim, opcode: RdmapOpcode) {
    let at = out.len();
    match opcode {
        RdmapOpcode::ReadRequest => {
            let read = ReadRequest {
                sink: (input.u32(), input.u64()),
                len: u32::from(input.u16()) << (input.u8() % 17),
                source: (aim.key(input), aim.addr(input)),
            };
            out.resize(at + ReadRequest::LEN, 0);
            read.emit(&mut out[at..]).expect("room");
        }
        RdmapOpcode::AtomicRequest => {
            let atomic = AtomicRequest {
                operation: input.u8() & 3,
                id: input.u32(),
                stag: aim.key(input),
                offset: aim.addr(input) & !7,
                data: input.u64(),
                mask: 0,
                compare: input.u64(),
                compare_mask: u64::MAX,
            };
            out.resize(at + AtomicRequest::LEN, 0);
            atomic.emit(&mut out[at..]).expect("room");
        }
        RdmapOpcode::AtomicResponse => {
            let response = AtomicResponse {
                id: u32::from(input.u8() % 4),
                original: input.u64(),
            };
            out.resize(at + AtomicResponse::LEN, 0);
            response.emit(&mut out[at..]).expect("room");
        }
        RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited => out.extend([input.u8(); 8]),
        _ => {}
    }
    let more = match input.u8() {
        short if short < 128 => usize::from(short) % 33,
        128..=253 => usize::from(input.u16()) % 1400,
        _ => 0,
    };
    // Whole headers have nothing behind them most of the time.
    let has_header = out.len() > at;
    if !has_header || input.u8() & 7 == 7 {
        out.resize(out.len() + more, 0x5a);
    }
    if has_header && input.u8() & 15 == 15 {
        out.truncate(at + usize::from(input.u8()) % 60);
    }
}

/// Some segments of the peer, or a pause.
fn step(world: &mut World, input: &mut Input<'_>, aim: &Aim, peer: &mut Peer) {
    let mut flags = TcpFlags::ACK;
    let octets = match input.u8() % 16 {
        0..=8 => fpdu(&request(input, aim, peer), false),
        9 => {
            let mut octets = fpdu(&request(input, aim, peer), false);
            octets.extend(fpdu(&request(input, aim, peer), false));
            octets
        }
        10 => fpdu(&request(input, aim, peer), true),
        11 => {
            let len = usize::from(input.u8());
            input.slice(len).to_vec()
        }
        12 => {
            flags = TcpFlags::from_bits_retain(input.u8());
            let seq = peer.seq.add(u32::from(input.u16()).wrapping_sub(0x8000));
            world.inject(0, peer.frame(world, seq, flags, &[0; 9]));
            return;
        }
        13 => {
            world.run_for(u64::from(input.u8()) << (input.u8() % 25));
            peer.see(&world.take_capture());
            return;
        }
        _ => {
            flags |= TcpFlags::PSH;
            fpdu(&request(input, aim, peer), false)
        }
    };
    let order = input.u8();
    let cut = usize::from(input.u16()) % (octets.len() + 1);
    match order % 8 {
        // In two segments, in order or not, once or twice.
        0..=3 => {
            let (head, tail) = octets.split_at(cut);
            let seq = peer.seq.add(cut as u32);
            let late = peer.frame(world, seq, flags, tail);
            if order & 1 != 0 {
                world.inject(0, late.clone());
            }
            peer.send(world, flags, head);
            world.inject(0, late);
            peer.seq = seq.add(tail.len() as u32);
        }
        // A hole, which is filled never.
        4 if order & 0xf0 == 0 => {
            let seq = peer.seq.add(cut as u32 + 1);
            world.inject(0, peer.frame(world, seq, flags, &octets));
        }
        _ => peer.send(world, flags, &octets),
    }
    if order & 64 != 0 {
        world.run_for(3_000);
        peer.see(&world.take_capture());
    }
}

/// The bystander's connection carries a message as if there were no other.
fn check_bystander(world: &mut World, by: &mut Target) {
    assert_eq!(world.completions(1, &mut by.cq), [], "of no message");
    let driver = &mut world.hosts[1].driver;
    driver.post_recv(&mut by.qp, 9, &[(by.open.va, RECEIVE, by.open.key)]);
    let target = DdpTarget::Untagged {
        upper: 0,
        queue: queue::SEND,
        msn: 1,
        offset: 0,
    };
    let data = pattern(3, 1000);
    let octets = fpdu(&ulpdu(RdmapOpcode::Send, target, data), false);
    by.peer.send(world, TcpFlags::ACK, &octets);
    world.run_for(5_000);
    let found = world.completions(1, &mut by.cq);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].status, found[0].wqe.get()), (cqe::SUCCESS, 9));
    let driver = &mut world.hosts[1].driver;
    assert!(driver.read_mr(&by.open, 0, data.len()) == data);
    let state = driver.query_qp(by.qp.qpn).expect("a queue pair").state;
    assert_eq!(state, QPS_RTS);
}

/// Rejects connections that segments of the peer have opened, and lets half-open ones end.
fn forget_requests(world: &mut World) {
    let driver = &mut world.hosts[1].driver;
    for event in driver.whole_events() {
        if event.kind == event::CONNECTION_REQUEST {
            // One may have ended since.
            let _ = driver.reject(event.token.get() as u32, &Private::default());
        }
    }
    world.run_for(SETUP_TIMEOUT);
}

/// Regions without rights and of another protection domain stay as they are, the other connection too; memory is bounded, and is given
/// back.
pub fn octets(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::with_config(2, 1, |config| config.transport = Transport::Iwarp);
    world.permit(&Rule::ALL);
    // Host 0 has no connection of these ports, and would answer with resets.
    world.change(0, |_| None);
    world.start_capture();
    let any = listener_path(Gid::from_ipv4([0; 4]), PORT);
    let pd = world.hosts[1].pd;
    let driver = &mut world.hosts[1].driver;
    driver.listen(any, 4).expect("a listener");
    let other = driver.alloc_pd().expect("a domain");
    let local = driver.reg_mr(pd, CLOSED, LEN, ACCESS_LOCAL_WRITE);
    let foreign = driver.reg_mr(other, CLOSED, LEN, ALL_ACCESS);
    let closed = [local, foreign].map(|region| region.expect("a region"));
    let secret = pattern(0, LEN as usize);
    for region in &closed {
        driver.write_mr(region, 0, secret);
    }
    let [first, second] = [(); 2].map(|()| {
        let cq = world.hosts[1].cq(6).expect("CQ");
        (cq, world.hosts[1].mr(LEN).expect("MR"))
    });
    let mut by = open(&mut world, BYSTANDER, first, false);
    let quiet = pattern(1, LEN as usize);
    world.hosts[1].driver.write_mr(&by.open, 0, quiet);
    let before = world.with_nic(1, |nic| nic.held_memory());
    let markers = !data.len().is_multiple_of(2);
    let mut to = open(&mut world, HOSTILE, second, markers);
    post(&mut world, &mut to);
    let idle = world.with_nic(1, |nic| nic.held_memory());
    let aim = Aim {
        keys: [to.open.key, closed[0].key, closed[1].key],
        va: to.open.va,
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut world, &mut input, &aim, &mut to.peer);
        let held = world.with_nic(1, |nic| nic.held_memory());
        assert!(held <= idle + MAX_HELD, "{held} octets are held");
    }
    world.run_for(5_000);
    let found = world.completions(1, &mut to.cq);
    assert!(found.len() <= (RECEIVES + REQUESTS) as usize, "{found:?}");
    let driver = &mut world.hosts[1].driver;
    for region in &closed {
        assert!(driver.read_mr(region, 0, LEN as usize) == secret);
    }
    assert!(driver.read_mr(&by.open, 0, LEN as usize) == quiet);
    check_bystander(&mut world, &mut by);
    let driver = &mut world.hosts[1].driver;
    let destroyed = driver.command(DESTROY_QP, to.qp.qpn, &());
    destroyed.expect("a NIC that answers");
    forget_requests(&mut world);
    let after = world.with_nic(1, |nic| nic.held_memory());
    assert!(after <= before, "{after} octets are left of {before}");
}
