//! The driver does not trust the device: see `docs/threat-model.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A program that is made of files of the driver and of the test.
struct Parts {
    name: &'static str,
    driver: &'static [&'static str],
    test: &'static [&'static str],
    /// Definitions for the compiler.
    definitions: &'static [&'static str],
}

/// Queues, their entries, the netdev, and connections.
const QUEUES: Parts = Parts {
    name: "queues",
    driver: &[
        "faultline_addr.c",
        "faultline_buf.c",
        "faultline_channel.c",
        "faultline_check.c",
        "faultline_cq.c",
        "faultline_eq.c",
        "faultline_iwcm.c",
        "faultline_listen.c",
        "faultline_net.c",
        "faultline_post.c",
        "faultline_qp.c",
        "faultline_srq.c",
        "faultline_txrx.c",
    ],
    test: &[
        "addresses.c",
        "completions.c",
        "connections.c",
        "device.c",
        "events.c",
        "frames.c",
        "net.c",
        "rings.c",
        "teardown.c",
    ],
    definitions: &[],
};
/// Commands, and the life of the device.
const LIFE: Parts = Parts {
    name: "life",
    driver: &["faultline_hw.c", "faultline_main.c", "faultline_recovery.c"],
    test: &["shutdown.c", "threads.c"],
    definitions: &["-DSHIM_THREADS"],
};
/// Files of the driver whose includes need a stand-in.
const HEADERS: &[&str] = &[
    "faultline.h",
    "faultline_cmd.h",
    "faultline_ib.h",
    "faultline_iwarp.h",
    "faultline_net.h",
    "faultline_odp.h",
];
/// Lives of the device in a test.
const LIVES: &str = "10000";
/// Lives of a netdev with a hundred lies each.
const NETDEVS: &str = "1100";

fn guest_driver() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-driver")
}

/// Headers of the kernel that a file includes.
fn includes(file: &Path) -> Vec<String> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .filter_map(|line| line.strip_prefix("#include <")?.strip_suffix('>'))
        .map(str::to_owned)
        .collect()
}

/// Writes a header of each name that includes the shim.
fn write_headers(parts: &Parts, folder: &Path) {
    let kernel = guest_driver().join("kernel");
    let names: BTreeSet<String> = parts
        .driver
        .iter()
        .chain(HEADERS)
        .flat_map(|file| includes(&kernel.join(file)))
        // The shim itself uses that of the C library.
        .filter(|name| name != "linux/types.h")
        .collect();
    for name in names {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a header has a folder")).expect("folder");
        fs::write(path, "#include \"shim.h\"\n").expect("header");
    }
}

/// Compiles all files into one program.
fn build(parts: &Parts) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(parts.name);
    let headers = folder.join("include");
    write_headers(parts, &headers);
    let program = folder.join("program");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let kernel = guest_driver().join("kernel");
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined"])
        .arg("-fno-sanitize-recover=all")
        // Warnings are the business of the kernel's build. Differences between kernels are none of this test.
        .arg("-w")
        .arg("-DFAULTLINE_COMPAT_H")
        .args(parts.definitions)
        .args(["-include", "shim.h"]);
    for folder in [&own, &headers, &kernel, &guest_driver().join("include")] {
        command.arg("-I").arg(folder);
    }
    command
        .args(parts.driver.iter().map(|file| kernel.join(file)))
        .args(parts.test.iter().map(|file| own.join(file)))
        .arg("-o")
        .arg(&program);
    let output = command.output().expect("a C compiler is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

static OF_QUEUES: LazyLock<PathBuf> = LazyLock::new(|| build(&QUEUES));

fn run(words: &[&str]) {
    run_program(&OF_QUEUES, words);
}

fn run_program(program: &Path, words: &[&str]) {
    let output = Command::new(program)
        .args(words)
        .output()
        .expect("the program starts");
    assert!(
        output.status.success(),
        "{words:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A completion of a QP that does not use the CQ, of a request that is not posted, or with an opcode, status or length that cannot
/// be, ends the device with a message that names it. No memory outside is accessed, and no request completes twice.
#[test]
fn false_completions_end_the_device() {
    run(&["completions", LIVES]);
}

/// A frame reaches the stack once and with its octets, and one that was sent is freed once. Completions of frames in a wrong order, with
/// an impossible length, of no buffer, or without end make the netdev drop a frame or restart its queues. No memory outside of a map is
/// accessed.
#[test]
fn false_completions_of_frames_restart_the_queues() {
    run(&["frames", NETDEVS]);
}

/// Work of the netdev that is queued while its objects go does not use them, and works again with new ones.
#[test]
fn work_of_the_netdev_ends_before_its_memory() {
    run(&["teardown"]);
}

/// An event in a wrong queue ends the device. Each other event reaches the object that it names, and only that.
#[test]
fn false_events_end_the_device() {
    run(&["events", LIVES]);
}

/// Numbers of objects that are in use or out of range, attributes of a QP and capabilities that the driver cannot bear are refused.
#[test]
fn false_answers_and_capabilities_are_refused() {
    run(&["answers"]);
}

/// The device has an entry for each address of the netdev and of its VLANs, with the MAC address of its interface, and for no other.
#[test]
fn the_device_knows_the_addresses_of_its_interfaces() {
    run(&["addresses"]);
}

/// iw_cm gets the events of a connection once and in order, whatever the device reports, and the last one when the device dies or the
/// queue pair is destroyed. No reference, port or map is left. A request is answered once. More requests than the device can have, and
/// impossible answers, end the device.
#[test]
fn false_events_of_connections_confuse_nobody() {
    run(&["connections", LIVES]);
}

/// The device finds each entry of a ring, and its record, at the address that the driver writes to; whatever the depth.
#[test]
fn both_sides_of_a_ring_see_the_same_memory() {
    run(&["rings"]);
}

/// Commands that wait while the machine shuts down fail at once, and the shutdown does not wait for them: neither for those of programs
/// nor for those of a recovery, whatever step that has reached. Times are virtual.
#[test]
fn shutdown_waits_for_no_command() {
    run_program(&build(&LIFE), &[]);
}
