//! Two NICs in one process: a WRITE, a page fault and its repair, step by step.
//!
//!     cargo run -p faultline-simulator --example loopback
//!
//! This program is the environment of two NICs: the memory of two guests, the wire between the NICs, and the clock. The
//! drivers are those of the simulator; they write commands and work requests into guest memory and ring doorbells, as
//! any driver does.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::admin::{CREATE_MKEY, Counter, CreateMkey, EQ_FAULTS, QP_FLAG_SIG_ALL};
use faultline_abi::doorbell::Doorbell;
use faultline_abi::qp::{ACCESS_ON_DEMAND, QPT_RC};
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe::WR_WRITE;
use faultline_abi::{U32, U64, cqe};
use faultline_nic::{Dma, FrameKind, Instant, Nic, NicConfig, TxFrame};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Connect, Cq, CqConfig, Driver, Error, Memory, Qp, QpConfig, Send};
use faultline_wire::aeth::{Syndrome, rnr_timer_ns};
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, MacAddr};

const RAM: usize = 1 << 20;
const PAGE: u64 = 4096;
/// First address of the on-demand region, which A names and B translates.
const REGION: u64 = 0x7f00_0000_0000;

/// The state of the whole machine. Node 0 is A, node 1 is B.
struct Machine {
    now: u64,
    nodes: [(Nic, Memory); 2],
    /// What has happened, in words.
    story: Vec<String>,
}

impl Machine {
    fn tell(&mut self, text: &str) {
        self.story
            .push(format!("{:>3} us  {text}", self.now / 1000));
    }

    /// Delivers frames until neither NIC has one to send. Each takes a microsecond.
    fn deliver(&mut self) {
        let mut frame = TxFrame::default();
        let mut idle = 0;
        for from in [0, 1].into_iter().cycle() {
            let now = Instant(self.now);
            let (nic, memory) = &mut self.nodes[from];
            if nic.poll_transmit(now, memory, 0, &mut frame) && nic.last_barred().is_none() {
                self.now += 1000;
                self.describe(from, &frame);
                let sender = self.nodes[from].1.clone();
                let (nic, memory) = &mut self.nodes[1 - from];
                nic.receive(Instant(self.now), memory, &frame, &sender);
                idle = 0;
            } else {
                idle += 1;
            }
            // This machine has no interrupts: its drivers look into their queues. The vectors are taken all the same.
            while self.nodes[from].0.poll_interrupt().is_some() {}
            if idle == 2 {
                return;
            }
        }
    }

    fn describe(&mut self, from: usize, frame: &TxFrame) {
        let way = ["A -> B", "B -> A"][from];
        if let FrameKind::Roce(header) = &frame.kind {
            let text = packet(header, frame.payload_len);
            self.tell(&format!("{way}  {text}"));
        }
    }
}

fn packet(header: &RoceHeader, payload: usize) -> String {
    let psn = header.bth.psn.get();
    match header.aeth.map(|aeth| aeth.syndrome) {
        Some(Syndrome::RnrNak { timer }) => {
            let wait = rnr_timer_ns(timer) / 1000;
            format!("RNR NAK for PSN {psn}: try again in {wait} us")
        }
        None if header.bth.opcode == Opcode::Ready => format!("READY for PSN {psn}"),
        Some(Syndrome::Ack { .. }) => format!("ACK up to PSN {psn}"),
        Some(other) => format!("{other:?} for PSN {psn}"),
        None => format!("{:?}, PSN {psn}, {payload} bytes", header.bth.opcode),
    }
}

/// A driver's way to its NIC.
struct Port {
    machine: Rc<RefCell<Machine>>,
    node: usize,
    memory: Memory,
}

impl Bus for Port {
    fn ram_len(&self) -> u64 {
        RAM as u64
    }
    fn read(&self, addr: u64, buf: &mut [u8]) {
        self.memory.read(addr, buf).expect("address in memory");
    }
    fn write(&self, addr: u64, data: &[u8]) {
        self.memory.write(addr, data).expect("address in memory");
    }
    fn load_u32(&self, addr: u64) -> u32 {
        self.memory.load_u32(addr).expect("address in memory")
    }
    fn store_u32(&self, addr: u64, value: u32) {
        self.memory
            .store_u32(addr, value)
            .expect("address in memory");
    }
    fn read_register(&mut self, offset: u32) -> u32 {
        let machine = &mut *self.machine.borrow_mut();
        let now = Instant(machine.now);
        machine.nodes[self.node].0.read_register(now, offset)
    }
    fn write_register(&mut self, offset: u32, value: u32) {
        let machine = &mut *self.machine.borrow_mut();
        let now = Instant(machine.now);
        machine.nodes[self.node]
            .0
            .write_register(now, offset, value);
    }
    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let machine = &mut *self.machine.borrow_mut();
        let now = Instant(machine.now);
        let (nic, memory) = &mut machine.nodes[self.node];
        nic.doorbell(now, memory, page, bell);
        machine.deliver();
    }
    /// Called when the driver has nothing to do: time passes until a deadline of a NIC.
    fn wait(&mut self) -> bool {
        let machine = &mut *self.machine.borrow_mut();
        let deadlines = machine
            .nodes
            .iter()
            .filter_map(|(nic, _)| nic.next_deadline());
        let Some(at) = deadlines.min() else {
            return false;
        };
        machine.now = machine.now.max(at.0);
        for (nic, memory) in &mut machine.nodes {
            nic.handle_deadline(Instant(machine.now), memory);
        }
        machine.deliver();
        true
    }
}

