//! Devices that are reset, clients that disconnect, memory that is removed: under traffic, and the state afterwards.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use faultline_abi::admin::Counter;
use faultline_abi::{cqe, regs};
use faultline_config::PollMode;
use faultline_harness::client::{CONFIG_REGION, UNMAP_ALL, command, message};
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::{Neighbours, Storm, exchange, exchange_anew, impatient};
use faultline_harness::{
    Buf, Cq, Mr, Nic, NicOptions, Qp, QpOptions, QpType, Ram, Reset, Rng, SendWr, Wc, connect,
    pattern,
};

/// Little memory, so that all of it can be looked at often.
fn small() -> NicOptions {
    NicOptions {
        ram: 4 << 20,
        ..NicOptions::default()
    }
}

/// All of the memory behind a NIC, filled by us at a time from which on the device must leave it alone.
struct Untouched<'a> {
    ram: &'a Ram,
    bytes: Vec<u8>,
}

impl<'a> Untouched<'a> {
    fn new(ram: &'a Ram, seed: u64) -> Self {
        let bytes = pattern(seed, ram.file().len());
        ram.file().write(0, &bytes).unwrap();
        Self { ram, bytes }
    }

    #[track_caller]
    fn check(&self, when: &str) {
        let mut have = vec![0; self.bytes.len()];
        self.ram.file().read(0, &mut have).unwrap();
        let first = have.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!(first, None, "the device wrote to this memory {when}");
    }
}

/// Lets a storm blow for a while that is different each time: some turns, and a part of one.
fn blow(storm: &mut Storm, nodes: [&Node; 2], rng: &mut Rng) {
    for _ in 0..1 + rng.below(20) {
        storm.turn(nodes);
    }
    for _ in 0..rng.below(20_000) {
        std::hint::spin_loop();
    }
}

#[test]
fn a_reset_under_traffic_ends_it_and_the_device_starts_anew() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c"]).unwrap();
    let mut a = fabric.node_with("a", &small()).unwrap();
    let (mut b, mut c) = (fabric.node("b").unwrap(), fabric.node("c").unwrap());
    let (mut qb, mut qc) = connect_nodes(&b, &c, QpType::Rc).unwrap();
    let mut rng = Rng::new(1);
    let mut cut_short = 0;
    for round in 0..24 {
        let how = Reset::ALL[round % 4];
        let mut storm = Storm::new([&a, &b], &mut rng).unwrap();
        blow(&mut storm, [&a, &b], &mut rng);

        a.nic.reset(how).unwrap();
        let nic = a.nic.clone();
        let gone = Untouched::new(nic.ram(), rng.next_u64());
        assert_eq!(nic.read_reg(regs::STATUS).unwrap() & regs::ENABLED, 0);
        if matches!(how, Reset::Function | Reset::Device) {
            assert_eq!(pci_command(&nic), 0, "{how:?}");
        }
        exchange((&mut b, &mut qb), (&mut c, &mut qc), &mut rng);
        let (status, well) = storm.end(1, &b, &a);
        assert_eq!(status, cqe::RETRY_EXC_ERR, "{how:?}");
        cut_short += usize::from(well < Storm::DEPTH);
        exchange((&mut c, &mut qc), (&mut b, &mut qb), &mut rng);
        gone.check(&format!("after {how:?}"));

        drop((storm, a));
        nic.start().unwrap();
        a = Node::new(nic).unwrap();
        let counters = a.nic.counters().unwrap();
        assert_eq!(counters[Counter::rx_packets], 0, "counters begin anew");
        exchange_anew(&mut a, &mut b, &mut rng);
        // The eventfds are the client's and survive.
        let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let write = SendWr::write_inline(b"wake me", b.mr.remote(0));
        a.cq.arm(false).unwrap();
        a.eq.arm().unwrap();
        qa.post_send(&write.signaled()).unwrap();
        assert!(a.eq.sleep(LONG).unwrap(), "no interrupt after {how:?}");
        a.good_completion();
    }
    assert!(cut_short > 0, "no reset hit data on its way");
}

