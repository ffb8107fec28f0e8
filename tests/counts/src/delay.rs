//! The delay of an invalidation beside queue pairs that saturate the device, in passes of the engine and in packets of the others: an
//! engine takes doorbells in each pass, and a NIC that sends looks for those of others after each turn. The caller makes the passes, so
//! no scheduler and no other work of the machine has a part in it. `cargo lab bench --only keys` measures the same in microseconds.

use anyhow::{Context, ensure};
use faultline_abi::admin::{CREATE_MKEY, CreateMkey, MKEY_FAST_REG};
use faultline_abi::cqe;
use faultline_abi::qp::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, QPT_RC};
use faultline_abi::wqe::{
    RegMrWqe, SqWqe, WR_FLAG_FENCE, WR_FLAG_SIGNALED, WR_LOCAL_INV, WR_READ, WR_REG_MR, WR_WRITE,
};
use faultline_abi::{U32, U64};
use faultline_simulation::{Bus, Cq, CqConfig, Qp, QpConfig, Send};
use zerocopy::IntoBytes;

use crate::fabric::Sizes;
use crate::shapes::{Pair, connection};

const PAGE: u64 = 4096;
const MIB: u32 = 1 << 20;
/// WRITEs of 1 MiB in the queue of each of the others.
const OUTSTANDING: u32 = 4;
/// Invalidations, which meet the others at different places of their messages.
const ROUNDS: u32 = 100;
/// Packets of 4096 octets that a NIC sends in a turn, however many queue pairs it has: 16 KiB.
const TURN_PACKETS: usize = 4;

/// A fast registration, and a queue pair of the kernel's context that makes and invalidates it.
struct Invalidator {
    host: usize,
    qp: Qp,
    cq: Cq,
    key: u32,
    list: u64,
}

impl Invalidator {
    /// One of host 0, which sends to the other one, or of host 1.
    fn new(pair: &mut Pair, at: usize) -> anyhow::Result<Self> {
        let fabric = &mut pair.fabric;
        let host = &mut fabric.hosts[at];
        // A completion queue of its own, in the context of the kernel.
        let eq = host.driver.create_eq(0, 2, 6)?;
        let cq = host.driver.create_cq(CqConfig {
            log_depth: 4,
            eqn: eq.eqn,
            uctx: 0,
        })?;
        let qp = host.driver.create_qp(&QpConfig {
            uctx: 0,
            log_depth: 4,
            max_sge: 1,
            flags: 0,
            ..host.qp_config(QPT_RC, &cq)
        })?;
        let other = fabric.queue_pair(1 - at, QPT_RC, 4)?;
        fabric.connect(QPT_RC, [(at, &qp), (1 - at, &other)])?;
        let host = &mut fabric.hosts[at];
        let create = CreateMkey {
            pd: U32::new(host.pd),
            flags: U32::new(MKEY_FAST_REG),
            length: U64::new(1),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = host.driver.command(CREATE_MKEY, 0, &create)?.handle.get();
        let list = host.driver.alloc(PAGE)?;
        let page = host.driver.alloc(PAGE)?;
        host.driver.bus.write(list, &page.to_le_bytes());
        Ok(Self {
            host: at,
            qp,
            cq,
            key,
            list,
        })
    }

    /// Posts a request, and makes passes until it has completed. Returns their number.
    fn passes(&mut self, pair: &mut Pair, entry: &[u8]) -> anyhow::Result<u32> {
        pair.fabric.hosts[self.host]
            .driver
            .post_raw_send(&mut self.qp, entry);
        for passes in 1..1000 {
            pair.fabric.processes().step();
            let done = pair.fabric.hosts[self.host].driver.poll(&mut self.cq);
            if let Some(done) = done {
                ensure!(done.status == cqe::SUCCESS, "it failed: {done:?}");
                return Ok(passes);
            }
        }
        anyhow::bail!("it does not complete")
    }

    fn register(&self) -> RegMrWqe {
        RegMrWqe {
            opcode: WR_REG_MR,
            flags: WR_FLAG_SIGNALED,
            access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ),
            key: U32::new(self.key),
            iova: U64::new(0x1000),
            length: U64::new(PAGE),
            list: U64::new(self.list),
            num_pages: U32::new(1),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        }
    }

    fn invalidate(&self, flags: u8) -> SqWqe {
        SqWqe {
            opcode: WR_LOCAL_INV,
            flags: WR_FLAG_SIGNALED | flags,
            rkey: U32::new(self.key),
            ..SqWqe::default()
        }
    }
}

/// A device with queue pairs that always have WRITEs to send.
struct Saturated {
    pair: Pair,
    others: Vec<Qp>,
    /// WRITEs that are under way.
    posted: u32,
}

