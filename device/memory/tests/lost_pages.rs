//! Pages that a file has lost, or cannot get: an access fails, and the process continues.

#![cfg(test)]

use faultline_memory::{AccessError, FileMaps, GuestMemory, MappedFile, PAGE_SIZE, Rights};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const P: u64 = PAGE_SIZE as u64;
/// Where the first map begins.
const AT: u64 = 0x10000;

fn file(name: &str, pages: u64) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, pages * P).unwrap();
    fd
}

/// 8 pages at `AT` in two maps; only the first 4 are left.
fn truncated(name: &str) -> (GuestMemory, OwnedFd) {
    let fd = file(name, 8);
    let mut files = FileMaps::new(1);
    let mut memory = GuestMemory::new();
    for at in [0, 6] {
        let len = if at == 0 { 6 * P } else { 2 * P };
        let dup = fd.try_clone().unwrap();
        let new = files.prepare(AT + at * P, len, Some(dup), at * P, Rights::READ_WRITE);
        memory.insert(new.unwrap()).unwrap();
    }
    ftruncate(&fd, 4 * P).unwrap();
    (memory, fd)
}

fn lost<T>(result: Result<T, AccessError>) -> Option<u64> {
    match result {
        Err(AccessError::Lost { addr }) => Some(addr),
        _ => None,
    }
}

fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn every_kind_of_access_fails_and_the_others_continue() {
    let name = "lost-kinds";
    let (memory, fd) = truncated(name);
    let other = {
        let mut memory = GuestMemory::new();
        let fd = file("lost-other", 8);
        memory
            .map(AT, 8 * P, Some(fd), 0, Rights::READ_WRITE)
            .unwrap();
        memory
    };
    let gone = AT + 4 * P;
    let mut buf = vec![0; 3 * PAGE_SIZE];
    for round in 0..200u64 {
        let at = gone + round * 8 % (3 * P);
        assert_eq!(lost(memory.load_u32(at)), Some(at));
        assert_eq!(lost(memory.load_u64(at)), Some(at));
        assert_eq!(lost(memory.store_u32(at, 1)), Some(at));
        assert_eq!(lost(memory.store_u64(at, 1)), Some(at));
        assert_eq!(lost(memory.fetch_add_u64(at, 1)), Some(at));
        assert_eq!(lost(memory.compare_exchange_u64(at, 0, 1)), Some(at));
        // From a present page, over several absent ones and over both maps.
        let from = gone - P + round;
        assert_eq!(lost(memory.read(from, &mut buf)), Some(from));
        assert_eq!(lost(memory.write(from, &buf)), Some(from));
        assert_eq!(lost(memory.write(at, &[1])), Some(at));
        // The side that has lost a page is the one that counts it.
        let (ours, theirs) = (memory.faults().lost, other.faults().lost);
        assert_eq!(
            lost(memory.copy_from(from, &other, AT, buf.len())),
            Some(from)
        );
        assert_eq!(
            lost(other.copy_from(AT, &memory, from, buf.len())),
            Some(from)
        );
        assert_eq!(
            lost(memory.copy_from(AT, &memory, from, 2 * PAGE_SIZE)),
            Some(AT)
        );
        assert_eq!(
            (memory.faults().lost - ours, other.faults().lost - theirs),
            (3, 0)
        );

        // Present pages work, in both tables.
        memory.write(AT + round, &round.to_le_bytes()).unwrap();
        other.copy_from(AT + 1, &memory, AT + round, 8).unwrap();
        let mut word = [0; 8];
        other.read(AT + 1, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), round);
    }
    assert_eq!(memory.faults().lost, 200 * 12);
    assert_eq!(mappings(name), 1, "no mapping stays split");

    // With the pages present again, written data is in the file, and nothing of the lost data.
    ftruncate(&fd, 8 * P).unwrap();
    let view = MappedFile::map(&fd, 0, 8 * PAGE_SIZE).unwrap();
    let mut rest = vec![0xff; 4 * PAGE_SIZE];
    memory.read(gone, &mut rest).unwrap();
    assert!(rest.iter().all(|byte| *byte == 0));
    memory.store_u64(gone + 8, 77).unwrap();
    assert_eq!(view.load_u64(4 * P + 8), Ok(77));
    assert_eq!(memory.faults().lost, 200 * 12);
}

