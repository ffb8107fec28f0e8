//! The page of `faultline ui` and of `faultline report --html` in a browser (Chromium, over its DevTools protocol).
//!
//! Needs `chromium`: `cargo lab test host::browser` installs it. With `FAULTLINE_BLESS=1` the test of a recording draws the picture of the
//! documentation.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use faultline_nic::{Diagnostic, DriverTimes, Instant as At};
use faultline_telemetry::{
    FrameEvent, QueuePairOwner, Record, Trace, TraceEvent, TraceFormat, TraceHeader,
};
use serde_json::{Value, json};

use crate::program::server;
use crate::ui::Ui;

const LONG: Duration = Duration::from_secs(60);
/// First address of the region of the recording.
const VA: u64 = 0x7f00_0000_0000;
const PAGE: u64 = 4096;
/// Device time at the start of the recording, 104 days: more than a number of JavaScript holds exactly.
const START: u64 = 1 << 53;
/// Faults of the recording that are resumed, and those that are not.
const RESUMED: u64 = 300;
const AWAITED: u64 = 7;
/// Queue pairs that send in the recording.
const PAIRS: u32 = 1000;

/// A browser with one page.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// What the browser has told without being asked.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The protocol is on descriptors 3 and 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", "chromium"]);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args([
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
        ]);
        command.args(["--window-size=1280,900", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let messages = BufReader::new(child.stdout.take().unwrap()).split(0);
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in messages.map_while(Result::ok) {
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            session: String::new(),
            next: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// The result of a command of the protocol, or its error.
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let answer = self.from.recv_timeout(LONG);
            let mut answer = answer.unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.next {
                return match answer["error"].take() {
                    Value::Null => Ok(answer["result"].take()),
                    error => Err(error),
                };
            }
            self.events.push(answer);
        }
    }

    /// The result of a command that must succeed.
    #[track_caller]
    fn call(&mut self, method: &str, params: Value) -> Value {
        let result = self.ask(method, params);
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The value of an expression on the page; an error if the page changes meanwhile.
    #[track_caller]
    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.ask("Runtime.evaluate", params)?;
        match result["exceptionDetails"].take() {
            Value::Null => Ok(result["result"]["value"].take()),
            exception => Err(exception),
        }
    }

    /// The value of an expression on a page that is loaded.
    #[track_caller]
    fn value(&mut self, expression: &str) -> Value {
        let value = self.evaluate(expression);
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Waits until an expression has this value.
    #[track_caller]
    fn awaits(&mut self, expression: &str, expected: impl Into<Value>) {
        let (start, expected) = (Instant::now(), Ok(expected.into()));
        loop {
            let found = self.evaluate(expression);
            if found == expected {
                return;
            }
            assert!(
                start.elapsed() < LONG,
                "{expression}: {found:?}, not {expected:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        let is_loaded = "document.readyState === 'complete' && document.querySelectorAll('nav button').length > 0";
        self.awaits(is_loaded, true);
    }

    /// Presses the only button with this text in the elements of a selector.
    #[track_caller]
    fn press_in(&mut self, place: &str, text: &str) {
        let pressed = format!(
            "(() => {{ const all = [...document.querySelectorAll('{place} button')].filter((b) => b.textContent === {}); \
             all[0]?.click(); return all.length; }})()",
            json!(text)
        );
        assert_eq!(self.value(&pressed), 1, "{text}");
    }

    #[track_caller]
    fn press(&mut self, text: &str) {
        self.press_in(":not(nav) >", text);
    }

    /// Shows a view.
    #[track_caller]
    fn show(&mut self, view: &str) {
        self.press_in("nav", view);
    }

    /// Checks that the page has asked for nothing elsewhere, and that there was no error.
    #[track_caller]
    fn is_clean(&mut self, allowed: &[&str]) {
        // What was told before this is known then.
        self.value("1");
        let mut requests = 0;
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => panic!("{params}"),
                "Runtime.consoleAPICalled" => panic!("{params}"),
                "Log.entryAdded" => panic!("{params}"),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap();
                    let is_allowed = allowed.iter().any(|start| url.starts_with(start));
                    assert!(is_allowed, "{url}");
                    requests += 1;
                }
                _ => {}
            }
        }
        assert!(requests > 0);
    }

    /// Checks names of controls, headers of tables, and contrast (WCAG 2.1: 1.3.1, 1.4.3, 4.1.2) of the view that is shown.
    #[track_caller]
    fn is_accessible(&mut self, view: &str) {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let mut controls = 0;
        for node in tree["nodes"].as_array().unwrap() {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let needs_name = [
                "button",
                "searchbox",
                "textbox",
                "combobox",
                "spinbutton",
                "img",
                "image",
                "table",
                "navigation",
                "group",
            ];
            if node["ignored"] == false && needs_name.contains(&role) {
                let name = node["name"]["value"].as_str().unwrap_or_default();
                assert!(
                    !name.trim().is_empty(),
                    "{view}: {role} without a name: {node}"
                );
                controls += 1;
            }
        }
        assert!(controls > 5, "{view}: {controls}");
        let headers = "[...document.querySelectorAll('table')].every((table) => table.caption?.textContent && \
            table.tHead?.rows[0].cells.length > 0 && [...table.tHead.rows[0].cells].every((cell) => cell.scope === 'col' && cell.textContent))";
        assert_eq!(self.value(headers), true, "{view}");
        let faint = self.value(CONTRAST);
        assert_eq!(faint, json!([]), "{view}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Texts whose contrast to their background is below 4.5, and a count of at least ten texts that were looked at (WCAG 2.1: relative luminance).
const CONTRAST: &str = r"
(() => {
  const colour = (text) => { const parts = text.match(/[\d.]+/g).map(Number); return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 }; };
  const luminance = (rgb) => { const [r, g, b] = rgb.map((part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => { for (let at = element; at; at = at.parentElement) { const found = colour(getComputedStyle(at).backgroundColor);
    if (found.alpha === 1) return found.rgb; } return [255, 255, 255]; };
  const faint = [];
  let looked = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'title'].includes(element.tagName) || !element.checkVisibility?.()) continue;
    looked += 1;
    const isSvg = element.namespaceURI.endsWith('svg');
    const style = getComputedStyle(element);
    let back = behind(element);
    if (isSvg) {
      const box = element.getBoundingClientRect();
      const rects = [...element.ownerSVGElement.querySelectorAll('rect')].filter((rect) => { const b = rect.getBoundingClientRect();
        return b.left <= box.left && b.right >= box.right && b.top <= box.top && b.bottom >= box.bottom; });
      if (rects.length > 0) back = colour(getComputedStyle(rects.at(-1)).fill).rgb;
    }
    const [one, other] = [luminance(colour(isSvg ? style.fill : style.color).rgb), luminance(back)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) faint.push(`${element.tagName} ${texts.currentNode.textContent}: ${ratio.toFixed(2)}`);
  }
  if (looked < 10) faint.push(`only ${looked} texts`);
  return faint;
})()";

/// Cells of the heat map in a state.
fn cells(state: &str) -> String {
    format!("document.querySelectorAll('.cell[data-state={state}]').length")
}

/// Two NICs, many queue pairs that send once, a region of 512 pages whose first ones have faults: even pages are written, the others read.
fn recording() -> Trace {
    let mut records = Vec::new();
    let mut add = |at, nic, event| {
        records.push(Record {
            at: At(at),
            nic,
            event,
        })
    };
    for qpn in 0..PAIRS {
        let frame = FrameEvent {
            to: 1,
            opcode: 0x0a,
            syndrome: FrameEvent::NO_SYNDROME,
            src_qpn: 2 + qpn,
            dst_qpn: 2000 + qpn,
            psn: qpn,
            packets: 1,
            bytes: 100 + qpn,
        };
        add(START + 1000 + u64::from(qpn), 0, TraceEvent::Frame(frame));
    }
    for n in 0..RESUMED + AWAITED {
        // The last fault is at the last page.
        let page = if n + 1 == RESUMED + AWAITED { 511 } else { n };
        let raised = At(START + 10_000 + 1000 * n);
        let short = u32::try_from(n % 97).unwrap();
        let raise = Diagnostic::FaultRaised {
            token: n,
            qpn: 2000,
            key: 0x1c00,
            va: VA + page * PAGE + 8,
            bytes: 64,
            psn: 0,
            write: n % 2 == 0,
            requester: false,
        };
        add(raised.0, 1, TraceEvent::Nic(raise));
        if n < RESUMED {
            let resumed = At(raised.0 + 40_000 + 900 * u64::from(short));
            let driver = DriverTimes {
                wait_ns: 9_000 + 100 * short,
                map_ns: 14_000 + 300 * short,
                post_ns: 1_500,
            };
            let resume = Diagnostic::FaultResumed {
                token: n,
                raised,
                waiters: 1,
                record_ns: 800,
                driver,
            };
            add(resumed.0, 1, TraceEvent::Nic(resume));
            let done = Diagnostic::FaultDone {
                token: n,
                qpn: 2000,
                resumed,
                raised,
            };
            add(
                resumed.0 + 6_000 + 20 * u64::from(short),
                1,
                TraceEvent::Nic(done),
            );
        }
    }
    records.sort_by_key(|record| record.at);
    let mut header = TraceHeader::new(vec!["left".to_owned(), "right".to_owned()]);
    for (qpn, process) in [(2000, "rping"), (2001, "<b>bold</b>")] {
        header.queue_pairs.push(QueuePairOwner {
            nic: 1,
            qpn,
            process: process.to_owned(),
            pid: 345,
            at: At(0),
        });
    }
    Trace { header, records }
}

/// Writes the recording and its page to a folder. Returns the page.
fn page_of_a_recording(folder: &Path) -> PathBuf {
    let (trace, page) = (folder.join("run.pftrace"), folder.join("run.html"));
    let mut file = std::fs::File::create(&trace).unwrap();
    recording().write(TraceFormat::Perfetto, &mut file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let output = command
        .arg("report")
        .arg(trace)
        .arg("--html")
        .arg(&page)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    page
}

#[test]
#[ignore = "needs Chromium: `cargo lab test host::browser` installs it"]
fn a_recording_is_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = page_of_a_recording(folder.path());
    let mut browser = Browser::start();
    browser.open(&format!("file://{}", page.display()));
    browser.awaits("document.querySelectorAll('tbody tr').length", 2);
    browser.is_accessible("Fabric");

    browser.show("Queue pairs");
    let rows = "document.querySelectorAll('tbody tr').length";
    let first = "document.querySelector('tbody tr').cells[0].textContent";
    let count = "document.querySelector('.bar [role=status]').textContent";
    browser.awaits(rows, 100);
    // A queue pair of each NIC has sent or received.
    assert_eq!(
        browser.value(count),
        format!("rows 1 to 100 of {}", 2 * PAIRS)
    );
    // The most packets first; then by bytes, and the other way round.
    browser.press("Sent bytes");
    assert_eq!(browser.value(first), (PAIRS + 1).to_string());
    browser.press("QPN");
    browser.press("QPN");
    assert_eq!(browser.value(first), "2");
    browser.press("Next rows");
    assert_eq!(browser.value(first), "102");
    let search = "(() => { const input = document.querySelector('input[type=search]'); input.value = 'BOLD'; \
                  input.dispatchEvent(new Event('input')); })()";
    browser.value(search);
    assert_eq!(browser.value(rows), 1);
    // Names of guests are texts.
    let process = "document.querySelector('tbody tr').cells[8].textContent";
    assert_eq!(browser.value(process), "<b>bold</b> 345");
    browser.is_accessible("Queue pairs");

    browser.show("Page tables");
    browser.awaits("document.querySelectorAll('.cell').length", 512);
    // Even pages were written.
    assert_eq!(browser.value(&cells("writable")), RESUMED / 2);
    assert_eq!(browser.value(&cells("present")), RESUMED / 2);
    assert_eq!(browser.value(&cells("faulting")), AWAITED);
    assert_eq!(browser.value(&cells("absent")), 512 - RESUMED - AWAITED);
    browser.is_accessible("Page tables");

    browser.show("Page faults");
    browser.awaits(
        "document.querySelectorAll('table')[0].tBodies[0].rows.length",
        10,
    );
    // Each of the slowest has all stages.
    assert_eq!(
        browser.value("document.querySelectorAll('.stage').length"),
        60
    );
    let slowest = "document.querySelector('tbody tr').cells[6].textContent";
    assert_eq!(browser.value(slowest), "134 \u{b5}s");
    let raised = "document.querySelector('tbody tr').cells[14].textContent.slice(0, 10)";
    assert_eq!(browser.value(raised), "9007199.25");
    browser.is_accessible("Page faults");
    draw(&mut browser);

    browser.show("Events");
    browser.awaits(rows, 100);
    let events = 3 * RESUMED + AWAITED;
    assert_eq!(browser.value(count), format!("rows 1 to 100 of {events}"));
    let choose = "(() => { const select = document.querySelectorAll('select')[1]; select.value = 'fault_raised'; \
                  select.dispatchEvent(new Event('change')); })()";
    browser.value(choose);
    assert_eq!(
        browser.value(count),
        format!("rows 1 to 100 of {}", RESUMED + AWAITED)
    );
    browser.is_accessible("Events");
    browser.is_clean(&["file://", "data:"]);
}

/// The picture of the documentation: `FAULTLINE_BLESS=1` draws it.
fn draw(browser: &mut Browser) {
    let shot = browser.call("Page.captureScreenshot", json!({"format": "png"}));
    let text = shot["data"].as_str().unwrap();
    let png = decoded(text);
    assert!(png.starts_with(b"\x89PNG"));
    if std::env::var_os("FAULTLINE_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/ui-faults.png");
        std::fs::write(path, png).unwrap();
    }
}

/// Decodes base64 (RFC 4648, section 4).
fn decoded(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values = text
        .bytes()
        .filter_map(|byte| digits.iter().position(|digit| *digit == byte));
    let (mut bytes, mut word, mut bits) = (Vec::new(), 0usize, 0);
    for value in values {
        (word, bits) = ((word << 6 | value) & 0xffff, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(word >> bits & 0xff).unwrap());
        }
    }
    bytes
}