fn pci_command(nic: &Nic) -> u16 {
    let mut bytes = [0; 2];
    nic.with_client(|client| client.read(CONFIG_REGION, 4, &mut bytes))
        .unwrap();
    u16::from_le_bytes(bytes)
}

/// Ways to leave, none of them polite.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// Between two messages.
    Between,
    /// After a part of a message.
    Within,
    /// With answers that the client does not read.
    Unread,
}

#[test]
fn a_client_may_vanish_and_the_next_one_finds_a_new_device() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let mut b = fabric.node("b").unwrap();
    let mut rng = Rng::new(2);
    for round in 0..18 {
        let how = [Leave::Between, Leave::Within, Leave::Unread][round % 3];
        let a = fabric.node_with("a", &small()).unwrap();
        let mut storm = Storm::new([&a, &b], &mut rng).unwrap();
        blow(&mut storm, [&a, &b], &mut rng);
        a.nic.with_client(|client| match how {
            Leave::Between => {}
            Leave::Within => {
                let bytes = message(1, command::REGION_READ, 0, &[0; 16]);
                let part = &bytes[..1 + rng.below(31) as usize];
                client.send_bytes(part, &[]).unwrap();
            }
            Leave::Unread => {
                let mut body = vec![0; 12];
                body.extend(4096u32.to_le_bytes());
                let bytes = message(1, command::REGION_READ, 0, &body);
                for _ in 0..20 {
                    client.send_bytes(&bytes, &[]).unwrap();
                }
            }
        });
        a.nic.hang_up();
        // The next client is never refused because of the previous one.
        let mut next = fabric.node_with("a", &small()).unwrap();
        let gone = Untouched::new(a.nic.ram(), rng.next_u64());
        exchange_anew(&mut next, &mut b, &mut rng);
        let (status, _) = storm.end(1, &b, &a);
        assert_eq!(status, cqe::RETRY_EXC_ERR, "{how:?}");
        neighbours.unharmed();
        gone.check(&format!("after its client left {how:?}"));
    }
    neighbours.finish();
}

/// The role of the removed memory for the outstanding work.
#[derive(Clone, Copy, Debug)]
enum Role {
    WriteTarget,
    ReadSource,
    ReceiveBuffer,
    SendSource,
    ReadTarget,
}

const ROLES: [Role; 5] = [
    Role::WriteTarget,
    Role::ReadSource,
    Role::ReceiveBuffer,
    Role::SendSource,
    Role::ReadTarget,
];

impl Role {
    /// Whether the requests are those of the NIC that the memory is lent to.
    fn is_local(self) -> bool {
        matches!(self, Self::SendSource | Self::ReadTarget)
    }

    /// Status and vendor error of a request for which there is no memory.
    fn error(self) -> (u8, u8) {
        match self {
            Self::WriteTarget | Self::ReceiveBuffer => (cqe::REM_OP_ERR, cqe::REMOTE),
            Self::ReadTarget => (cqe::LOC_PROT_ERR, cqe::DMA),
            // A packet is lost on its way: its receiver reads the memory, and finds none.
            Self::ReadSource | Self::SendSource => (cqe::RETRY_EXC_ERR, cqe::NONE),
        }
    }

    /// Posts a request of node `a`, or of node `b` if the memory is local to it.
    fn post(self, (qa, a): (&mut Qp, &Mr), (qb, b): (&mut Qp, &Mr), len: usize) {
        let (local, lent) = ([a.sge(0, len)], [b.sge(0, len)]);
        match self {
            Self::WriteTarget => qa.post_send(&SendWr::write(&local, b.remote(0)).signaled()),
            Self::ReadSource => qa.post_send(&SendWr::read(&local, b.remote(0)).signaled()),
            Self::ReceiveBuffer => {
                qb.post_recv(0, &lent).unwrap();
                qa.post_send(&SendWr::send(&local).signaled())
            }
            Self::SendSource => qb.post_send(&SendWr::write(&lent, a.remote(0)).signaled()),
            Self::ReadTarget => qb.post_send(&SendWr::read(&lent, a.remote(0)).signaled()),
        }
        .unwrap();
    }
}

