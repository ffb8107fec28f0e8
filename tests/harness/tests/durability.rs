//! FLUSH to persistence of guest memory that is a file on a disk.

use std::fs::File;
use std::time::{Duration, Instant};

use faultline_abi::qp::{ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT};
use faultline_abi::wqe::{FLUSH_PERSISTENT, FlushWqe, WR_FLAG_SIGNALED, WR_FLUSH};
use faultline_abi::{U32, U64, cqe};
use faultline_config::PollMode;
use faultline_harness::client::{Client, MAP_READ, MAP_WRITE};
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node};
use faultline_harness::traffic::{exchange_anew, impatient};
use faultline_harness::{Link, Mr, Nic, Qp, QpType, Reset, Rng, SendWr, connect, pattern};
use faultline_memory::MappedFile;
use rustix::fd::AsFd;

const LEN: usize = 64 << 20;
const IOVA: u64 = 0x77_0000_0000;
const ACCESS: u32 = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
/// A disk that takes this long for all of the memory is one to wait for.
const SLOW: Duration = Duration::from_millis(20);
/// Rounds in which others may show that they do not wait.
const MOST_ROUNDS: u64 = 40;

/// Memory of a node that is a file.
struct Lasting {
    file: File,
    view: MappedFile,
    mr: Mr,
}

impl Lasting {
    fn new(node: &Node) -> Self {
        // Not in /tmp, which is memory itself on many systems.
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.set_len(LEN as u64).unwrap();
        let view = MappedFile::map(&file, 0, LEN).unwrap();
        lend(&node.nic, &file);
        let pages: Vec<u64> = (IOVA..IOVA + LEN as u64).step_by(4096).collect();
        let mr = node.pd.register_pages(IOVA, LEN as u64, &pages, ACCESS);
        let mr = mr.unwrap();
        Self { file, view, mr }
    }

    /// Changes every page.
    fn dirty(&self, seed: u64) {
        for at in (0..LEN as u64).step_by(4096) {
            self.view.write(at, &(seed + at).to_le_bytes()).unwrap();
        }
    }
}

fn lend(nic: &Nic, file: &File) {
    let (len, all) = (LEN as u64, MAP_READ | MAP_WRITE);
    let lent = |client: &mut Client| client.dma_map(IOVA, len, 0, all, Some(file.as_fd()));
    nic.with_client(lent).unwrap();
}

fn take_back(nic: &Nic) {
    let taken = |client: &mut Client| client.dma_unmap(IOVA, LEN as u64, 0);
    nic.with_client(taken).unwrap();
}

/// Flushes a range, or all of the region.
fn flush(qp: &mut Qp, mr: &Mr, range: Option<(usize, usize)>) {
    let (at, length) = range.unwrap_or_default();
    let entry = FlushWqe {
        opcode: WR_FLUSH,
        flags: WR_FLAG_SIGNALED,
        placement: U32::new(FLUSH_PERSISTENT),
        selectivity: U32::new(u32::from(range.is_none())),
        rkey: U32::new(mr.key()),
        remote_addr: U64::new(mr.remote(at).addr),
        length: U64::new(length as u64),
        ..FlushWqe::default()
    };
    qp.post_raw(zerocopy::IntoBytes::as_bytes(&entry)).unwrap();
}

fn qps(a: &Node, b: &Node, link: Link) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    let link = Link {
        access: ACCESS,
        ..link
    };
    connect(&qa, &qb, &link).unwrap();
    (qa, qb)
}

