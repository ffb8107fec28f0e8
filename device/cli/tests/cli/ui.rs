//! `faultline ui` as a program: who gets what over HTTP.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::program::server;

const LONG: Duration = Duration::from_secs(30);

/// A page that is served.
pub(crate) struct Ui {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
    pub(crate) token: String,
}

impl Ui {
    /// For the process whose control socket is in this directory.
    pub(crate) fn start(directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.args(["ui", "--no-open", "--interval", "0.1", "--control"]);
        command.arg(directory.join("control"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(Ok(url)) = lines.next() else {
            let mut said = String::new();
            let mut stderr = child.stderr.take().unwrap();
            stderr.read_to_string(&mut said).unwrap();
            panic!("no address, but {said}");
        };
        let (host, token) = url.split_once("/#").unwrap();
        let host = host.strip_prefix("http://").unwrap().to_owned();
        assert!(host.starts_with("127.0.0.1:"), "{url}");
        Self {
            child,
            host,
            token: token.to_owned(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/#{}", self.host, self.token)
    }

    /// Sends a request with these headers.
    fn send(&self, start: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut head = format!("{start} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    /// The answer to a request with these headers: status, head and body.
    fn asked(&self, start: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut answer = String::new();
        let mut stream = self.send(start, headers, body);
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    /// The answer to a request of the page.
    fn api(&self, start: &str, body: &str) -> (u16, Value) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("Host", self.host.as_str()),
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        let (status, _, body) = self.asked(start, &headers, body);
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Samples, as a browser gets them.
    fn samples(&self) -> impl Iterator<Item = Value> + use<> {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("Host", self.host.as_str()),
            ("Authorization", bearer.as_str()),
        ];
        let stream = self.send("GET /api/samples", &headers, "");
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap()))
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn files_have_no_secrets_and_a_strict_policy() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let host = [("Host", ui.host.as_str())];
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
    ] {
        let (status, head, body) = ui.asked(&format!("GET {path}"), &host, "");
        assert_eq!(status, 200, "{path}: {head}");
        assert!(
            head.contains(&format!("content-type: {kind}; charset=utf-8")),
            "{head}"
        );
        let policy = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
        assert!(head.contains(policy), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!head.contains("access-control"), "{head}");
        assert!(!body.contains(&ui.token));
    }
}

/// Status of a request for the page table of a key that does not exist: 404 if the request itself is accepted.
#[track_caller]
fn refused(ui: &Ui, host: &str, more: &[(&str, &str)]) -> u16 {
    let mut headers = vec![("Host", host)];
    headers.extend(more);
    ui.asked("GET /api/pages?nic=a&key=5", &headers, "").0
}

#[test]
fn data_and_changes_need_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let host = ui.host.as_str();
    let good = format!("Bearer {}", ui.token);
    assert_eq!(refused(&ui, host, &[("Authorization", good.as_str())]), 404);
    let other = if ui.token.ends_with('0') { '1' } else { '0' };
    let near = format!("{}{other}", &good[..good.len() - 1]);
    for wrong in ["", "Bearer", "Bearer 0", near.as_str(), ui.token.as_str()] {
        assert_eq!(
            refused(&ui, host, &[("Authorization", wrong)]),
            401,
            "{wrong}"
        );
    }
    assert_eq!(refused(&ui, host, &[]), 401);
    let headers = [("Host", host), ("Content-Type", "application/json")];
    for start in [
        "GET /api/samples",
        "PUT /api/engine",
        "POST /api/engine/step",
    ] {
        let (status, _, _) = ui.asked(start, &headers, r#"{"paused":true}"#);
        assert_eq!(status, 401, "{start}");
    }
    let sample = ui.samples().next().unwrap();
    assert_eq!(sample["engine"]["paused"], false);
}

/// A name of another machine that leads to 127.0.0.1 (DNS rebinding).
#[test]
fn other_names_of_this_machine_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let good = format!("Bearer {}", ui.token);
    let port = ui.host.strip_prefix("127.0.0.1").unwrap();
    for (name, expected) in [
        ("localhost", 404),
        ("[::1]", 404),
        ("evil.example", 421),
        ("127.0.0.2", 421),
    ] {
        let host = format!("{name}{port}");
        assert_eq!(
            refused(&ui, &host, &[("Authorization", good.as_str())]),
            expected,
            "{host}"
        );
        // Files need no token, but the name.
        let (status, _, _) = ui.asked("GET /", &[("Host", host.as_str())], "");
        assert_eq!(status == 200, expected == 404, "{host}: {status}");
    }
}

#[test]
fn requests_of_other_pages_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let (host, good) = (ui.host.as_str(), format!("Bearer {}", ui.token));
    let own = format!("http://{host}");
    // The last is another program of this machine.
    let others = [
        "null",
        "http://evil.example",
        "https://127.0.0.1",
        "http://127.0.0.1:1",
    ];
    for origin in [own.as_str()].into_iter().chain(others) {
        let expected = if origin == own { 404 } else { 403 };
        let headers = [("Authorization", good.as_str()), ("Origin", origin)];
        assert_eq!(refused(&ui, host, &headers), expected, "{origin}");
    }
}

#[test]
fn the_page_pauses_steps_and_resumes() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let (status, refused) = ui.api("POST /api/engine/step", r#"{"passes":1}"#);
    assert_eq!(status, 409, "{refused}");
    let (status, engine) = ui.api("PUT /api/engine", r#"{"paused":true}"#);
    assert_eq!((status, &engine["paused"]), (200, &json!(true)));
    let (status, stepped) = ui.api("POST /api/engine/step", r#"{"passes":3,"advance_us":1000}"#);
    assert_eq!((status, &stepped["passes"]), (200, &json!(3)));
    let clock = |value: &Value| value["device_time_ns"].as_u64().unwrap();
    assert!(clock(&stepped) >= clock(&engine) + 1_000_000);
    let mut samples = ui.samples();
    assert!(samples.any(|sample| sample["engine"]["paused"] == true));
    for body in ["", "{}", r#"{"paused":1}"#, r#"{"paused":false,"more":1}"#] {
        let (status, answer) = ui.api("PUT /api/engine", body);
        assert!((400..500).contains(&status), "{body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    let (status, engine) = ui.api("PUT /api/engine", r#"{"paused":false}"#);
    assert_eq!((status, &engine["paused"]), (200, &json!(false)));
}

#[test]
fn a_sample_has_what_the_views_show() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a", "b c"]);
    let ui = Ui::start(directory.path());
    let sample = ui.samples().nth(1).unwrap();
    for list in ["rows", "engine"] {
        assert!(sample[list].is_object(), "{list}: {sample}");
    }
    for list in ["nics", "ports", "links", "rules", "events"] {
        assert!(sample[list].is_array(), "{list}: {sample}");
    }
    let names: Vec<_> = sample["rows"]["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| &nic["name"])
        .collect();
    assert_eq!(names, ["a", "b c"]);
    assert_eq!(sample["engine"]["threads"][0]["nics"], json!(["a", "b c"]));
    assert_eq!(sample["nics"][1]["link"]["up"], true);
    assert_eq!(sample["scenario"], Value::Null);
    assert_eq!(sample["faults"]["outcomes"]["all"], 0);
    assert_eq!(sample["faults"]["stages"].as_array().unwrap().len(), 7);
    assert!(sample["rows"]["interval_s"].as_f64().unwrap() > 0.0);
}

/// Samples have the time since the start of the process, so two are the same only if one request has made both.
#[test]
fn browsers_get_the_same_samples() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let mut browsers = [ui.samples(), ui.samples()];
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    let start = Instant::now();
    while seen[0].intersection(&seen[1]).count() < 5 {
        assert!(start.elapsed() < LONG, "{seen:?}");
        for (browser, seen) in browsers.iter_mut().zip(&mut seen) {
            let sample = browser.next().unwrap();
            seen.insert(sample["engine"]["uptime_ns"].as_u64().unwrap());
        }
    }
}

/// No samples are made without a browser, and the next one does not get the last of them.
#[test]
fn a_later_browser_gets_a_new_sample() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let uptime = |sample: Value| sample["engine"]["uptime_ns"].as_u64().unwrap();
    let first = uptime(ui.samples().next().unwrap());
    let pause = Duration::from_secs(3);
    std::thread::sleep(pause);
    let next = ui.samples().next().unwrap();
    assert_eq!(next["rows"]["interval_s"], Value::Null, "{next}");
    let passed = Duration::from_nanos(uptime(next) - first);
    // The times of the first sample and of the pause begin a little apart.
    assert!(passed > pause - Duration::from_millis(500), "{passed:?}");
}

#[test]
fn the_page_outlives_the_process_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let first = server(directory.path(), &["a"]);
    let ui = Ui::start(directory.path());
    let mut samples = ui.samples();
    assert!(samples.next().unwrap()["engine"].is_object());
    drop(first);
    let lost = samples.find(|sample| sample["error"].is_string()).unwrap();
    assert!(
        lost["error"].as_str().unwrap().contains("control"),
        "{lost}"
    );
    let _second = server(directory.path(), &["z"]);
    let back = samples.find(|sample| sample["error"].is_null()).unwrap();
    assert_eq!(back["rows"]["nics"][0]["name"], "z");
}

#[test]
fn a_signal_ends_the_page() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a"]);
    for signal in [Signal::INT, Signal::TERM] {
        let mut ui = Ui::start(directory.path());
        // Also with a browser that waits.
        let mut samples = ui.samples();
        samples.next().unwrap();
        kill_process(Pid::from_child(&ui.child), signal).unwrap();
        let mut said = String::new();
        let mut stderr = ui.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        assert_eq!(
            (ui.child.wait().unwrap().code(), said.as_str()),
            (Some(0), "")
        );
    }
}

#[test]
fn without_a_process_there_is_no_page() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(["ui", "--no-open", "--control"]);
    let output = command
        .arg(directory.path().join("control"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("there is no socket"), "{error}");
    assert_eq!(output.stdout, b"");
}