/// Memory of node `b` apart from everything that the device needs to work.
struct Lent {
    ram: std::sync::Arc<Ram>,
    buf: Buf,
    mr: Mr,
}

impl Lent {
    const LEN: usize = 256 << 10;

    fn new(b: &Node) -> Self {
        let ram = Ram::new(Self::LEN, 0x77_0000_0000).unwrap();
        b.nic.lend(&ram).unwrap();
        let buf = ram.alloc(Self::LEN, 4096).unwrap();
        let mr = b.pd.register(&buf, ALL_ACCESS).unwrap();
        Self { ram, buf, mr }
    }
}

/// One side's QP with a CQ of its own.
fn side(node: &Node) -> (Qp, Cq) {
    let cq = node.context.cq(&node.eq, 11).unwrap();
    let options = QpOptions {
        send_depth: 10,
        recv_depth: 10,
        ..QpOptions::default()
    };
    let (context, pd) = (&node.context, &node.pd);
    let qp = context.qp(pd, QpType::Rc, &cq, &cq, None, &options);
    (qp.unwrap(), cq)
}

#[track_caller]
fn next(cq: &mut Cq) -> Wc {
    match cq.poll_for(LONG) {
        Some(wc) => wc,
        None => panic!("no completion within {LONG:?}"),
    }
}

#[test]
fn memory_that_was_taken_back_is_never_touched_again() {
    // Tens of milliseconds of work, if nothing came between.
    const LEN: usize = 200_000;
    const POSTED: usize = 1000;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let lent = Lent::new(&b);
    let mut rng = Rng::new(3);
    let (mut cut_short, mut moved) = (0, 0);
    for round in 0..150 {
        let role = ROLES[round % ROLES.len()];
        let (mut qa, mut ca) = side(&a);
        let (mut qb, mut cb) = side(&b);
        connect(&qa, &qb, &impatient()).unwrap();
        for _ in 0..POSTED {
            role.post((&mut qa, &a.mr), (&mut qb, &lent.mr), LEN);
        }
        let cq = if role.is_local() { &mut cb } else { &mut ca };
        let mut sent = std::iter::from_fn(|| Some(next(cq)))
            .filter(|wc| !wc.is_receive())
            .map(|wc| (wc.status, wc.vendor_err));
        // At any moment between two completions, of the first as of others.
        let mut statuses: Vec<_> = sent.by_ref().take(rng.below(30) as usize).collect();
        for _ in 0..rng.below(10_000) {
            std::hint::spin_loop();
        }
        b.nic.take_back(&lent.ram).unwrap();
        let gone = Untouched::new(&lent.ram, rng.next_u64());

        // This one can't succeed, independent of earlier ones.
        role.post((&mut qa, &a.mr), (&mut qb, &lent.mr), LEN);
        statuses.extend(sent.take(POSTED + 1 - statuses.len()));
        let well = statuses.iter().take_while(|s| s.0 == cqe::SUCCESS).count();
        cut_short += usize::from(well < POSTED);
        moved += usize::from(well > 0);
        assert_eq!(statuses[well], role.error(), "{role:?} after {well}");
        let rest = &statuses[well + 1..];
        let flushed = rest.iter().all(|s| s.0 == cqe::WR_FLUSH_ERR);
        assert!(flushed, "{role:?} after {well}: {rest:?}");
        exchange_anew(&mut a, &mut b, &mut rng);
        gone.check(&format!("as a {role:?} after it was taken back"));

        // The region is still there, and so is the memory now.
        b.nic.lend(&lent.ram).unwrap();
        let (mut qa, mut ca) = side(&a);
        let (qb, _cb) = side(&b);
        connect(&qa, &qb, &impatient()).unwrap();
        let seed = rng.next_u64();
        a.buf.fill_pattern(0, LEN, seed);
        let local = [a.mr.sge(0, LEN)];
        qa.post_send(&SendWr::write(&local, lent.mr.remote(4096)).signaled())
            .unwrap();
        assert!(next(&mut ca).is_ok(), "{role:?}");
        assert_eq!(lent.buf.pattern_mismatch(4096, LEN, seed), None);
    }
    assert!(cut_short > 0, "nothing was taken back from under work");
    assert!(moved > 0, "everything was taken back before work began");
}

