//! Memory maps of a guest with a virtual IOMMU, which makes any number of them: they use its own share of the process's
//! limits. Neighbours reboot and map meanwhile.

use faultline_config::PollMode;
use faultline_harness::client::{MAP_READ, MAP_WRITE};
use faultline_harness::testbed::{Fabric, Node};
use faultline_harness::traffic::exchange_anew;
use faultline_harness::{Nic, NicOptions, Ram, Reset, Rng};
use faultline_memory::{FileMaps, MemFd};
use rustix::io::Errno;

const PAGE: u64 = 4096;
const ALL: u32 = MAP_READ | MAP_WRITE;
/// Maps of a NIC that a client can make: those that QEMU assumes by default.
const MAPS: u64 = 65535;
/// Where the maps are.
const BASE: u64 = 0x70_0000_0000;

fn map(nic: &Nic, iova: u64, file: &MemFd, offset: u64) -> Result<(), Errno> {
    let mapped = nic.with_client(|client| client.dma_map(iova, PAGE, offset, ALL, Some(file.fd())));
    mapped.map_err(|error| error.refusal().expect("an answer"))
}

/// Two NICs that start, map, exchange data, and go.
fn reboot(fabric: &Fabric, rng: &mut Rng) {
    let [mut b, mut c] = ["b", "c"].map(|name| fabric.node(name).unwrap());
    let more = Ram::new(1 << 20, 0x77_0000_0000).unwrap();
    b.nic.lend(&more).unwrap();
    exchange_anew(&mut b, &mut c, rng);
    let nic = c.nic.clone();
    drop(c);
    nic.reset(Reset::Function).unwrap();
    nic.take_back(nic.ram()).unwrap();
    nic.lend(nic.ram()).unwrap();
    nic.start().unwrap();
    let mut c = Node::new(nic).unwrap();
    exchange_anew(&mut b, &mut c, rng);
}

fn options() -> NicOptions {
    NicOptions {
        ram: 4 << 20,
        ..NicOptions::default()
    }
}

/// As many maps of its RAM as there may be, no two of which the kernel could join.
#[test]
fn a_guest_with_all_its_maps_takes_nothing_from_others() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let mut a = fabric.node_with("a", &options()).unwrap();
    let mut rng = Rng::new(1);
    let file = MemFd::new(4096 * PAGE as usize).unwrap();
    // The driver's own memory is a map.
    for number in 0..MAPS - 1 {
        map(
            &a.nic,
            BASE + number * 2 * PAGE,
            &file,
            number * 3 % 4096 * PAGE,
        )
        .unwrap();
        if number % 8192 == 0 {
            reboot(&fabric, &mut rng);
        }
    }
    reboot(&fabric, &mut rng);
    let one_more = map(&a.nic, BASE - PAGE, &file, 0);
    assert_eq!(one_more, Err(Errno::NOSPC));
    let mut d = fabric.node("d").unwrap();
    exchange_anew(&mut a, &mut d, &mut rng);
    reboot(&fabric, &mut rng);
    // Freed resources can be used again.
    a.nic
        .with_client(|client| client.dma_unmap(BASE, MAPS * 2 * PAGE, 0))
        .unwrap();
    map(&a.nic, BASE - PAGE, &file, 0).unwrap();
    exchange_anew(&mut a, &mut d, &mut rng);
}

/// As many files as there may be: each of them is a mapping of the process.
#[test]
fn a_guest_with_all_its_files_takes_nothing_from_others() {
    let names = ["a", "b", "c", "d"];
    let fabric = Fabric::start(PollMode::Adaptive, &names).unwrap();
    let mut a = fabric.node_with("a", &options()).unwrap();
    let mut rng = Rng::new(2);
    let share = FileMaps::share(names.len()) as u64;
    for number in 0..share - 1 {
        let file = MemFd::new(PAGE as usize).unwrap();
        map(&a.nic, BASE + number * PAGE, &file, 0).unwrap();
    }
    let file = MemFd::new(PAGE as usize).unwrap();
    let one_more = map(&a.nic, BASE - PAGE, &file, 0);
    assert_eq!(one_more, Err(Errno::NOSPC));
    reboot(&fabric, &mut rng);
    let mut d = fabric.node("d").unwrap();
    exchange_anew(&mut a, &mut d, &mut rng);
    drop(a);
    let mut a = fabric.node_with("a", &options()).unwrap();
    map(&a.nic, BASE - PAGE, &file, 0).unwrap();
    exchange_anew(&mut a, &mut d, &mut rng);
}