#[test]
#[ignore = "needs Chromium: `cargo lab test host::browser` installs it"]
fn a_running_process_is_shown_and_paused() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["nic0", "nic1"]);
    let ui = Ui::start(directory.path());
    let mut browser = Browser::start();
    browser.open(&ui.url());
    let nics = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map((row) => row.cells[0].textContent).join()";
    browser.awaits(nics, "nic0,nic1");
    browser.is_accessible("Fabric");
    let is_paused = "document.getElementById('source').textContent.includes('engine paused')";
    assert_eq!(browser.value(is_paused), false);
    browser.press("Pause the NICs");
    browser.awaits(is_paused, true);
    let clock =
        "Number(document.getElementById('source').textContent.match(/clock ([0-9.]+) s/)[1])";
    let before = browser.value(clock).as_f64().unwrap();
    browser.value(
        "(() => { document.querySelectorAll('input[type=number]')[1].value = '2000000'; })()",
    );
    browser.press("Step");
    browser.awaits(&format!("{clock} >= {before} + 1.999"), true);
    browser.press("Resume the NICs");
    browser.awaits(is_paused, false);
    // Buttons follow the engine also while the display is frozen.
    let has_button = |text: &str| {
        format!("[...document.querySelectorAll('button')].some((b) => b.textContent === '{text}')")
    };
    browser.press("Freeze the display");
    browser.press("Pause the NICs");
    browser.awaits(&has_button("Resume the NICs"), true);
    browser.press("Resume the NICs");
    browser.awaits(&has_button("Pause the NICs"), true);
    browser.press("Continue the display");
    browser.show("Rules");
    let summary = "document.querySelector('main [role=status]').textContent";
    browser.awaits(summary, "No scenario runs.");
    let scenario = directory.path().join("down.toml");
    let text = "[[at]]\nname = \"down\"\ntime = \"1ms\"\nnic = \"nic1\"\ndo = { port_down = { for = \"1ms\" } }\n";
    std::fs::write(&scenario, text).unwrap();
    let control = directory.path().join("control");
    let ctl = |words: &[&str], last: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.arg("ctl").args(words).arg("--control");
        let output = command.arg(&control).arg(last).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    ctl(&["scenario", "start"], scenario.to_str().unwrap());
    // The rule with its count, and in the second table when it has acted.
    let cells = |table: usize| {
        format!(
            "[...document.querySelectorAll('table')[{table}].tBodies[0].rows].map((row) => row.cells[1].textContent).join()"
        )
    };
    browser.awaits(&cells(0), "1");
    browser.awaits(&cells(1), "down");
    let rule = "on = { opcode = \"ACK\" } do = { drop = {} }";
    ctl(&["inject"], rule);
    browser.awaits(&cells(2), rule);
    // A page that is opened later does not know when a rule has acted.
    browser.value("window.isOld = true");
    browser.call("Page.reload", json!({}));
    let is_new = "!window.isOld && document.querySelectorAll('nav button').length > 0";
    browser.awaits(is_new, true);
    browser.show("Rules");
    browser.awaits(&cells(0), "1");
    let log = "document.querySelectorAll('table')[1].tBodies[0].textContent";
    assert_eq!(browser.value(log), "none");
    // Other views are drawn with each sample, without rows here.
    for view in [
        "Queue pairs",
        "Page tables",
        "Page faults",
        "Rules",
        "Events",
    ] {
        browser.show(view);
        browser.awaits(
            "document.querySelector('nav [aria-current]').textContent",
            view,
        );
        browser.is_accessible(view);
    }
    let own = format!("http://{}/", ui.host);
    browser.is_clean(&[&own, "data:"]);
}