/// The longest access of a frame, on both sides, without a single page.
#[test]
fn an_access_may_lose_all_of_its_pages() {
    let (a, b) = (file("lost-long", 17), file("lost-long", 17));
    let memory = |fd: &OwnedFd| {
        let mut memory = GuestMemory::new();
        let dup = fd.try_clone().unwrap();
        memory
            .map(AT, 17 * P, Some(dup), 0, Rights::READ_WRITE)
            .unwrap();
        memory
    };
    let tables = [memory(&a), memory(&b)];
    ftruncate(&a, 0).unwrap();
    ftruncate(&b, 0).unwrap();
    for round in 0..100 {
        let len = 16 * PAGE_SIZE + 1;
        let copied = tables[0].copy_from(AT + round, &tables[1], AT + round, len);
        assert_eq!(lost(copied), Some(AT + round));
    }
    assert_eq!((tables[0].faults().lost, tables[1].faults().lost), (100, 0));
    assert_eq!(mappings("lost-long"), 2);
}

/// An access to a mapping of huge pages when none are reserved fails. If the host has reserved some, it succeeds.
#[test]
fn huge_pages_that_are_not_there_are_lost_too() {
    const HUGE: u64 = 2 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = memfd_create("lost-huge", flags).unwrap();
    ftruncate(&fd, 4 * HUGE).unwrap();
    let mut memory = GuestMemory::new();
    memory
        .map(AT, 4 * HUGE, Some(fd), 0, Rights::READ_WRITE)
        .unwrap();
    for at in (AT + HUGE - 8..AT + 4 * HUGE - 16).step_by(PAGE_SIZE) {
        match memory.write(at, &[1; 16]) {
            Ok(()) => assert_eq!(memory.load_u64(at), Ok(0x0101_0101_0101_0101)),
            error => assert_eq!(lost(error), Some(at)),
        }
    }
    assert_eq!(mappings("lost-huge"), 1);
}

#[test]
fn threads_do_not_see_each_others_losses() {
    let threads: Vec<_> = (0..4)
        .map(|number| {
            std::thread::spawn(move || {
                let name = format!("lost-thread-{number}");
                let mut failures = 0;
                for round in 0..300u64 {
                    let (memory, _fd) = truncated(&name);
                    for page in 0..8 {
                        let found = memory.store_u64(AT + page * P, round);
                        assert_eq!(found.is_err(), page >= 4, "{found:?}");
                        failures += u64::from(found.is_err());
                    }
                    assert_eq!(memory.load_u64(AT), Ok(round));
                }
                assert_eq!(failures, 1200);
                assert_eq!(mappings(&name), 0);
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

const CHILD: &str = "FAULTLINE_TEST_SIGBUS";

/// Only guest memory is restored: a mistake of this process elsewhere, or a signal, ends it as before.
#[test]
fn any_other_sigbus_ends_the_process() {
    if let Ok(how) = std::env::var(CHILD) {
        let (memory, _fd) = truncated("lost-child");
        assert_eq!(lost(memory.load_u64(AT + 5 * P)), Some(AT + 5 * P));
        if how == "signal" {
            // The handler of Rust's library, which was there before, lets the first one pass. Another thread may get it,
            // some time later; one that is sent before that is the same one.
            let pid = rustix::process::getpid();
            for _ in 0..500 {
                rustix::process::kill_process(pid, rustix::process::Signal::BUS).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        } else {
            let fd = file("lost-elsewhere", 2);
            let view = MappedFile::map(&fd, 0, 2 * PAGE_SIZE).unwrap();
            ftruncate(&fd, 0).unwrap();
            let _ = view.load_u64(P);
        }
        std::process::exit(0);
    }
    for how in ["signal", "access"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "lost_pages::any_other_sigbus_ends_the_process"]);
        let output = child.env(CHILD, how).output().unwrap();
        let sigbus = rustix::process::Signal::BUS.as_raw();
        assert_eq!(output.status.signal(), Some(sigbus), "{how}: {output:?}");
    }
}
