//! Full barriers of the driver. Between a store that the device reads and a load of a word that the device writes, kernel driver and
//! provider need one that is a barrier for another process of the host, also in a guest with one virtual CPU. On x86 this is MFENCE.

use faultline_layout::named::read;

/// The files that look at words of the device.
const FILES: [(&str, &str); 4] = [
    (
        "guest-driver/kernel/faultline_hw.c",
        "faultline_device_mb();",
    ),
    (
        "guest-driver/kernel/faultline_post.c",
        "faultline_device_mb();",
    ),
    ("guest-driver/provider/doorbell.c", "fl_device_barrier();"),
    ("guest-driver/provider/qp.c", "fl_device_barrier();"),
];

/// Looks at `asleep` and `notify`, in all files.
const LOOKS: usize = 4;

/// Full barriers that may be LOCKed instructions on x86.
const OTHERS: [&str; 6] = [
    "smp_mb(",
    "smp_mb__",
    "smp_store_mb(",
    "virt_mb(",
    "__atomic_thread_fence(",
    "__sync_synchronize(",
];

/// Where they are right, how many, and why.
const ALLOWED: [(&str, usize, &str); 4] = [
    (
        "guest-driver/kernel/faultline_post.c",
        1,
        "orders a producer index and a flag of the driver, for other processors of the guest",
    ),
    (
        "guest-driver/kernel/faultline_recovery.c",
        1,
        "orders two flags of the driver: a shutdown and a recovery see each other",
    ),
    (
        "guest-driver/kernel/faultline_txrx.c",
        2,
        "stops and wakes a queue of the netdev, between processors of the guest",
    ),
    (
        "guest-driver/provider/faultline.h",
        1,
        "on other architectures than x86",
    ),
];

/// The text without comments of blocks.
fn code(file: &str) -> String {
    let text = read(file);
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code.push_str(part.split_once("*/").map_or("", |(_, rest)| rest));
    }
    code
}

/// Lines that look at `asleep` or `notify`, each with the line of code before it.
fn looks(code: &str) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = code
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let is_look = |line: &str| {
        let loads = line.contains("READ_ONCE(") || line.contains("__atomic_load_n(");
        loads && (line.contains("->asleep") || line.contains("->notify"))
    };
    lines
        .windows(2)
        .filter(|pair| is_look(pair[1]))
        .map(|pair| (pair[0], pair[1]))
        .collect()
}

/// True if the doorbell that `asleep` is about was not stored: the ring is full.
fn is_of_a_full_ring(before: &str) -> bool {
    before == "if (now - start > FAULTLINE_DB_SPIN_NS ||"
}

#[test]
fn each_look_at_a_word_of_the_device_is_behind_its_barrier() {
    let mut count = 0;
    for (file, barrier) in FILES {
        for (before, line) in looks(&code(file)) {
            if !is_of_a_full_ring(before) {
                assert_eq!(before, barrier, "{file}: before {line:?}");
                count += 1;
            }
        }
    }
    assert_eq!(count, LOOKS, "looks at `asleep` and `notify`");
}

#[test]
fn a_look_without_its_barrier_is_found() {
    let source = "\tsmp_mb();\n\n\tif (READ_ONCE(page->asleep))\n\t\tkick();\n";
    let found = looks(source);
    assert_eq!(found, [("smp_mb();", "if (READ_ONCE(page->asleep))")]);
}

#[test]
fn the_barriers_are_some_for_the_device() {
    let body = |file: &str, head: &str| {
        let code = code(file);
        let at = code.find(head).expect("the barrier has a function");
        code[at..]
            .split("\n}")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let kernel = body(
        "guest-driver/kernel/faultline.h",
        "static inline void faultline_device_mb(void)",
    );
    assert!(kernel.ends_with("{\n\tmb();"), "{kernel}");
    let provider = body(
        "guest-driver/provider/faultline.h",
        "static inline void fl_device_barrier(void)",
    );
    assert!(provider.contains("\"mfence\" ::: \"memory\""), "{provider}");
}

#[test]
fn other_full_barriers_have_a_reason() {
    for folder in ["kernel", "provider"] {
        let path = format!("{}/../../guest-driver/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(path).expect("a folder of the driver") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy();
            if !(name.ends_with(".c") || name.ends_with(".h")) {
                continue;
            }
            let file = format!("guest-driver/{folder}/{name}");
            let code = code(&file);
            let found: usize = OTHERS.iter().map(|of| code.matches(of).count()).sum();
            let allowed = ALLOWED.iter().find(|(of, ..)| *of == file);
            let (most, reason) = allowed.map_or((0, "none"), |(_, most, reason)| (*most, *reason));
            assert_eq!(
                found, most,
                "full barriers in {file} that are none for the device (allowed: {most}; reason: {reason})"
            );
        }
    }
}
