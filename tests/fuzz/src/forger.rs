//! A peer that makes its packets by hand, for all queue pairs of a NIC, its own and others', under its own address and
//! another host's.

use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::tag;
use faultline_abi::wqe as wr;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Cq, Mr, Qp, Send, Srq, TagOp, TagSrq};
use faultline_simulator::{World, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::{Opcode, Service};
use faultline_wire::packet::RoceHeader;
use zerocopy::IntoBytes;

use crate::input::{Input, pattern};
use crate::peer::{Aim, QKEY, damaged, extend};

const LEN: u64 = 8192;
const ACCESS: u32 = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
const RECEIVE_LEN: u32 = 2000;
const TAGS: u32 = 4;
/// The peer's queue pair, which does not exist: it answers by hand.
const PEER_QPN: u32 = 77;
const PATH_MTU: usize = 1024;

/// A queue pair of the victim.
struct End {
    qpn: u32,
    service: Service,
    /// Objects that it sends and receives with; XRC targets have none, and on the tag list there are no own receives.
    qp: Option<Qp>,
}

/// Host 1.
struct Victim {
    cq: Cq,
    ends: Vec<End>,
    xrc_srq: Srq,
    tag_srq: TagSrq,
    /// All rights; read only; none for a peer.
    open: Mr,
    read_only: Mr,
    closed: Mr,
    /// Completions that there can be.
    most: usize,
}

impl Victim {
    fn new(world: &mut World) -> Self {
        let cq = world.hosts[1].cq(8).unwrap();
        let pd = world.hosts[1].pd;
        let path = world.path(0, PEER_QPN);
        let host = &mut world.hosts[1];
        let access = [ACCESS, ACCESS_REMOTE_READ, ACCESS_LOCAL_WRITE];
        let mut va = 0;
        let [open, read_only, closed] = access.map(|access| {
            va += 0x10_0000;
            host.driver.reg_mr(pd, va, LEN, access).expect("a region")
        });
        let xrcd = host.driver.alloc_xrcd().expect("a domain");
        let xrc_srq = host.driver.create_xrc_srq(pd, xrcd, cq.cqn);
        let xrc_srq = xrc_srq.expect("an SRQ");
        let tag_srq = host.driver.create_tag_srq(pd, 0, cq.cqn, TAGS);
        let tag_srq = tag_srq.expect("an SRQ");
        let mut ends = Vec::new();
        for (kind, service) in [
            (QPT_RC, Service::Rc),
            (QPT_UC, Service::Uc),
            (QPT_UD, Service::Ud),
        ] {
            let qp = host.qp(kind, &cq).unwrap();
            ends.push(End {
                qpn: qp.qpn,
                service,
                qp: Some(qp),
            });
        }
        let mut config = host.qp_config(QPT_RC, &cq);
        config.srqn = Some(tag_srq.srqn());
        let tagged = host.driver.create_qp(&config).expect("a queue pair");
        ends.push(End {
            qpn: tagged.qpn,
            service: Service::Rc,
            qp: Some(tagged),
        });
        ends.push(End {
            qpn: host.driver.create_xrc_target(xrcd).expect("a target"),
            service: Service::Xrc,
            qp: None,
        });
        for end in &ends {
            let kind = match end.service {
                Service::Rc => QPT_RC,
                Service::Uc => QPT_UC,
                Service::Xrc => QPT_XRC_TGT,
                _ => QPT_UD,
            };
            let path = faultline_simulation::Connect {
                access: ACCESS,
                timeout: 5,
                ..path
            };
            let done = match end.service {
                Service::Ud => host.driver.activate(end.qpn, kind, QKEY),
                _ => host.driver.connect(end.qpn, kind, &path),
            };
            done.expect("a change of state");
        }
        let mut victim = Self {
            cq,
            ends,
            xrc_srq,
            tag_srq,
            open,
            read_only,
            closed,
            most: 0,
        };
        for which in 0..5 {
            for _ in 0..3 {
                victim.receive(world, which);
            }
        }
        for (mr, n) in [(victim.read_only, 7), (victim.closed, 11)] {
            world.hosts[1]
                .driver
                .write_mr(&mr, 0, pattern(n, LEN as usize));
        }
        victim
    }

    /// Posts a receive to one of the queues.
    fn receive(&mut self, world: &mut World, which: usize) {
        let driver = &mut world.hosts[1].driver;
        let sges = [(self.open.va, RECEIVE_LEN, self.open.key)];
        match which {
            3 => driver.post_srq_recv(&mut self.tag_srq.srq, 0, &sges),
            4 => driver.post_srq_recv(&mut self.xrc_srq, 0, &sges),
            _ => {
                let qp = self.ends[which].qp.as_mut().expect("with own receives");
                driver.post_recv(qp, 0, &sges);
            }
        }
        self.most += 1;
    }

    /// Changes the list of tags.
    fn tag_op(&mut self, world: &mut World, input: &mut Input<'_>) {
        let len = u32::from(input.u8()) * 16;
        let sges = [(self.open.va, len, self.open.key)];
        let how = input.u8();
        let op = TagOp {
            opcode: 1 + how % 3,
            slot: u32::from(how >> 2) % (TAGS + 1),
            tag: u64::from(input.u8() % 4),
            mask: u64::from(input.u8() % 4),
            sync: (how & 64 != 0).then(|| u32::from(input.u8())),
            sges: &sges[..usize::from(how & 128 == 0)],
            ..TagOp::default()
        };
        world.hosts[1].driver.post_tag_op(&mut self.tag_srq, &op);
        // It is added, matches, and its data is there.
        self.most += 3;
    }

    /// Sends something to the peer, for the peer to answer.
    fn send(&mut self, world: &mut World, input: &mut Input<'_>) {
        let which = [0, 1, 3][usize::from(input.u8()) % 3];
        let opcodes = [
            wr::WR_SEND,
            wr::WR_WRITE,
            wr::WR_READ,
            wr::WR_FETCH_ADD,
            wr::WR_FLUSH,
        ];
        let opcode = opcodes[usize::from(input.u8()) % opcodes.len()];
        let len = match opcode {
            wr::WR_FETCH_ADD => 8,
            _ => u32::from(input.u8()) * 16,
        };
        let sges = [(self.open.va, len, self.open.key)];
        let send = Send {
            opcode,
            sges: &sges[..usize::from(opcode != wr::WR_FLUSH)],
            remote_addr: 0x1000,
            rkey: 1,
            ..Send::default()
        };
        if let Some(qp) = &mut self.ends[which].qp {
            world.hosts[1].driver.post_send(qp, &send);
            self.most += 1;
        }
    }
}

/// A connection between host 2 and host 1 with a domain and regions of its own.
struct Honest {
    cq: Cq,
    qp: [Qp; 2],
    mr: [Mr; 2],
}

impl Honest {
    fn new(world: &mut World) -> Self {
        let [cq, cq1] = [2, 1].map(|host: usize| world.hosts[host].cq(4).unwrap());
        let pd = world.hosts[1].driver.alloc_pd().expect("a domain");
        let mut config = world.hosts[1].qp_config(QPT_RC, &cq1);
        config.pd = pd;
        let qp1 = world.hosts[1].driver.create_qp(&config);
        let qp = [
            world.hosts[2].qp(QPT_RC, &cq).unwrap(),
            qp1.expect("a queue pair"),
        ];
        let driver = &mut world.hosts[1].driver;
        let mr1 = driver.reg_mr(pd, 0x10_0000, LEN, ACCESS);
        let mr = [world.hosts[2].mr(LEN).unwrap(), mr1.expect("a region")];
        for (host, own, peer) in [(2, 0, 1), (1, 1, 0)] {
            let path = world.path(3 - host, qp[peer].qpn);
            let driver = &mut world.hosts[host].driver;
            driver
                .connect(qp[own].qpn, QPT_RC, &path)
                .expect("a connection");
        }
        Self { cq, qp, mr }
    }

    /// Host 2 writes this to host 1; true if that succeeds.
    fn write(&mut self, world: &mut World, data: &[u8]) -> bool {
        let [from, to] = self.mr;
        let driver = &mut world.hosts[2].driver;
        driver.write_mr(&from, 0, data);
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, data.len() as u32, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        driver.post_send(&mut self.qp[0], &send);
        world.run_for(10_000_000);
        let found = world.completions(2, &mut self.cq);
        found.len() == 1 && found[0].status == cqe::SUCCESS && self.holds(world, data)
    }

    fn holds(&self, world: &World, data: &[u8]) -> bool {
        world.hosts[1].driver.read_mr(&self.mr[1], 0, data.len()) == data
    }
}

/// Packets and messages for all queue pairs of a NIC, beside what its owner does. Regions keep what is in them but where a
/// peer may write. The connection of others works, unless packets come under its peer's address: then they are that peer's.
pub fn forger(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(3, 1);
    // Drivers and peers that break the rules make NICs break them.
    world.permit(&faultline_checker::Rule::ALL);
    world.persist_slowly(1);
    let mut victim = Victim::new(&mut world);
    let mut honest = Honest::new(&mut world);
    let first = pattern(3, LEN as usize);
    assert!(honest.write(&mut world, first));
    let mut forgery = Forgery {
        aim: Aim {
            qpn: 0,
            srqn: victim.xrc_srq.srqn,
            keys: [
                &victim.open,
                &victim.read_only,
                &victim.closed,
                &honest.mr[1],
            ]
            .map(|mr| mr.key)
            .to_vec(),
            va: victim.open.va,
        },
        honest: honest.qp[1].qpn,
        spoofed: false,
    };
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        match input.u8() % 12 {
            0..3 => forgery.packet(&mut world, &victim, &mut input),
            3..7 => forgery.message(&mut world, &victim, &mut input),
            7 => victim.receive(&mut world, usize::from(input.u8()) % 5),
            8 => victim.tag_op(&mut world, &mut input),
            9 => victim.send(&mut world, &mut input),
            10 => {
                if !world.persisting(1).is_empty() {
                    world.persist(1, !input.u8().is_multiple_of(4));
                }
            }
            _ => world.run_for(u64::from(input.u16()) * 16),
        }
    }
    world.run_for(1_000_000);
    let found = world.completions(1, &mut victim.cq);
    assert!(found.len() <= victim.most, "{found:?}");
    let driver = &mut world.hosts[1].driver;
    for (mr, n) in [(victim.read_only, 7), (victim.closed, 11)] {
        assert!(driver.read_mr(&mr, 0, LEN as usize) == pattern(n, LEN as usize));
    }
    driver.alloc_pd().expect("a NIC that answers");
    if !forgery.spoofed {
        assert!(honest.holds(&world, first));
        assert!(honest.write(&mut world, pattern(5, LEN as usize)));
    }
}