fn mac(node: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, 10 + node as u8])
}

fn gid(node: usize) -> Gid {
    Gid::from_ipv4([10, 0, 0, 1 + node as u8])
}

/// A driver with its protection domain, completion queue and queue pair.
type Started = (Driver<Port>, u32, Cq, Qp);

/// Starts a driver: it enables its NIC and creates a protection domain, a completion queue and a queue pair.
fn start(machine: &Rc<RefCell<Machine>>, node: usize) -> Result<Started, Error> {
    let port = Port {
        memory: machine.borrow().nodes[node].1.clone(),
        machine: Rc::clone(machine),
        node,
    };
    let mut driver = Driver::new(port)?;
    driver.set_gid(0, gid(node), mac(node))?;
    // The interface is up, with this MTU.
    driver.set_netdev(mac(node), 1500, 0)?;
    let pd = driver.alloc_pd()?;
    let (eqn, uctx) = (driver.events.eqn, 0);
    let cq = driver.create_cq(CqConfig {
        log_depth: 4,
        eqn,
        uctx,
    })?;
    let qp = driver.create_qp(&QpConfig {
        kind: QPT_RC,
        pd,
        uctx,
        send_cqn: cq.cqn,
        recv_cqn: cq.cqn,
        srqn: None,
        log_depth: 4,
        max_sge: 1,
        flags: QP_FLAG_SIG_ALL,
    })?;
    Ok((driver, pd, cq, qp))
}

/// Runs the example. Returns its events, a line for each step.
pub(crate) fn story() -> Result<Vec<String>, Error> {
    let node = |n: usize| (Nic::new(NicConfig::new(mac(n))), Memory::new(RAM));
    let machine = Rc::new(RefCell::new(Machine {
        now: 0,
        nodes: [node(0), node(1)],
        story: Vec::new(),
    }));
    let tell = |text: String| machine.borrow_mut().tell(&text);

    let (mut a, pd_a, mut cq, mut qp_a) = start(&machine, 0)?;
    let (mut b, pd_b, _, qp_b) = start(&machine, 1)?;
    a.connect(qp_a.qpn, QPT_RC, &Connect::to(gid(1), mac(1), qp_b.qpn))?;
    b.connect(qp_b.qpn, QPT_RC, &Connect::to(gid(0), mac(0), qp_a.qpn))?;
    tell(format!(
        "QP {} of A is connected to QP {} of B",
        qp_a.qpn, qp_b.qpn
    ));

    // B: a queue for page faults, and a region without present pages.
    let mut faults = b.create_eq(EQ_FAULTS, 1, 4)?;
    let region = CreateMkey {
        pd: U32::new(pd_b),
        access: U32::new(ALL_ACCESS | ACCESS_ON_DEMAND),
        iova: U64::new(REGION),
        length: U64::new(16 * PAGE),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let rkey = b.command(CREATE_MKEY, 0, &region)?.handle.get();
    tell(format!(
        "B registers 16 pages on demand, rkey {rkey:#x}; none is present"
    ));

    // A: a WRITE from a pinned buffer.
    let source = a.reg_mr(pd_a, 0x10_0000, PAGE, ALL_ACCESS)?;
    let text = b"Does this page exist?";
    a.write_mr(&source, 0, text);
    let target = REGION + 3 * PAGE + 0x40;
    tell(format!(
        "A posts a WRITE of {} bytes to {target:#x}",
        text.len()
    ));
    let write = Send {
        opcode: WR_WRITE,
        sges: &[(source.va, text.len() as u32, source.key)],
        remote_addr: target,
        rkey,
        ..Send::default()
    };
    a.post_send(&mut qp_a, &write);

    // B: the fault record, a page for the region, and the answer to the fault.
    let record = b
        .poll_event(&mut faults)
        .expect("the WRITE has missed its page");
    tell(format!(
        "B reads a fault record: token {:#x}, QP {}, {} bytes at {:#x}",
        record.token.get(),
        record.object.get(),
        record.bytes.get(),
        record.va.get()
    ));
    let page = b.alloc(PAGE)?;
    let map = TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: record.key,
        iova: U64::new(record.va.get() / PAGE * PAGE),
        count: U64::new(1),
        list: U64::new(page | tq::READ | tq::WRITE),
        page_shift: 12,
        ..TqCmd::default()
    };
    tell(format!(
        "B maps a page of its memory, {page:#x}, and resumes the token"
    ));
    b.translate(&map)?;
    let resume = TqCmd {
        opcode: tq::RESUME,
        token: record.token,
        ..TqCmd::default()
    };
    let waited = b.translate(&resume)?;

    // A: the completion.
    let done = a.await_cqe(&mut cq)?;
    assert_eq!(done.status, cqe::SUCCESS);
    tell(format!(
        "A: the WRITE is complete; queue pairs that waited: {waited}"
    ));
    let mut bytes = vec![0; text.len()];
    b.bus.read(page + target % PAGE, &mut bytes);
    tell(format!(
        "B finds in its page: {}",
        String::from_utf8_lossy(&bytes)
    ));
    let (raised, refused) = (
        b.counter(Counter::page_faults)?,
        b.counter(Counter::rnr_nak_sent)?,
    );
    tell(format!(
        "B counted {raised} page fault and {refused} RNR NAK"
    ));
    let story = std::mem::take(&mut machine.borrow_mut().story);
    Ok(story)
}

fn main() -> Result<(), Error> {
    for line in story()? {
        println!("{line}");
    }
    Ok(())
}