impl Saturated {
    fn new(queue_pairs: usize) -> anyhow::Result<Self> {
        let mut pair = Pair::new(&Sizes::default(), 4, u64::from(MIB))?;
        // Each has room for all that is under way: queue pairs do not complete in the order in which they were filled.
        let connect = |_| Ok(connection(&mut pair.fabric, 6)?.0);
        let others = (0..queue_pairs)
            .map(connect)
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            pair,
            others,
            posted: 0,
        })
    }

    /// Fills the queues, if a WRITE has completed.
    fn fill(&mut self) -> anyhow::Result<()> {
        while self.pair.fabric.completes(0)? {
            self.posted -= 1;
        }
        let most = OUTSTANDING * self.others.len() as u32;
        while self.posted < most {
            let at = self.posted as usize % self.others.len();
            std::mem::swap(&mut self.pair.qp, &mut self.others[at]);
            self.pair.post(WR_WRITE, MIB, true);
            self.pair.ring();
            std::mem::swap(&mut self.pair.qp, &mut self.others[at]);
            self.posted += 1;
        }
        Ok(())
    }

    /// Forgets what has arrived.
    fn clear(&mut self) {
        let target = self.pair.target;
        let zeroes = vec![0; MIB as usize];
        self.pair.fabric.hosts[1]
            .driver
            .write_mr(&target, 0, &zeroes);
    }

    /// Packets whose data has arrived since.
    fn arrived(&self) -> usize {
        let target = &self.pair.target;
        let data = self.pair.fabric.hosts[1]
            .driver
            .read_mr(target, 0, MIB as usize);
        let packets = data.chunks(PAGE as usize);
        packets
            .filter(|packet| packet.iter().any(|octet| *octet != 0))
            .count()
    }
}

/// The most passes that an invalidation of a host took, and the most and least packets of others in them.
fn delays(queue_pairs: usize, host: usize) -> anyhow::Result<(u32, usize, usize)> {
    let mut device = Saturated::new(queue_pairs)?;
    let mut invalidator = Invalidator::new(&mut device.pair, host)?;
    let (mut passes, mut most, mut least) = (0, 0, usize::MAX);
    for _ in 0..ROUNDS {
        device.fill()?;
        let register = invalidator.register();
        passes = passes.max(invalidator.passes(&mut device.pair, register.as_bytes())?);
        device.fill()?;
        device.clear();
        let invalidate = invalidator.invalidate(0);
        passes = passes.max(invalidator.passes(&mut device.pair, invalidate.as_bytes())?);
        let packets = device.arrived();
        (most, least) = (most.max(packets), least.min(packets));
    }
    Ok((passes, most, least))
}

/// The sending NIC takes its doorbells before it sends. Then it continues for many turns, because nothing else waits.
#[test]
fn an_invalidation_beside_saturated_queue_pairs_takes_one_pass() {
    for queue_pairs in [1, 16] {
        let (passes, most, least) = delays(queue_pairs, 0).unwrap();
        assert_eq!(passes, 1, "{queue_pairs} queue pairs");
        assert!(least > 0, "{queue_pairs} queue pairs do not saturate it");
        assert!(
            most > TURN_PACKETS,
            "{most} packets of {queue_pairs} queue pairs: the turns do not go on"
        );
    }
}

/// The doorbell comes when another NIC is about to send: it waits for one turn, whatever the amount of queued data.
#[test]
fn an_invalidation_waits_for_one_turn_of_another_nic() {
    for queue_pairs in [1, 16] {
        let (passes, most, least) = delays(queue_pairs, 1).unwrap();
        assert_eq!(passes, 1, "{queue_pairs} queue pairs");
        assert!(least > 0, "{queue_pairs} queue pairs do not saturate it");
        assert!(
            most <= TURN_PACKETS,
            "{most} packets of {queue_pairs} queue pairs"
        );
    }
}

/// The passes tell a delay: an invalidation with a fence waits for a READ before it.
#[test]
fn a_fenced_invalidation_takes_more_passes() {
    let mut device = Saturated::new(16).unwrap();
    let mut invalidator = Invalidator::new(&mut device.pair, 0).unwrap();
    let register = invalidator.register();
    invalidator
        .passes(&mut device.pair, register.as_bytes())
        .unwrap();
    device.fill().unwrap();
    let (source, target) = (device.pair.source, device.pair.target);
    let read = Send {
        opcode: WR_READ,
        flags: 0,
        sges: &[(source.va, MIB, source.key)],
        remote_addr: target.va,
        rkey: target.key,
        ..Send::default()
    };
    let driver = &mut device.pair.fabric.hosts[0].driver;
    driver.write_send(&mut invalidator.qp, &read);
    let invalidate = invalidator.invalidate(WR_FLAG_FENCE);
    let passes = invalidator
        .passes(&mut device.pair, invalidate.as_bytes())
        .context("a fenced invalidation")
        .unwrap();
    assert!(passes > 2, "{passes} passes");
}
