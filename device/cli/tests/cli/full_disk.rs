//! File systems without room: each command reports which file it could not write and why, and the server continues.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::program::{printed_by, server};
use crate::running::{LONG, Program, client};
use faultline_config::Config;
use rustix::process::Signal;

/// Set for a test that was started again, in a mount namespace of its own: the folder of the file systems.
const FULL: &str = "FAULTLINE_TEST_FULL_DISK";
/// Makes two file systems, and runs a test.
const MOUNT: &str = "mkdir \"$1/octets\" \"$1/inodes\" && mount -t tmpfs -o size=64k none \"$1/octets\" && \
    mount -t tmpfs -o nr_inodes=8 none \"$1/inodes\" && exec \"$2\" --exact \"$3\" --nocapture";

const NO_ROOM: &str = "No space left on device (os error 28)";

/// File systems without room.
struct FullDisks {
    /// Files can be made, but not written to.
    octets: PathBuf,
    /// Files can't be made.
    inodes: PathBuf,
}

/// Runs the test of this name, which calls this function, with full file systems.
fn with_full_disks(name: &str, test: impl FnOnce(&FullDisks)) {
    let Some(folder) = std::env::var_os(FULL) else {
        let folder = tempfile::tempdir().unwrap();
        // Without the name of the test program.
        let (_, module) = module_path!().split_once("::").unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--map-root-user", "sh", "-c", MOUNT, "sh"])
            .arg(folder.path())
            .arg(std::env::current_exe().unwrap())
            .arg(format!("{module}::{name}"))
            .env(FULL, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && text.contains("1 passed");
        assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
        return;
    };
    let folder = PathBuf::from(folder);
    let disks = FullDisks {
        octets: folder.join("octets"),
        inodes: folder.join("inodes"),
    };
    let error = std::fs::write(disks.octets.join("filler"), [1; 1 << 17]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let mut fillers = (0..10).map(|number| File::create(disks.inodes.join(number.to_string())));
    let error = fillers.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    test(&disks);
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn faultline(arguments: &[&str], control: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(arguments).env_remove("RUST_BACKTRACE");
    command.env("FAULTLINE_CONTROL", control).output().unwrap()
}

/// The command must fail with this message alone.
#[track_caller]
fn refused(arguments: &[&str], control: &Path, message: &str) {
    let output = faultline(arguments, control);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("Error: {message}: {NO_ROOM}\n"));
}

#[test]
fn captures_and_traces_name_the_file_without_room() {
    with_full_disks("captures_and_traces_name_the_file_without_room", |disks| {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control");
        let _server = server(directory.path(), &["a"]);
        let reset = ["ctl", "action", "a", "reset"];
        printed_by(faultline(&reset, &control), &reset);
        for (command, option, name) in [
            ("capture", "-w", "x.pcapng"),
            ("trace", "-o", "x.jsonl"),
            ("trace", "-o", "x.pftrace"),
        ] {
            let no_inode = if command == "capture" {
                "create"
            } else {
                "write"
            };
            for (disk, done) in [(&disks.octets, "write"), (&disks.inodes, no_inode)] {
                let file = disk.join(name).display().to_string();
                let message = format!("can't {done} {file}");
                refused(&[command, option, &file], &control, &message);
            }
        }
        // The captures have ended, and the process serves.
        let show = ["ctl", "nics"];
        assert!(printed_by(faultline(&show, &control), &show).contains('a'));
    });
}

/// A file system that becomes full during a capture ends the capture: the command says so, and the frames up to there can be read.
/// The server continues to run.
#[test]
fn a_capture_that_fills_a_file_system_keeps_its_written_frames() {
    const NAME: &str = "a_capture_that_fills_a_file_system_keeps_its_written_frames";
    with_full_disks(NAME, |disks| {
        std::fs::remove_file(disks.octets.join("filler")).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (control, wire) = (
            directory.path().join("control"),
            directory.path().join("wire"),
        );
        let config = format!(
            "[control]\nsocket = \"{}\"\n[[nic]]\nname = \"a\"\nsocket = \"{}\"\n\
             [[port]]\nname = \"wire\"\nkind = \"stream\"\nlisten = \"unix:{}\"\n",
            control.display(),
            directory.path().join("a").display(),
            wire.display(),
        );
        let _server = faultline_control::serve(&Config::from_toml(&config).unwrap()).unwrap();
        let file = disks.octets.join("x.pcapng");
        let mut capture = Killed(
            Command::new(env!("CARGO_BIN_EXE_faultline"))
                .arg("capture")
                .arg("-w")
                .arg(&file)
                .env("FAULTLINE_CONTROL", &control)
                .env_remove("RUST_BACKTRACE")
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        // A broadcast frame, as a peer of the port sends it.
        let mut frame = 1000_u32.to_be_bytes().to_vec();
        frame.extend([0xff; 6]);
        frame.resize(4 + 1000, 2);
        let mut peer = UnixStream::connect(&wire).unwrap();
        peer.set_write_timeout(Some(LONG)).unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = capture.0.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < LONG, "the capture goes on");
            peer.write_all(&frame).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        };
        let mut said = String::new();
        let mut stderr = capture.0.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        let message = format!("Error: can't write {}: {NO_ROOM}\n", file.display());
        assert!(said.ends_with(&message), "{said}");

        let written = std::fs::metadata(&file).unwrap().len();
        assert!((32 << 10..=64 << 10).contains(&written), "{written}");
        let check = faultline(&["check", file.to_str().unwrap()], &control);
        let text = String::from_utf8(check.stdout).unwrap();
        let frames: u64 = text.split(' ').next().unwrap().parse().unwrap();
        assert!(
            (32..64).contains(&frames),
            "{text}{:?}",
            String::from_utf8(check.stderr)
        );
        // The port still receives frames.
        let counted = || {
            let output = faultline(&["ctl", "ports"], &control);
            printed_by(output, &["ctl", "ports"])
        };
        let before = counted();
        assert!(before.contains("wire"), "{before}");
        peer.write_all(&frame).unwrap();
        let started = Instant::now();
        while counted() == before {
            assert!(started.elapsed() < LONG, "no frame is counted: {before}");
        }
    });
}

#[test]
fn results_of_scenarios_name_the_file_without_room() {
    with_full_disks("results_of_scenarios_name_the_file_without_room", |disks| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let scenario = root.join("tests/scenarios/ecn_marks.toml");
        let junit = disks.octets.join("junit.xml").display().to_string();
        let output = faultline(
            &[
                "scenario",
                "run",
                "--junit",
                &junit,
                scenario.to_str().unwrap(),
            ],
            Path::new("/none"),
        );
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.ends_with(&format!("Error: can't write {junit}: {NO_ROOM}\n")),
            "{said}"
        );
    });
}