#[test]
fn a_device_without_memory_stops_and_a_reset_helps() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let mut a = fabric.node("a").unwrap();
    let mut rng = Rng::new(4);
    let nic = fabric.node_with("b", &small()).unwrap().nic;
    for round in 0..10 {
        let b = Node::new(nic.clone()).unwrap();
        let mut storm = Storm::new([&a, &b], &mut rng).unwrap();
        blow(&mut storm, [&a, &b], &mut rng);
        if round % 2 == 0 {
            nic.with_client(|client| client.dma_unmap(0, 0, UNMAP_ALL))
                .unwrap();
        } else {
            nic.take_back(nic.ram()).unwrap();
        }
        let gone = Untouched::new(nic.ram(), rng.next_u64());
        storm.end(0, &a, &b);
        neighbours.unharmed();
        gone.check("after everything was taken back");
        // Its command rings are gone too.
        let error = nic.pd().unwrap_err();
        assert!(error.to_string().contains("reason to stop"), "{error}");
        assert_eq!(nic.read_reg(regs::FATAL_CODE).unwrap(), regs::RING_DMA);
        nic.lend(nic.ram()).unwrap();
        drop((storm, b));
        nic.reset(Reset::Function).unwrap();
        nic.start().unwrap();
        exchange_anew(&mut a, &mut Node::new(nic.clone()).unwrap(), &mut rng);
    }
    neighbours.finish();
}

/// QEMU maps memory that it can't share without a descriptor.
#[test]
fn memory_without_a_descriptor_can_be_named_but_not_reached() {
    const IOVA: u64 = 0x55_0000_0000;
    const LEN: u64 = 1 << 20;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let flags = faultline_harness::client::MAP_READ | faultline_harness::client::MAP_WRITE;
    b.nic
        .with_client(|client| client.dma_map(IOVA, LEN, 0, flags, None))
        .unwrap();
    let pages: Vec<u64> = (IOVA..IOVA + LEN).step_by(4096).collect();
    let mr =
        b.pd.register_pages(0x1000, LEN, &pages, ALL_ACCESS)
            .unwrap();
    // The NIC that copies counts the error: the receiver of each packet.
    let errors = |a: &Node, b: &Node| -> u64 {
        let nodes = [a, b];
        let counters = nodes.map(|node| node.nic.counters().unwrap()[Counter::dma_errors]);
        counters.iter().sum()
    };
    let mut before = errors(&a, &b);
    for role in ROLES {
        let (mut qa, mut ca) = side(&a);
        let (mut qb, mut cb) = side(&b);
        connect(&qa, &qb, &impatient()).unwrap();
        role.post((&mut qa, &a.mr), (&mut qb, &mr), 5000);
        let wc = next(if role.is_local() { &mut cb } else { &mut ca });
        assert_eq!((wc.status, wc.vendor_err), role.error(), "{role:?}");
        if let Role::ReceiveBuffer = role {
            let wc = next(&mut cb);
            assert_eq!((wc.status, wc.vendor_err), (cqe::LOC_PROT_ERR, cqe::DMA));
        }
        let after = errors(&a, &b);
        assert!(after > before, "{role:?} is not counted");
        before = after;
        exchange_anew(&mut a, &mut b, &mut Rng::new(5));
    }
}

/// Set for the test below, started again in a mount namespace of its own.
const FULL: &str = "FAULTLINE_TEST_FULL";

