//! Guest memory compared with a plain byte vector, and accesses that must be refused.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use faultline_memory::{
    AccessError, FileMaps, GuestMemory, MapError, MappedFile, MemFd, PAGE_SIZE, Rights,
    SharedPages, UnmapError,
};
use proptest::prelude::*;
use std::os::fd::OwnedFd;

const P: u64 = PAGE_SIZE as u64;

fn dup(file: &MemFd) -> Option<OwnedFd> {
    Some(file.fd().try_clone_to_owned().unwrap())
}

/// Content that depends on its position, so that a misplaced byte shows.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

/// Pages 0–3 of a file at 0x10000, its pages 4–7 adjacent but in swapped order, then a gap.
fn two_maps() -> (GuestMemory, MemFd) {
    let ram = MemFd::new(8 * PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    memory
        .map(0x10000, 4 * P, dup(&ram), 4 * P, Rights::READ_WRITE)
        .unwrap();
    memory
        .map(0x10000 + 4 * P, 4 * P, dup(&ram), 0, Rights::READ_WRITE)
        .unwrap();
    (memory, ram)
}

#[test]
fn accesses_land_where_the_file_says() {
    let (memory, ram) = two_maps();
    memory.write(0x10000 + 4 * P - 3, &[1, 2, 3, 4, 5]).unwrap();
    let mut tail = [0; 3];
    ram.read(8 * P - 3, &mut tail).unwrap();
    assert_eq!(tail, [1, 2, 3]);
    let mut head = [0; 2];
    ram.read(0, &mut head).unwrap();
    assert_eq!(head, [4, 5]);
    ram.store_u64(8, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(
        memory.load_u64(0x10000 + 4 * P + 8),
        Ok(0x1122_3344_5566_7788)
    );
    assert_eq!(memory.load_u32(0x10000 + 4 * P + 12), Ok(0x1122_3344));
}

/// A guest can have many maps, and a peer can ask with every packet.
#[test]
fn without_persistent_maps_no_map_is_looked_at() {
    const MAPS: u64 = 60_000;
    let mut memory = GuestMemory::new();
    for at in 0..MAPS {
        memory
            .map(at * 2 * P, P, None, 0, Rights::READ_WRITE)
            .unwrap();
    }
    let ask = || {
        let start = std::time::Instant::now();
        for _ in 0..500 {
            assert!(memory.persistent_ranges(None).is_empty());
        }
        start.elapsed()
    };
    let shortest = (0..5).map(|_| ask()).min().unwrap();
    assert!(shortest.as_millis() < 10, "{shortest:?}");
}

#[test]
fn only_files_on_disks_are_persistent() {
    let (mut memory, ram) = two_maps();
    assert!(
        memory.persistent_ranges(None).is_empty(),
        "a memfd does not last"
    );
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = dir.join(format!("lasting-{}", std::process::id()));
    let mut how = std::fs::File::options();
    let file = how.read(true).write(true).create_new(true).open(&name);
    let file = file.unwrap();
    std::fs::remove_file(&name).unwrap();
    file.set_len(8 * P).unwrap();
    let dup = || Some(OwnedFd::from(file.try_clone().unwrap()));
    memory
        .map(0x40000, 4 * P, dup(), 0, Rights::READ_WRITE)
        .unwrap();
    memory
        .map(0x44000, 2 * P, dup(), 4 * P, Rights::READ_WRITE)
        .unwrap();
    memory
        .map(0x46000, P, dup(), 6 * P, Rights::READ_ONLY)
        .unwrap();
    let spans = |ranges: Option<&[(u64, u64)]>| -> Vec<(u64, usize)> {
        let parts = memory.persistent_ranges(ranges);
        parts.iter().for_each(|part| part.sync().unwrap());
        parts.iter().map(|part| part.span()).collect()
    };
    if rustix::fs::fstatfs(&file).unwrap().f_type == 0x0102_1994 {
        assert_eq!(spans(None), [], "neither does a tmpfs");
        return;
    }
    // Both maps lead into one mapping of the file.
    let second = 4 * P;
    assert_eq!(spans(None), [(0, 4 * PAGE_SIZE), (second, 2 * PAGE_SIZE)]);
    assert_eq!(spans(Some(&[])), []);
    assert_eq!(spans(Some(&[(0x40000, 0), (0x41001, 2)])), [(0x1001, 2)]);
    // From before all maps to the middle of the last; from the middle of one into another; beyond.
    let across = [(0, 0x45000), (0x43fff, 2), (0x45fff, u64::MAX)];
    let expected = [
        (0, 4 * PAGE_SIZE),
        (second, PAGE_SIZE),
        (0x3fff, 1),
        (second, 1),
        (second + 0x1fff, 1),
    ];
    assert_eq!(spans(Some(&across)), expected);
    // It outlives the map.
    let parts = memory.persistent_ranges(None);
    memory.write(0x40010, b"kept").unwrap();
    memory.unmap_all();
    parts[0].sync().unwrap();
    let mut kept = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut kept, 0x10).unwrap();
    assert_eq!(&kept, b"kept");
    drop(ram);
}

#[test]
fn atomics_return_the_old_value() {
    let (memory, ram) = two_maps();
    let at = 0x10000;
    memory.store_u64(at, u64::MAX).unwrap();
    assert_eq!(memory.fetch_add_u64(at, 2), Ok(u64::MAX));
    assert_eq!(memory.compare_exchange_u64(at, 0, 9), Ok(1));
    assert_eq!(memory.compare_exchange_u64(at, 1, 9), Ok(1));
    assert_eq!(ram.load_u64(4 * P), Ok(9));
    memory.store_u32(at + 4, 7).unwrap();
    assert_eq!(memory.load_u64(at), Ok(7 << 32 | 9));
    for wrong in [1, 2, 4, 7] {
        assert_eq!(memory.load_u64(at + wrong), Err(AccessError::Misaligned));
        assert_eq!(
            memory.fetch_add_u64(at + wrong, 1),
            Err(AccessError::Misaligned)
        );
    }
    assert_eq!(memory.load_u32(at + 2), Err(AccessError::Misaligned));
    assert_eq!(memory.faults().misaligned, 9);
}

#[test]
fn failures_name_the_first_bad_address_and_change_nothing() {
    let (memory, ram) = two_maps();
    let end = 0x10000 + 8 * P;
    let gap = AccessError::Unmapped { addr: end };
    assert_eq!(memory.write(end - 4, &[9; 8]), Err(gap));
    assert_eq!(ram.load_u32(4 * P - 4), Ok(0));
    let mut buf = [7; 8];
    assert_eq!(memory.read(end - 4, &mut buf), Err(gap));
    assert_eq!(buf, [7; 8]);
    assert_eq!(memory.copy_from(0x10000, &memory, end - 4, 8), Err(gap));
    assert_eq!(memory.copy_from(end - 4, &memory, 0x10000, 8), Err(gap));
    assert_eq!(
        memory.read(0xffff, &mut buf),
        Err(AccessError::Unmapped { addr: 0xffff })
    );
    assert_eq!(
        memory.load_u64(u64::MAX - 7),
        Err(AccessError::Unmapped { addr: u64::MAX - 7 })
    );
    assert_eq!(memory.faults().unmapped, 6);
    assert_eq!(memory.read(0x5000, &mut []), Ok(()));
    assert_eq!(memory.contiguous(end - 4, 100, true), Ok(4));
    assert_eq!(
        memory.contiguous(0x10000 + 1, 5 * PAGE_SIZE, true),
        Ok(5 * PAGE_SIZE)
    );
    assert_eq!(memory.contiguous(end, 1, true), Err(gap));
}

#[test]
fn maps_without_descriptor_differ_from_read_only_maps() {
    let ram = MemFd::new(PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    memory.map(0, P, dup(&ram), 0, Rights::READ_ONLY).unwrap();
    memory.map(P, P, None, 0, Rights::READ_WRITE).unwrap();
    assert!(memory.has_unreachable());
    assert_eq!(memory.unreachable_maps(), 1);
    ram.store_u64(0, 5).unwrap();
    assert_eq!(memory.load_u64(0), Ok(5));
    assert_eq!(
        memory.write(16, &[1]),
        Err(AccessError::ReadOnly { addr: 16 })
    );
    assert_eq!(
        memory.store_u64(16, 1),
        Err(AccessError::ReadOnly { addr: 16 })
    );
    assert_eq!(
        memory.fetch_add_u64(16, 1),
        Err(AccessError::ReadOnly { addr: 16 })
    );
    assert_eq!(
        memory.compare_exchange_u64(0, 1, 1),
        Err(AccessError::ReadOnly { addr: 0 })
    );
    let unreachable = AccessError::NoDescriptor { addr: P };
    assert_eq!(memory.read(P - 1, &mut [0; 2]), Err(unreachable));
    assert_eq!(memory.store_u32(P, 0), Err(unreachable));
    assert_eq!(memory.contiguous(0, 2 * PAGE_SIZE, false), Ok(PAGE_SIZE));
    let faults = memory.faults();
    assert_eq!((faults.no_descriptor, faults.read_only), (2, 4));
    drop(memory.unmap(P, P).unwrap());
    assert!(!memory.has_unreachable());
}

#[test]
fn bad_maps_are_refused_and_leave_no_trace() {
    let ram = MemFd::new(8 * PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    let mut map = |iova, len, offset| memory.map(iova, len, dup(&ram), offset, Rights::READ_WRITE);
    assert_eq!(map(0, 0, 0), Err(MapError::Empty { iova: 0 }));
    assert!(matches!(
        map(u64::MAX - P + 1, 2 * P, 0),
        Err(MapError::Overflow { .. })
    ));
    assert!(matches!(
        map(0, 2 * P, u64::MAX - P + 1),
        Err(MapError::Overflow { .. })
    ));
    assert!(matches!(map(0, 1 << 63, 0), Err(MapError::Overflow { .. })));
    for (iova, len, offset) in [(1, P, 0), (0, P + 1, 0), (0, P, 8)] {
        assert!(matches!(
            map(iova, len, offset),
            Err(MapError::Unaligned { .. })
        ));
    }
    assert!(matches!(map(0, 9 * P, 0), Err(MapError::ShortFile { .. })));
    assert!(matches!(map(0, P, 8 * P), Err(MapError::ShortFile { .. })));
    map(4 * P, 2 * P, 0).unwrap();
    for (iova, len) in [
        (4 * P, P),
        (3 * P, 2 * P),
        (5 * P, 2 * P),
        (0, 8 * P),
        (5 * P, P),
    ] {
        let other = 4 * P;
        assert_eq!(
            map(iova, len, 0),
            Err(MapError::Overlap { iova, len, other })
        );
    }
    map(3 * P, P, 0).unwrap();
    map(6 * P, P, 0).unwrap();
    let pipe = std::io::pipe().unwrap().0;
    let error = memory
        .map(0, P, Some(pipe.into()), 0, Rights::READ_WRITE)
        .unwrap_err();
    assert!(matches!(error, MapError::Os { .. }), "{error}");
    assert_ne!(error.errno().raw_os_error(), 0);
    let write_only = Rights {
        readable: false,
        writable: true,
    };
    assert!(matches!(
        memory.map(0, P, None, 0, write_only),
        Err(MapError::NotReadable { .. })
    ));
    assert_eq!(memory.map_count(), 3);
}

#[test]
fn the_last_page_of_the_address_space_works() {
    let ram = MemFd::new(PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    let top = u64::MAX - P + 1;
    memory
        .map(top, P, dup(&ram), 0, Rights::READ_WRITE)
        .unwrap();
    memory.write(u64::MAX - 1, &[1, 2]).unwrap();
    assert_eq!(ram.load_u32(P - 4), Ok(0x0201_0000));
    assert!(memory.write(u64::MAX, &[1, 2]).is_err());
    assert!(memory.copy_from(u64::MAX, &memory, top, 2).is_err());
    assert_eq!(memory.contiguous(u64::MAX - 1, 8, true), Ok(2));
    drop(memory.unmap(top, P).unwrap());
}

/// Lines of /proc/self/maps of this file.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// A file has one mapping of the process, whatever the number of maps, and it is removed with the last of
/// them.
#[test]
fn a_file_is_mapped_once() {
    const PAGES: u64 = 1000;
    let name = "mapped-once";
    let ram = MemFd::named(name, PAGES as usize * PAGE_SIZE).unwrap();
    let mut files = FileMaps::new(2);
    let mut memory = GuestMemory::new();
    // Neighbours are at distant places of the file, as under a virtual IOMMU.
    let place = |page: u64| page * 7 % PAGES * 2 * P;
    for page in 0..PAGES {
        let new = files.prepare(place(page), P, dup(&ram), page * P, Rights::READ_WRITE);
        memory.insert(new.unwrap()).unwrap();
    }
    // One of them is that of the test.
    assert_eq!((mappings(name), files.len()), (2, 1));
    for page in 0..PAGES {
        memory.store_u64(place(page) + 8, page).unwrap();
        assert_eq!(ram.load_u64(page * P + 8), Ok(page));
        assert!(memory.load_u64(place(page) + P).is_err());
    }
    // Only for reading: another one.
    let new = files
        .prepare(P, P, dup(&ram), 0, Rights::READ_ONLY)
        .unwrap();
    memory.insert(new).unwrap();
    assert!(memory.store_u64(P, 0).is_err());
    assert_eq!((mappings(name), files.len()), (3, 2));
    drop(memory.unmap(P, P).unwrap());
    assert_eq!((mappings(name), files.len()), (2, 1));

    let other = MemFd::new(2 * PAGE_SIZE).unwrap();
    let new = files
        .prepare(P, P, dup(&other), P, Rights::READ_WRITE)
        .unwrap();
    memory.insert(new).unwrap();
    let third = MemFd::new(PAGE_SIZE).unwrap();
    let error = files.prepare(3 * P, P, dup(&third), 0, Rights::READ_WRITE);
    let error = error.unwrap_err();
    assert_eq!(error, MapError::TooManyFiles(2));
    assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    // A mapped file can have further maps, and the removal of a file makes room.
    let new = files
        .prepare(3 * P, P, dup(&other), 0, Rights::READ_WRITE)
        .unwrap();
    assert_eq!(memory.insert(new).map_err(|refused| refused.error), Ok(()));
    let all = memory.unmap(0, 2 * PAGES * P).unwrap();
    assert_eq!((all.len() as u64, mappings(name)), (PAGES + 2, 2));
    drop(all);
    assert_eq!((mappings(name), files.is_empty()), (1, true));
    let new = files
        .prepare(0, P, dup(&third), 0, Rights::READ_WRITE)
        .unwrap();
    memory.insert(new).unwrap();
}

/// A file that has grown is mapped again; its earlier mapping stays unchanged.
#[test]
fn a_file_may_grow() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = dir.join(format!("growing-{}", std::process::id()));
    let mut how = std::fs::File::options();
    let file = how.read(true).write(true).create_new(true).open(&name);
    let file = file.unwrap();
    std::fs::remove_file(&name).unwrap();
    let dup = || Some(OwnedFd::from(file.try_clone().unwrap()));
    let mut files = FileMaps::new(8);
    let mut memory = GuestMemory::new();
    file.set_len(2 * P).unwrap();
    let new = files
        .prepare(0, 2 * P, dup(), 0, Rights::READ_WRITE)
        .unwrap();
    memory.insert(new).unwrap();
    assert!(matches!(
        files.prepare(2 * P, P, dup(), 2 * P, Rights::READ_WRITE),
        Err(MapError::ShortFile { .. })
    ));
    file.set_len(4 * P).unwrap();
    let new = files
        .prepare(2 * P, P, dup(), 2 * P, Rights::READ_WRITE)
        .unwrap();
    memory.insert(new).unwrap();
    memory.write(2 * P - 4, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 2 * P - 4).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
}

fn unmap(memory: &mut GuestMemory, iova: u64, len: u64) -> Result<usize, UnmapError> {
    memory.unmap(iova, len).map(|removed| removed.len())
}

#[test]
fn unmap_takes_whole_maps_only() {
    let ram = MemFd::new(4 * PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    for page in [0, 2, 3] {
        memory
            .map(page * 2 * P, 2 * P, dup(&ram), 0, Rights::READ_WRITE)
            .unwrap();
    }
    for (iova, len, other) in [
        (0, P, 0),
        (P, P, 0),
        (0, 5 * P, 4 * P),
        (5 * P, 3 * P, 4 * P),
    ] {
        assert_eq!(
            unmap(&mut memory, iova, len),
            Err(UnmapError::Partial { iova, len, other })
        );
    }
    for (iova, len) in [(2 * P, 2 * P), (8 * P, P)] {
        assert_eq!(unmap(&mut memory, iova, len), Ok(0));
    }
    for (iova, len) in [(0, 0), (u64::MAX, 2)] {
        assert_eq!(
            unmap(&mut memory, iova, len),
            Err(UnmapError::BadRange { iova, len })
        );
    }
    assert_eq!(memory.map_count(), 3);
    assert_eq!(memory.load_u64(6 * P), Ok(0));
    assert_eq!(unmap(&mut memory, 3 * P, 5 * P), Ok(2));
    assert_eq!(memory.map_count(), 1);
    assert!(
        memory.load_u64(6 * P).is_err(),
        "a stale hit must not be used"
    );
    memory.unmap_all();
    assert!(memory.load_u64(0).is_err());
}

#[test]
fn one_nic_per_thread() {
    fn send<T: Send>(_: &T) {}
    fn shared<T: Send + Sync>(_: &T) {}
    let (memory, ram) = two_maps();
    send(&memory);
    shared(&ram);
    shared(&SharedPages::new("test", 1).unwrap());
}

#[test]
fn pages_are_bounded_sealed_and_shared() {
    let pages = SharedPages::new("bells", 3).unwrap();
    assert!(pages.page(3).is_none() && !pages.zero_page(3));
    let view = MappedFile::map(pages.dup().unwrap(), P, PAGE_SIZE).unwrap();
    let page = pages.page(1).unwrap();
    page.store_u64(4088, 77);
    assert_eq!(view.load_u64(4088), Ok(77));
    assert_eq!(view.fetch_add_u32(0, 5), Ok(0));
    assert_eq!(
        (
            page.load_u32(0),
            page.swap_u32(0, 1),
            page.load_u32_relaxed(0)
        ),
        (5, 5, 1)
    );
    assert_eq!(page.fetch_or_u32(0, 6), 1);
    assert_eq!(page.compare_exchange_u64(4088, 77, 78), 77);
    assert_eq!(pages.page(0).unwrap().load_u64(4088), 0);
    assert_eq!(page.write(4090, &[1; 10]), 6);
    assert_eq!(page.read(4096, &mut [0; 4]), 0);
    SharedPages::fence();
    assert!(pages.zero_page(1));
    assert_eq!(view.load_u64(4088), Ok(0));
    assert!(
        rustix::fs::ftruncate(pages.fd(), P).is_err(),
        "sealed against shrinking"
    );
    assert!(
        rustix::fs::ftruncate(pages.fd(), 9 * P).is_err(),
        "sealed against growing"
    );
    assert!(MappedFile::map(pages.fd(), P, 3 * PAGE_SIZE).is_err());
    assert!(SharedPages::new("none", 0).is_err() && SharedPages::new("huge", usize::MAX).is_err());
    assert!(MemFd::new(0).is_err());
}

#[test]
fn mapping_offsets_are_checked() {
    let ram = MemFd::new(100).unwrap();
    assert_eq!(ram.len(), PAGE_SIZE);
    let end = AccessError::Unmapped { addr: P };
    assert_eq!(ram.write(P - 1, &[0; 2]), Err(end));
    assert_eq!(ram.load_u64(P), Err(end));
    assert_eq!(
        ram.read(u64::MAX, &mut [0]),
        Err(AccessError::Unmapped { addr: u64::MAX })
    );
    assert_eq!(ram.load_u32(2), Err(AccessError::Misaligned));
    ram.write(0, &pattern(64, 0)).unwrap();
    ram.copy_within(0, 3, 61).unwrap();
    let mut buf = [0; 61];
    ram.read(3, &mut buf).unwrap();
    assert_eq!(buf.as_slice(), &pattern(64, 0)[..61]);
    ram.fill(1, 2, 0xee).unwrap();
    let mut head = [0; 4];
    ram.read(0, &mut head).unwrap();
    assert_eq!(head, [pattern(1, 0)[0], 0xee, 0xee, buf[0]]);
    assert_eq!(ram.fill(P - 1, 2, 0), Err(end));
}

/// Pages of three maps with adjacent I/O addresses, scattered over the file.
const LAYOUT: [(u64, u64, u64); 3] = [(0, 1, 5), (1, 2, 0), (3, 2, 3)];
const SPAN: u64 = 5 * P;
const BASE: u64 = 0x7000_0000;

fn scattered() -> (GuestMemory, MemFd) {
    let ram = MemFd::new(6 * PAGE_SIZE).unwrap();
    let mut memory = GuestMemory::new();
    for (page, pages, file_page) in LAYOUT {
        let iova = BASE + page * P;
        memory
            .map(
                iova,
                pages * P,
                dup(&ram),
                file_page * P,
                Rights::READ_WRITE,
            )
            .unwrap();
    }
    (memory, ram)
}

#[derive(Debug, Clone)]
enum Op {
    Write(u64, usize, u8),
    Copy(u64, u64, usize),
    Add(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    // Lengths around words, pages and everything; addresses near the seams half of the time.
    let addr = || {
        prop_oneof![
            0..SPAN,
            (0u64..5, 0u64..40).prop_map(|(p, d)| p * P + d),
            (1u64..5, 0u64..40).prop_map(|(p, d)| p * P - d)
        ]
    };
    let len = || prop_oneof![0usize..33, 0usize..PAGE_SIZE + 64, 0usize..3 * PAGE_SIZE];
    prop_oneof![
        (addr(), len(), any::<u8>()).prop_map(|(a, l, s)| Op::Write(a, l, s)),
        (addr(), addr(), len()).prop_map(|(d, s, l)| Op::Copy(d, s, l)),
        (addr(), addr(), 0usize..70).prop_map(|(d, s, l)| Op::Copy(
            d,
            s.min(d + 40).max(d.saturating_sub(40)),
            l
        )),
        (addr(), any::<u64>()).prop_map(|(a, v)| Op::Add(a & !7, v)),
    ]
}

proptest! {
    /// Any sequence of accesses has the effect it has on a byte vector, or none.
    #[test]
    fn behaves_like_a_byte_vector(ops in prop::collection::vec(op(), 1..30)) {
        let (memory, _ram) = scattered();
        let mut model = pattern(SPAN as usize, 3);
        memory.write(BASE, &model).unwrap();
        for op in ops {
            match op {
                Op::Write(at, len, seed) => {
                    let data = pattern(len, seed);
                    let fits = at + len as u64 <= SPAN;
                    prop_assert_eq!(memory.write(BASE + at, &data).is_ok(), fits);
                    if fits {
                        model[at as usize..][..len].copy_from_slice(&data);
                    }
                }
                Op::Copy(dst, src, len) => {
                    let fits = dst.max(src) + len as u64 <= SPAN;
                    let done = memory.copy_from(BASE + dst, &memory, BASE + src, len);
                    prop_assert_eq!(done.is_ok(), fits);
                    if fits {
                        model.copy_within(src as usize..src as usize + len, dst as usize);
                    }
                }
                Op::Add(at, value) => {
                    let at = at.min(SPAN - 8);
                    let bytes = &mut model[at as usize..][..8];
                    let old = u64::from_le_bytes(bytes.try_into().unwrap());
                    prop_assert_eq!(memory.fetch_add_u64(BASE + at, value), Ok(old));
                    bytes.copy_from_slice(&old.wrapping_add(value).to_le_bytes());
                }
            }
            let mut now = vec![0; SPAN as usize];
            memory.read(BASE, &mut now).unwrap();
            prop_assert!(now == model, "content differs");
        }
    }

    /// Guest to guest, unaligned on both sides, over seams on both sides.
    #[test]
    fn copies_between_two_guests(dst in 0..SPAN, src in 0..SPAN, len in 0usize..4 * PAGE_SIZE) {
        let (from, to) = (scattered(), scattered());
        let data = pattern(SPAN as usize, 9);
        from.0.write(BASE, &data).unwrap();
        let fits = dst.max(src) + len as u64 <= SPAN;
        prop_assert_eq!(to.0.copy_from(BASE + dst, &from.0, BASE + src, len).is_ok(), fits);
        let mut expected = vec![0; SPAN as usize];
        if fits {
            expected[dst as usize..][..len].copy_from_slice(&data[src as usize..][..len]);
        }
        let mut now = vec![0; SPAN as usize];
        to.0.read(BASE, &mut now).unwrap();
        prop_assert!(now == expected, "content differs");
    }
}
