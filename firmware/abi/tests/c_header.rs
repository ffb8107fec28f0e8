//! The checked-in C header is the generated one, and a C compiler lays it out as Rust does.
//!
//! `FAULTLINE_BLESS=1 cargo test -p faultline-abi --features header` rewrites the header.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use faultline_abi::header::{GROUPS, STRUCTS, c_header};
use faultline_abi::regs;

fn header_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-driver/include/faultline_abi.h")
}

#[test]
fn checked_in_header_is_current() {
    let path = header_path();
    if std::env::var_os("FAULTLINE_BLESS").is_some() {
        std::fs::write(&path, c_header()).expect("header can be written");
    }
    let found = std::fs::read_to_string(&path).expect("header is there");
    assert!(
        found == c_header(),
        "{} is stale; FAULTLINE_BLESS=1 cargo test -p faultline-abi --features header",
        path.display()
    );
}

/// Files that have the IDs as text: the guests' scripts and documents.
#[test]
fn copies_of_the_pci_id_are_the_same() {
    let (vendor, device) = (regs::PCI_VENDOR, regs::PCI_DEVICE);
    let subsystem = (regs::PCI_SUBSYSTEM_VENDOR, regs::PCI_SUBSYSTEM);
    assert_eq!(
        subsystem,
        (vendor, device),
        "the lab's scripts take them for the same"
    );
    for (file, text) in [
        (
            "qemu-config/guest/lib.sh",
            format!("LAB_PCI_ID=\"{vendor:#06x} {device:#06x}\""),
        ),
        (
            "qemu-config/packages/guest/faultline.4",
            format!("the PCI function {vendor:04x}:{device:04x},"),
        ),
        (
            "docs/hardware-manual.md",
            format!(
                "Vendor {vendor:04x}, device {device:04x}, subsystem {vendor:04x}:{device:04x},"
            ),
        ),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(file);
        let found = std::fs::read_to_string(path).expect("file is there");
        assert!(found.contains(&text), "{file} has no {text:?}");
    }
}

#[test]
fn c_compiler_agrees() {
    let mut source = String::from("#include <stddef.h>\n#include \"faultline_abi.h\"\n");
    let mut checks = 0;
    for s in STRUCTS {
        let _ = writeln!(
            source,
            "_Static_assert(sizeof(struct {0}) == {1}, \"size of {0}\");",
            s.name, s.size
        );
        for f in s.fields {
            let _ = writeln!(
                source,
                "_Static_assert(offsetof(struct {0}, {1}) == {2}, \"offset of {0}.{1}\");",
                s.name, f.name, f.offset
            );
            checks += 1;
        }
    }
    for c in GROUPS.iter().flat_map(|g| g.constants) {
        let _ = writeln!(
            source,
            "_Static_assert({} == {}ULL, \"{}\");",
            c.name, c.value, c.name
        );
    }
    assert!(checks > 100);
    let dir = std::env::temp_dir().join(format!("faultline-abi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary folder");
    let file = dir.join("layout.c");
    std::fs::write(&file, source).expect("source can be written");
    let output = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Wpadded",
            "-Werror",
            "-fsyntax-only",
        ])
        .arg("-I")
        .arg(header_path().parent().expect("header has a folder"))
        .arg(&file)
        .output()
        .expect("a C compiler is installed");
    std::fs::remove_dir_all(&dir).expect("temporary folder can go");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