struct Forgery {
    aim: Aim,
    /// Number of the honest connection's queue pair.
    honest: u32,
    /// It has got packets under its peer's address.
    spoofed: bool,
}

impl Forgery {
    /// A queue pair and the header of a packet for it, with a PSN near that which it expects.
    fn header(
        &mut self,
        world: &mut World,
        victim: &Victim,
        input: &mut Input<'_>,
    ) -> (RoceHeader, Service) {
        let (which, how) = (usize::from(input.u8()), input.u8());
        let (qpn, service) = match victim.ends.get(which % 8) {
            Some(end) => (end.qpn, end.service),
            None => (self.honest, Service::Rc),
        };
        let attr = world.hosts[1].driver.query_qp(qpn);
        let attr = attr.expect("a queue pair");
        let near = match how & 3 {
            0 => input.u8().wrapping_sub(8),
            _ => 0,
        };
        let expected = match how & 4 {
            0 => attr.rq_psn.get(),
            _ => attr.sq_psn.get(),
        };
        let psn = expected.wrapping_add(u32::from(near)) & 0xff_ffff;
        let mut bth = Bth::new(Opcode::RcSendOnly, qpn, Psn::new(psn));
        bth.ack_req = how & 8 != 0;
        bth.solicited = how & 16 != 0;
        // Other ports' addresses in the Ethernet header do not pass the switch; those in the IP header do.
        let from = match how & 0xe0 {
            0 => 2,
            _ => 0,
        };
        let to = &world.hosts[1];
        let ip = Ip::from_gids(world.hosts[from].gid, to.gid, 0, 0, 64);
        self.spoofed |= from == 2 && qpn == self.honest;
        (
            RoceHeader::new(to.mac, world.hosts[0].mac, ip, bth),
            service,
        )
    }