/// Guest RAM that is a sparse file on a file system without room: an access to a page that is not there is a DMA error of
/// that guest, and once there is room it succeeds. Other guests are not affected, and the process continues.
#[test]
fn a_hole_that_cannot_be_filled_is_an_error_of_its_guest() {
    const LEN: u64 = 1 << 20;
    const IOVA: u64 = 0x55_0000_0000;
    const NAME: &str = "lifecycle::a_hole_that_cannot_be_filled_is_an_error_of_its_guest";
    let Some(directory) = std::env::var_os(FULL) else {
        let directory = tempfile::tempdir().unwrap();
        let script =
            "mount -t tmpfs -o size=256k none \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
        let status = std::process::Command::new("unshare")
            .args(["--mount", "--map-root-user", "sh", "-c", script, "sh"])
            .arg(directory.path())
            .arg(std::env::current_exe().unwrap())
            .arg(NAME)
            .env(FULL, directory.path())
            .status();
        assert!(status.unwrap().success());
        return;
    };
    let directory = std::path::PathBuf::from(directory);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(directory.join("ram"))
        .unwrap();
    file.set_len(LEN).unwrap();
    // A page in the midst is there.
    file.write_all_at(&[0xa5; 4096], LEN / 2).unwrap();
    let filler = directory.join("filler");
    let full = std::fs::write(&filler, vec![1; LEN as usize]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);

    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let flags = faultline_harness::client::MAP_READ | faultline_harness::client::MAP_WRITE;
    let fd = Some(file.as_fd());
    b.nic
        .with_client(|client| client.dma_map(IOVA, LEN, 0, flags, fd))
        .unwrap();
    let pages: Vec<u64> = (IOVA..IOVA + LEN).step_by(4096).collect();
    let mr =
        b.pd.register_pages(0x1000, LEN, &pages, ALL_ACCESS)
            .unwrap();
    let mut rng = Rng::new(6);
    let mut errors = 0;
    for role in ROLES.into_iter().cycle().take(4 * ROLES.len()) {
        let (mut qa, mut ca) = side(&a);
        let (mut qb, mut cb) = side(&b);
        connect(&qa, &qb, &impatient()).unwrap();
        role.post((&mut qa, &a.mr), (&mut qb, &mr), 20_000);
        let wc = next(if role.is_local() { &mut cb } else { &mut ca });
        assert_eq!((wc.status, wc.vendor_err), role.error(), "{role:?}");
        if let Role::ReceiveBuffer = role {
            let wc = next(&mut cb);
            assert_eq!((wc.status, wc.vendor_err), (cqe::LOC_PROT_ERR, cqe::DMA));
        }
        let counted = b.nic.counters().unwrap()[Counter::dma_errors];
        errors = errors.max(counted);
        neighbours.unharmed();
        exchange_anew(&mut a, &mut b, &mut rng);
    }
    assert!(errors > 0, "counted at the NIC whose memory it is");
    // The present page can be read, and all others once there is room.
    let (mut qa, mut ca) = side(&a);
    let (qb, _cb) = side(&b);
    connect(&qa, &qb, &impatient()).unwrap();
    let local = [a.mr.sge(0, 4096)];
    let read = SendWr::read(&local, mr.remote(LEN as usize / 2)).signaled();
    qa.post_send(&read).unwrap();
    assert!(next(&mut ca).is_ok());
    assert_eq!(a.buf.to_vec(0, 4096), [0xa5; 4096]);
    std::fs::remove_file(&filler).unwrap();
    a.buf.fill_pattern(0, 50_000, 1);
    let local = [a.mr.sge(0, 50_000)];
    let write = SendWr::write(&local, mr.remote(100)).signaled();
    qa.post_send(&write).unwrap();
    assert!(next(&mut ca).is_ok());
    let mut there = vec![0; 50_000];
    file.read_exact_at(&mut there, 100).unwrap();
    assert!(there == a.buf.to_vec(0, 50_000));
    neighbours.finish();
}