#[test]
fn only_a_flush_waits_for_a_disk() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let [mut a, b, mut c, mut d] = ["a", "b", "c", "d"].map(|name| fabric.node(name).unwrap());
    let lasting = Lasting::new(&b);
    let (mut qa, _qb) = qps(&a, &b, Link::default());
    let mut rng = Rng::new(1);
    // By kind: rounds in which the disk was slow, and messages of others in these.
    let (mut slow, mut meanwhile) = ([0; 2], [0; 2]);
    for round in 0..MOST_ROUNDS {
        let kind = round as usize % 2;
        let is_shown = |kind: usize| slow[kind] < 3 || meanwhile[kind] > 0;
        if round >= 6 && is_shown(0) && is_shown(1) {
            break;
        }
        lasting.dirty(round);
        // Data, which must be durable before the word behind it is there.
        a.buf.fill_pattern(0, 100_000, round);
        let (at, sges) = (12_345, [a.mr.sge(0, 100_000)]);
        let write = SendWr::write(&sges, lasting.mr.remote(at)).signaled();
        qa.post_send(&write).unwrap();
        let start = Instant::now();
        flush(&mut qa, &lasting.mr, (kind == 0).then_some((0, LEN)));
        let done = (round + 1).to_le_bytes();
        let after = SendWr::write_inline(&done, lasting.mr.remote(0)).signaled();
        qa.post_send(&after).unwrap();
        assert_eq!(a.good_completion().opcode, cqe::RDMA_WRITE);

        let mut exchanges = 0u32;
        let wc = loop {
            if let Some(wc) = a.cq.poll() {
                break wc;
            }
            assert!(start.elapsed() < LONG, "never durable");
            exchange_anew(&mut c, &mut d, &mut rng);
            exchanges += 1;
        };
        // proves: IBV_WC_FLUSH
        assert!(wc.is_ok() && wc.opcode == cqe::FLUSH, "{wc:?}");
        if start.elapsed() > SLOW {
            slow[kind] += 1;
            // The last may have ended after the disk had.
            meanwhile[kind] += exchanges.saturating_sub(1);
        }
        let wc = a.good_completion();
        qa.retire(&wc);
        let mut word = [0; 8];
        lasting.view.read(0, &mut word).unwrap();
        // proves: IBV_FLUSH_PERSISTENT, IB_DEVICE_FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT
        assert_eq!(word, done);
        let mut data = vec![0; 100_000];
        lasting.view.read(at as u64, &mut data).unwrap();
        assert!(data == pattern(round, data.len()));
    }
    println!("{slow:?} times the disk was slow, {meanwhile:?} exchanges meanwhile");
    // A single exchange may take longer than the disk when the machine is busy; not in all rounds.
    for kind in 0..2 {
        assert!(slow[kind] < 3 || meanwhile[kind] > 0, "others had to wait");
    }
}

/// Objects that end during a wait for a disk.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Memory,
    Device,
    Client,
}

#[test]
fn memory_device_and_client_may_go_while_a_disk_is_waited_for() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let mut a = fabric.node("a").unwrap();
    let mut b = fabric.node("b").unwrap();
    let mut rng = Rng::new(2);
    let mut cut_short = 0;
    for (round, what) in [Gone::Memory, Gone::Device, Gone::Client]
        .iter()
        .cycle()
        .take(9)
        .enumerate()
    {
        let lasting = Lasting::new(&b);
        let (mut qa, qb) = qps(&a, &b, impatient());
        lasting.dirty(round as u64);
        for _ in 0..3 {
            flush(&mut qa, &lasting.mr, None);
        }
        let write = SendWr::write_inline(b"after", lasting.mr.remote(0)).signaled();
        qa.post_send(&write).unwrap();
        match what {
            Gone::Memory => take_back(&b.nic),
            Gone::Device => b.nic.reset(Reset::Function).unwrap(),
            Gone::Client => b.nic.hang_up(),
        }
        // The device notices later that a client has hung up, but before it has the next.
        let next = matches!(what, Gone::Client).then(|| fabric.open("b").unwrap());
        lasting.view.write(0, b"mine!").unwrap();
        let mut last = cqe::SUCCESS;
        for _ in 0..4 {
            let wc = a.cq.poll_for(LONG).expect("an end");
            last = if last == cqe::SUCCESS {
                wc.status
            } else {
                last
            };
        }
        // A quick disk may have been done with all of it before.
        let expected = match what {
            Gone::Memory => cqe::REM_OP_ERR,
            Gone::Device | Gone::Client => cqe::RETRY_EXC_ERR,
        };
        cut_short += usize::from(last != cqe::SUCCESS);
        assert!([cqe::SUCCESS, expected].contains(&last), "{what:?}: {last}");
        let mut word = [0; 5];
        lasting.view.read(0, &mut word).unwrap();
        assert_eq!(&word, b"mine!", "{what:?}");
        let Lasting { file, view, mr } = lasting;
        drop((mr, qb, view));
        match what {
            Gone::Memory => {
                lend(&b.nic, &file);
                take_back(&b.nic);
            }
            Gone::Device => {
                let nic = b.nic.clone();
                drop(b);
                take_back(&nic);
                nic.start().unwrap();
                b = Node::new(nic).unwrap();
            }
            Gone::Client => b = Node::new(next.expect("opened")).unwrap(),
        }
        exchange_anew(&mut a, &mut b, &mut rng);
    }
    println!("{cut_short} of 9 times something was waited for");
}