#[test]
fn a_socket_without_room_is_refused_with_the_remedy() {
    with_full_disks(
        "a_socket_without_room_is_refused_with_the_remedy",
        |disks| {
            let directory = tempfile::tempdir().unwrap();
            let nic = directory.path().join("nic");
            let full = disks.inodes.join("full.sock");
            let remedy = format!(
                "the file system of the socket {} is full: see df and df -i; free some space or choose another path",
                full.display()
            );
            let program = Program::start(&[&nic, &full]);
            program.says(&format!("Error: NIC nic1: {remedy}"));
            assert_eq!(program.ends().code(), Some(1));
            assert!(!nic.exists());
            let program = Program::start_with(&[&nic], |command| {
                command.arg("--control").arg(&full);
            });
            program.says(&format!("Error: control socket: {remedy}"));
            assert_eq!(program.ends().code(), Some(1));
        },
    );
}

#[test]
fn a_supervisor_without_room_names_the_file() {
    with_full_disks("a_supervisor_without_room_names_the_file", |disks| {
        let directory = tempfile::tempdir().unwrap();
        let nic = directory.path().join("nic");
        for disk in [&disks.octets, &disks.inodes] {
            let program = Program::start_with(&[&nic], |command| {
                command.arg("--supervisor").env("RUNTIME_DIRECTORY", disk);
            });
            let said = program.says("Error: can't make the folder of the supervisor in ");
            assert!(said.contains(disk.to_str().unwrap()), "{said}");
            assert!(said.contains(NO_ROOM), "{said}");
            assert_eq!(program.ends().code(), Some(1));
            assert!(!nic.exists());
        }
    });
}

#[test]
fn a_log_without_room_holds_nothing_up_and_counts_lost_lines() {
    with_full_disks(
        "a_log_without_room_holds_nothing_up_and_counts_lost_lines",
        |disks| {
            let directory = tempfile::tempdir().unwrap();
            let nic = directory.path().join("nic");
            let log = disks.octets.join("log");
            let control = directory.path().join("control");
            let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
            command.arg("serve").env_remove("RUST_LOG");
            command.arg(format!("--nic=nic={}", nic.display()));
            command.arg("--control").arg(&control);
            let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
            let (_, none) = std::sync::mpsc::channel();
            let program = Program { child, log: none };
            let start = std::time::Instant::now();
            while !nic.exists() || !control.exists() {
                assert!(start.elapsed() < crate::running::LONG, "it does not serve");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            // Each connection is a line of the log. Lines are written some time later.
            drop(client(&nic));
            let is_lost = || {
                let metrics = faultline(&["ctl", "metrics"], &control);
                let text = String::from_utf8_lossy(&metrics.stdout).into_owned();
                let mut lines = text.lines();
                lines.any(|line| {
                    let count = line.strip_prefix("faultline_log_lines_lost_total ");
                    count.is_some_and(|count| count != "0")
                })
            };
            while !is_lost() {
                assert!(start.elapsed() < crate::running::LONG, "no line is lost");
            }
            assert_eq!(std::fs::read(&log).unwrap(), b"");
            std::fs::remove_file(disks.octets.join("filler")).unwrap();
            drop(client(&nic));
            program.signal(Signal::TERM);
            assert!(program.ends().success());
            let text = std::fs::read_to_string(&log).unwrap();
            let lost = format!(" log lines were lost: {NO_ROOM}\n");
            assert!(text.contains(&lost) && text.contains("ending"), "{text}");
        },
    );
}
