//! The control server at its sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline_config::{Config, ControlSettings};
use faultline_daemon::Server;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(10);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A server with two NICs and a control socket.
struct Process {
    _server: Server,
    directory: tempfile::TempDir,
}

fn config(directory: &Path) -> Config {
    let nic = |name: &str| format!("{name}={}", directory.join(name).display());
    Config {
        nics: vec![nic("a").parse().unwrap(), nic("b c").parse().unwrap()],
        control: ControlSettings {
            socket: Some(directory.join("control")),
            ..ControlSettings::default()
        },
        ..Config::default()
    }
}

impl Process {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = faultline_control::serve(&config(directory.path())).unwrap();
        Self {
            _server: server,
            directory,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control")
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Sends bytes, and returns status and body of the answer.
    fn raw(&self, request: &[u8]) -> (u16, String) {
        exchange(self.connect(), request)
    }

    fn request(&self, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        let (status, text) = self.raw(&http(method, path, "", body));
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        (status, json)
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path, None);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    #[track_caller]
    fn refused(&self, method: &str, path: &str, body: Option<&str>, status: u16, part: &str) {
        let (got, body) = self.request(method, path, body);
        assert_eq!(got, status, "{path}: {body}");
        let error = body["error"].as_str().unwrap_or_default();
        assert!(error.contains(part), "{path}: {error}");
    }

    fn heartbeat(&self) -> u64 {
        self.get("/v1/nics/a")["heartbeat"].as_u64().unwrap()
    }
}

fn http(method: &str, path: &str, headers: &str, body: Option<&str>) -> Vec<u8> {
    let body = match body {
        Some(body) => format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
        None => "\r\n".to_owned(),
    };
    let host = if headers.contains("host:") {
        ""
    } else {
        "host: localhost\r\n"
    };
    format!("{method} {path} HTTP/1.1\r\n{host}connection: close\r\n{headers}{body}").into_bytes()
}

/// Status and body of the answer; chunks are joined. Status 0: there was none.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> (u16, String) {
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return (0, answer);
    };
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    let body = if chunked {
        join_chunks(body)
    } else {
        body.to_owned()
    };
    (status.unwrap_or(0), body)
}

fn join_chunks(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = text.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body += &rest[..length];
        text = &rest[length + 2..];
    }
    body
}

#[test]
fn nics_are_listed_and_shown() {
    let process = Process::start();
    let nics = process.get("/v1/nics");
    let names: Vec<_> = nics
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| &nic["name"])
        .collect();
    assert_eq!(names, ["a", "b c"]);
    assert_eq!(nics[0]["state"], "disabled");
    let nic = process.get("/v1/nics/b%20c");
    assert_eq!(nic["name"], "b c");
    assert_eq!(nic["mac"], nics[1]["mac"]);
    assert_eq!(nic["link"]["up"], true);
    assert_eq!(nic["link"]["mtu"], Value::Null);
    assert_eq!(nic["config"]["fault_policy"], "rnr");
    assert_eq!(nic["limits"]["max_faults"], 1024);
    assert_eq!(nic["counters"]["tx_packets"], 0);
    assert_eq!(nic["objects"]["queue_pairs"], 0);
    assert_eq!(process.get("/v1/nics/a/counters"), nic["counters"]);
    for list in ["queue-pairs", "regions", "contexts"] {
        let page = process.get(&format!("/v1/nics/a/{list}?from=0&limit=256"));
        assert_eq!(page["items"], json!([]), "{list}");
    }
    assert_eq!(process.get("/v1/nics/a/faults"), json!([]));
    let dump = process.get("/v1/nics/a/dump");
    assert_eq!(dump["nic"]["name"], "a");
    for list in ["queue_pairs", "regions", "contexts", "faults"] {
        assert_eq!(dump[list], json!([]), "{list}");
    }
}

#[test]
fn a_process_tells_its_version_and_describes_its_api() {
    let process = Process::start();
    let version = process.get("/v1/version");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["api"], "1");
    let description = process.get("/v1/openapi.json");
    let known = faultline_control::api::description().unwrap();
    assert_eq!(description, serde_json::from_str::<Value>(&known).unwrap());
    assert!(description["paths"]["/v1/version"].is_object());
    let (_, metrics) = process.raw(&http("GET", "/metrics", "", None));
    let number = |name: &str| -> f64 {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value
            .unwrap_or_else(|| panic!("{name}: {metrics}"))
            .trim()
            .parse()
            .unwrap()
    };
    let build = format!(
        "faultline_build_info{{version=\"{}\"}} ",
        env!("CARGO_PKG_VERSION")
    );
    assert!((number(&build) - 1.0).abs() < f64::EPSILON);
    assert!(number("process_resident_memory_bytes ") > 4096.0);
    assert!(number("process_open_fds ") >= 3.0 && number("process_threads ") >= 2.0);
    assert!(number("process_start_time_seconds ") > 1.7e9);
}