    /// One packet with any opcode.
    fn packet(&mut self, world: &mut World, victim: &Victim, input: &mut Input<'_>) {
        let (mut header, service) = self.header(world, victim, input);
        let opcode = Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()];
        let own = opcode.with_service(service).unwrap_or(opcode);
        header.bth.opcode = match input.u8() % 8 {
            0 => opcode,
            _ => own,
        };
        extend(&mut header, input, &self.aim);
        let payload = payload(input, &self.aim);
        let bytes = damaged(packet(&header, &payload), input);
        world.inject(0, bytes);
    }

    /// The packets of a message; one may be lost, come twice, or be another's.
    fn message(&mut self, world: &mut World, victim: &Victim, input: &mut Input<'_>) {
        use Opcode::*;
        let (base, service) = self.header(world, victim, input);
        let count = 1 + u32::from(input.u8() % 4);
        let kinds = [
            [RcSendFirst, RcSendMiddle, RcSendLast, RcSendOnly],
            [
                RcSendFirst,
                RcSendMiddle,
                RcSendLastWithInvalidate,
                RcSendOnlyWithInvalidate,
            ],
            [RcWriteFirst, RcWriteMiddle, RcWriteLast, RcWriteOnly],
            [
                RcWriteFirst,
                RcWriteMiddle,
                RcWriteLastWithImmediate,
                RcWriteOnlyWithImmediate,
            ],
        ];
        let [first, middle, last, only] = kinds[usize::from(input.u8()) % kinds.len()];
        let last_part = payload(input, &self.aim);
        let mut message = vec![0x77; PATH_MTU * (count as usize - 1)];
        // A tag is looked for in the beginning.
        let start = last_part.len().min(message.len());
        message[..start].copy_from_slice(&last_part[..start]);
        message.extend(&last_part);
        let (twist, which) = (input.u8() % 8, u32::from(input.u8()) % count);
        for (n, part) in (0..count).zip(parts(&message)) {
            let position = match (n, n + 1 == count) {
                (0, true) => only,
                (0, false) => first,
                (_, true) => last,
                _ => middle,
            };
            let opcode = match (twist, n == which) {
                (3, true) => Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()],
                _ => position,
            };
            let mut header = base;
            header.bth.psn = base.bth.psn.add(n);
            header.bth.opcode = opcode.with_service(service).unwrap_or(opcode);
            extend(&mut header, input, &self.aim);
            if let Some(reth) = &mut header.reth
                && twist != 5
            {
                reth.len = message.len() as u32;
            }
            let bytes = packet(&header, part);
            match (twist, n == which) {
                (1, true) => {}
                (2, true) => {
                    world.inject(0, bytes.clone());
                    world.inject(0, bytes);
                }
                (4, true) => world.inject(0, damaged(bytes, input)),
                _ => world.inject(0, bytes),
            }
        }
        if twist & 1 == 0 {
            world.run_for(2_000);
        }
    }
}

/// The packets' parts of a message.
fn parts(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (whole, rest) = message.as_chunks::<PATH_MTU>();
    // The last packet may be empty, or full.
    whole.iter().map(|part| &part[..]).chain([rest])
}

/// Contents of a packet, or of the last packet of a message: octets, or the headers of tag matching.
fn payload(input: &mut Input<'_>, aim: &Aim) -> Vec<u8> {
    let how = input.u8();
    let mut out = Vec::new();
    if how & 0xc0 == 0xc0 {
        let opcode = input.u8() % 5;
        let header = tag::Tmh::new(opcode, u64::from(input.u8() % 4), [0; 4]);
        out.extend_from_slice(header.as_bytes());
        let va = aim.va + u64::from(input.u8());
        let request = tag::Rvh::new(va, aim.keys[0], input.u16().into());
        if how & 0x20 != 0 {
            out.extend_from_slice(request.as_bytes());
        }
    }
    let more = match how & 0x1f {
        31 => PATH_MTU,
        30 => usize::from(input.u16()) % (PATH_MTU + 32),
        short => usize::from(short) * 4,
    };
    out.resize((out.len() + more).min(PATH_MTU + 32), how);
    out
}