#[test]
fn a_link_can_be_changed() {
    let process = Process::start();
    let change = |body: &str| process.request("PUT", "/v1/nics/a/link", Some(body));
    let (status, link) = change(r#"{"mtu": 1500, "speed_mbps": 25000}"#);
    assert_eq!(
        (status, &link["mtu"], &link["speed_mbps"]),
        (200, &json!(1500), &json!(25000))
    );
    let (_, link) = change(r#"{"up": false}"#);
    assert_eq!((&link["up"], &link["mtu"]), (&json!(false), &json!(1500)));
    assert_eq!(process.get("/v1/nics")[0]["link_up"], false);
    assert_eq!(process.get("/v1/nics")[1]["link_up"], true);
    let (_, link) = change(r#"{"up": true, "mtu": 0}"#);
    assert_eq!((&link["up"], &link["mtu"]), (&json!(true), &Value::Null));
    assert_eq!(process.get("/v1/nics/a/link"), link);
}

#[test]
fn actions_are_done() {
    let process = Process::start();
    let act = |body: &str| process.request("POST", "/v1/nics/a/actions", Some(body)).0;
    assert_eq!(act(r#"{"action": "reset"}"#), 204);
    assert_eq!(act(r#"{"action": "fail_faults"}"#), 204);
    assert_eq!(
        act(r#"{"action": "drop_frames", "direction": "tx", "count": 3}"#),
        204
    );
    assert_eq!(
        act(r#"{"action": "drop_frames", "direction": "rx", "count": 4}"#),
        204
    );
    assert_eq!(act(r#"{"action": "lose_interrupts", "count": 5}"#), 204);
    let link = process.get("/v1/nics/a/link");
    assert_eq!(link["tx_drops_pending"], 3);
    assert_eq!(link["rx_drops_pending"], 4);
    assert_eq!(link["interrupt_losses_pending"], 5);
    process.refused(
        "POST",
        "/v1/nics/a/actions",
        Some(r#"{"action": "fatal"}"#),
        409,
        "not running",
    );
    process.refused(
        "POST",
        "/v1/nics/a/actions",
        Some(r#"{"action": "explode"}"#),
        400,
        "unknown variant `explode`, expected one of `reset`, `fatal`, `fail_faults`, `drop_frames`, `lose_interrupts`",
    );
    process.refused(
        "POST",
        "/v1/nics/a/actions",
        Some(r#"{"action": "reset", "hard": true}"#),
        400,
        "unknown field `hard`",
    );
}

#[test]
fn a_paused_engine_steps_and_serves_requests() {
    let process = Process::start();
    process.refused(
        "POST",
        "/v1/engine/step",
        Some(r#"{"passes": 1}"#),
        409,
        "not paused",
    );
    let (status, engine) = process.request("PUT", "/v1/engine", Some(r#"{"paused": true}"#));
    assert_eq!((status, &engine["paused"]), (200, &json!(true)));
    let before = process.get("/v1/engine");
    let heartbeat = process.heartbeat();
    let deadline = Instant::now() + LONG;
    while process.heartbeat() < heartbeat + 2 {
        assert!(Instant::now() < deadline, "no heartbeat in a pause");
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = process.get("/v1/engine");
    assert_eq!(after["device_time_ns"], before["device_time_ns"]);
    assert_eq!(after["passes"], before["passes"]);
    let step = r#"{"passes": 3, "advance_us": 1000}"#;
    let (status, stepped) = process.request("POST", "/v1/engine/step", Some(step));
    assert_eq!((status, &stepped["passes"]), (200, &json!(3)));
    let time = |view: &Value| view["device_time_ns"].as_u64().unwrap();
    assert_eq!(time(&stepped), time(&before) + 1_000_000);
    let passes = |view: &Value| view["passes"].as_u64().unwrap();
    assert_eq!(passes(&process.get("/v1/engine")), passes(&before) + 3);
    let (_, engine) = process.request("PUT", "/v1/engine", Some(r#"{"paused": false}"#));
    assert_eq!(engine["paused"], false);
    assert!(time(&process.get("/v1/engine")) > time(&stepped));
}

#[test]
fn the_trace_is_read_in_parts() {
    let process = Process::start();
    for _ in 0..3 {
        process.request(
            "POST",
            "/v1/nics/b%20c/actions",
            Some(r#"{"action": "reset"}"#),
        );
    }
    let part = |query: &str| {
        let (status, text) = process.raw(&http("GET", &format!("/v1/trace{query}"), "", None));
        assert_eq!(status, 200, "{text}");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let whole = part("");
    assert_eq!(whole[0]["nics"], json!(["a", "b c"]));
    assert_eq!(
        (&whole[0]["first"], &whole[0]["lost"]),
        (&json!(0), &json!(0))
    );
    let records = whole.len() as u64 - 1;
    assert_eq!(whole[0]["next"], records);
    let rest = part(&format!("?from={records}"));
    assert_eq!(rest.len(), 1, "{rest:?}");
    process.refused("GET", "/v1/trace?limit=4097", None, 400, "limit 4097");
    process.refused("GET", "/v1/trace?limit=0", None, 400, "limit 0");
}

#[test]
fn mistakes_are_named() {
    let process = Process::start();
    let refused =
        |method, path, body, status, part| process.refused(method, path, body, status, part);
    refused(
        "GET",
        "/v1/nics/c",
        None,
        404,
        "there is no NIC \"c\"; the NICs are: a, b c",
    );
    refused(
        "GET",
        "/v1/nick",
        None,
        404,
        "there is no path \"/v1/nick\"",
    );
    refused("DELETE", "/v1/nics", None, 405, "DELETE is not allowed");
    refused("GET", "/v1/nics?x=1", None, 400, "unknown field `x`");
    refused(
        "GET",
        "/v1/nics/a/regions?form=1",
        None,
        400,
        "unknown field `form`, expected `from` or `limit`",
    );
    refused(
        "GET",
        "/v1/nics/a/regions?limit=257",
        None,
        400,
        "limit 257 is out of range",
    );
    refused("GET", "/v1/nics/a/regions?from=-1", None, 400, "query: ");
    refused("GET", "/v1/nics/a/queue-pairs/x", None, 400, "path: ");
    refused(
        "GET",
        "/v1/nics/a/queue-pairs/77",
        None,
        404,
        "no queue pair 77",
    );
}

#[test]
fn metrics_are_those_of_the_api() {
    let process = Process::start();
    process.request("POST", "/v1/nics/a/actions", Some(r#"{"action": "reset"}"#));
    let (status, text) = process.raw(&http("GET", "/metrics", "", None));
    assert_eq!(status, 200, "{text}");
    for nic in ["a", "b c"] {
        let label = format!("nic=\"{nic}\"");
        assert!(
            text.lines().any(|line| line.contains(&label)),
            "{nic}: {text}"
        );
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn mistakes_in_bodies_are_named() {
    let process = Process::start();
    let refused =
        |method, path, body, status, part| process.refused(method, path, body, status, part);
    let policy = "/v1/nics/a/queue-pairs/77/fault-policy";
    refused(
        "PUT",
        policy,
        Some(r#"{"policy": "drop"}"#),
        404,
        "no queue pair 77",
    );
    refused(
        "PUT",
        policy,
        Some(r#"{"policy": "lazy"}"#),
        400,
        "expected one of `rnr`, `drop`, `stall`, `terminate`",
    );
    refused("PUT", "/v1/engine", Some("{"), 400, "body: ");
    refused(
        "PUT",
        "/v1/engine",
        Some(r#"{"paused": 1}"#),
        400,
        "expected a boolean",
    );
    refused(
        "PUT",
        "/v1/engine",
        Some(r#"{"paused": true, "x": 1}"#),
        400,
        "unknown field `x`",
    );
    refused("PUT", "/v1/engine", None, 415, "Content-Type");
    refused(
        "POST",
        "/v1/engine/step",
        Some(r#"{"passes": 257}"#),
        400,
        "passes 257",
    );
    refused(
        "POST",
        "/v1/engine/step",
        Some(r#"{"passes": 1, "advance_us": 3600000001}"#),
        400,
        "advance_us",
    );
    refused(
        "PUT",
        "/v1/nics/a/link",
        Some(r#"{"mtu": 67}"#),
        400,
        "mtu 67 is too small",
    );
    refused(
        "PUT",
        "/v1/nics/a/link",
        Some(r#"{"mtu": 65536}"#),
        400,
        "65536",
    );
}

#[test]
fn a_body_has_a_limit() {
    let process = Process::start();
    let fitting = format!("{{\"paused\": false{}}}", " ".repeat((64 << 10) - 17));
    assert_eq!(process.request("PUT", "/v1/engine", Some(&fitting)).0, 200);
    let (status, body) = process.request("PUT", "/v1/engine", Some(&(fitting + " ")));
    assert_eq!(status, 413, "{body}");
    assert!(body["error"].is_string());
    let long = format!("x: {}\r\n", "y".repeat(64 << 10));
    let (status, _) = process.raw(&http("GET", "/v1/nics", &long, None));
    assert_eq!(status, 431);
    let many = (0..100).map(|n| format!("x{n}: y\r\n")).collect::<String>();
    let (status, _) = process.raw(&http("GET", "/v1/nics", &many, None));
    assert_eq!(status, 431);
    process.get("/v1/nics");
}

#[test]
fn the_socket_is_private_and_removed_at_the_end() {
    let process = Process::start();
    let path = process.socket();
    let metadata = std::fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let Process { _server, directory } = process;
    // Another process does not get the path while this one lives.
    let mut other = config(directory.path());
    other.nics.truncate(0);
    other.nics.push(
        format!("x={}", directory.path().join("x").display())
            .parse()
            .unwrap(),
    );
    let error = faultline_control::serve(&other).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.to_string().contains("in use"), "{error}: {source}");
    drop(_server);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let path = config.control.socket.clone().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = faultline_control::serve(&config).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(
        exchange(&mut stream, &http("GET", "/v1/nics", "", None)).0,
        200
    );
    drop(server);
}

/// A server that also listens on a free port.
fn with_tcp() -> (Server, tempfile::TempDir, u16) {
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).unwrap();
    loop {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut config = config(directory.path());
        config.control.listen = Some(([127, 0, 0, 1], port).into());
        config.control.token_file = Some(token_file.clone());
        match faultline_control::serve(&config) {
            Ok(server) => return (server, directory, port),
            Err(error) => assert!(error.to_string().contains("control.listen"), "{error}"),
        }
    }
}

#[test]
fn a_tcp_request_needs_token_and_host() {
    let (_server, directory, port) = with_tcp();
    let status = |headers: &str| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        exchange(stream, &http("GET", "/v1/nics", headers, None))
    };
    let host = format!("host: localhost:{port}\r\n");
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    assert_eq!(status(&format!("{host}{token}")).0, 200);
    for wrong in [
        "",
        "authorization: Bearer 0123\r\n",
        "authorization: Basic eDp5\r\n",
    ] {
        let (code, body) = status(&format!("{host}{wrong}"));
        assert_eq!(code, 401, "{body}");
        assert!(body.contains("control.token_file"), "{body}");
    }
    for wrong in ["localhost".to_owned(), format!("evil.example:{port}")] {
        let (code, body) = status(&format!("host: {wrong}\r\n{token}"));
        assert_eq!(code, 421, "{body}");
    }
    // The unix socket has no token.
    let stream = UnixStream::connect(directory.path().join("control")).unwrap();
    assert_eq!(exchange(stream, &http("GET", "/v1/nics", "", None)).0, 200);
}

#[test]
fn a_tcp_address_needs_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.control.listen = Some("127.0.0.1:1".parse().unwrap());
    let error = faultline_control::serve(&config).unwrap_err().to_string();
    assert!(
        error.contains("needs the key control.token_file"),
        "{error}"
    );
    let file = directory.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    config.control.token_file = Some(file);
    let error = faultline_control::serve(&config).unwrap_err().to_string();
    assert!(error.contains("mode 0644"), "{error}");
}

/// Clients that do not read, send half a request, or nothing.
#[test]
fn dead_clients_hold_up_neither_the_engine_nor_others() {
    let process = Process::start();
    let mut dead = Vec::new();
    for n in 0..20 {
        let mut stream = process.connect();
        let request = match n % 4 {
            0 => String::new(),
            1 => "GET /v1/nics HTTP/1.1\r\nhost: ".to_owned(),
            2 => "PUT /v1/engine HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                  content-length: 50000\r\n\r\n{"
                .to_owned(),
            // Answers of more than the socket's buffer, which are never read.
            _ => "GET /v1/nics/a HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100),
        };
        stream.write_all(request.as_bytes()).unwrap();
        dead.push(stream);
    }
    let start = Instant::now();
    let first = process.heartbeat();
    let mut slowest = Duration::ZERO;
    while start.elapsed() < Duration::from_secs(2) {
        let before = Instant::now();
        process.get("/v1/nics");
        slowest = slowest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    let beats = process.heartbeat() - first;
    assert!(beats >= 5, "{beats} heartbeats in two seconds, 8 are due");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    drop(dead);
}
