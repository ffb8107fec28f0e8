//! A dump of a NIC has each of its objects, and no secrets of its guest.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use faultline_abi::admin;
use faultline_abi::steering::{FLOW_HAS_IPV4, FLOW_HAS_UDP, FlowFields, Mcast};
use faultline_config::Config;
use faultline_harness::frames::{raw_qp, rule};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes};
use faultline_harness::{Link, Qp, QpType, SendWr, TagOp, connect};
use serde_json::Value;

/// Secrets of the guest, as decimal numbers and as bytes of text.
const QKEY: u32 = 1_987_654_321;
const PORT: u16 = 54_321;
const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const CONTENT: &[u8; 16] = b"secret of guest!";

/// A process with two NICs, and its control socket.
fn start() -> (Fabric, PathBuf) {
    let fabric = Fabric::start_controlled(Config::default(), &["a", "b"]).unwrap();
    let socket = fabric.control();
    (fabric, socket)
}

/// The dump of a NIC: its text, and its value.
fn dump(socket: &Path, nic: &str) -> (String, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // An answer to HTTP/1.0 has no chunks.
    write!(stream, "GET /v1/nics/{nic}/dump HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    (body.to_owned(), serde_json::from_str(body).unwrap())
}

/// Dumps a NIC until the dump is as it must become.
#[track_caller]
fn dump_when(socket: &Path, nic: &str, is_so: impl Fn(&Value) -> bool) -> (String, Value) {
    let start = Instant::now();
    loop {
        let (text, shown) = dump(socket, nic);
        if is_so(&shown) {
            return (text, shown);
        }
        assert!(start.elapsed() < LONG, "{text}");
    }
}

/// The object of a list whose field has this value; it must be the only one.
#[track_caller]
fn only<'a>(dump: &'a Value, list: &str, field: &str, value: u32) -> &'a Value {
    let all = dump[list].as_array().unwrap();
    let found: Vec<_> = all.iter().filter(|object| object[field] == value).collect();
    assert_eq!(found.len(), 1, "{list} with {field} {value}: {all:?}");
    found[0]
}

/// Sends one message that is completed, so that PSNs and indices are not those of new objects.
fn exchange(a: &mut Node, b: &mut Node, qa: &mut Qp, qb: &mut Qp) {
    a.buf.write(0, CONTENT);
    qb.post_recv(1, &[b.mr.sge(0, 64)]).unwrap();
    qb.post_recv(2, &[b.mr.sge(64, 64)]).unwrap();
    let sges = [a.mr.sge(0, CONTENT.len())];
    qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
    let wc = a.good_completion();
    qa.retire(&wc);
    b.good_completion();
}

#[test]
fn a_dump_has_each_object_and_no_secret() {
    let (fabric, socket) = start();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    exchange(&mut a, &mut b, &mut qa, &mut qb);
    let ud = a.qp(QpType::Ud).unwrap();
    ud.open_datagrams(QKEY).unwrap();
    let ah = a.pd.ah(&b.nic).unwrap();
    let group = Mcast { gid: GROUP };
    a.nic
        .admin(admin::ATTACH_MCAST, ud.number(), &group)
        .unwrap();
    let mut srq = a.context.tag_srq(&a.pd, &a.cq, 4, 8).unwrap();
    let buffers = [a.mr.sge(128, 64)];
    srq.post(&TagOp::add(0, 5, &buffers)).unwrap();
    srq.ring().unwrap();
    let raw = raw_qp(&a, &a.cq, 4).unwrap();
    let values = FlowFields {
        dst_port: PORT.to_be_bytes(),
        ..FlowFields::default()
    };
    let mask = FlowFields {
        dst_port: [0xff; 2],
        ..FlowFields::default()
    };
    let create = rule(3, FLOW_HAS_IPV4 | FLOW_HAS_UDP, 77);
    let _flow = a.nic.flow(&raw, &create, Some(&(values, mask))).unwrap();
    let (xrcd, _) = a.nic.admin(admin::ALLOC_XRCD, 0, &[0u8; 0]).unwrap();
    let wq = a.context.wq(&a.pd, &a.cq, 4).unwrap();
    let table = a.nic.rwq_ind_table(&[&wq]).unwrap();

    let (text, shown) = dump_when(&socket, "a", |shown| {
        let queues = &shown["shared_receive_queues"];
        queues[0]["tagged_buffers"] == 1
    });
    assert_eq!(shown["nic"]["name"], "a");
    let pair = only(&shown, "queue_pairs", "qpn", qa.number());
    assert_eq!(pair["peer_qpn"], qb.number());
    let attributes = only(&shown, "queue_pair_attributes", "qpn", qa.number());
    let link = Link::default();
    assert_eq!(attributes["timeout"], link.timeout);
    assert_eq!(attributes["retry_count"], link.retries);
    let (_, of_b) = dump(&socket, "b");
    let peer = only(&of_b, "queue_pair_attributes", "qpn", qb.number());
    // The message has been received: both sides are at the same PSN.
    assert_eq!(attributes["next_sent_psn"], peer["next_received_psn"]);
    assert_eq!(
        qa.query().unwrap().sq_psn.get(),
        attributes["next_sent_psn"]
    );
    let cq = only(&shown, "completion_queues", "cqn", a.cq.number());
    assert!(cq["producer"].as_u64().unwrap() >= 1, "{cq}");
    assert_eq!(cq["failed"], false);
    assert_eq!(cq["eqn"], a.eq.number());
    only(&shown, "event_queues", "eqn", a.eq.number());
    only(&shown, "protection_domains", "number", a.pd.number());
    only(&shown, "xrc_domains", "number", xrcd);
    let handle = only(&shown, "address_handles", "ah", ah.number());
    assert_eq!(handle["pd"], a.pd.number());
    assert!(handle["dgid"].is_string());
    let srq_shown = only(&shown, "shared_receive_queues", "srqn", srq.number());
    assert_eq!(srq_shown["tagged_buffers"], 1);
    let flow = only(&shown, "flows", "qpn", raw.number());
    assert_eq!(flow["tag"], 77);
    let table = only(&shown, "indirection_tables", "table", table.number());
    assert_eq!(table["entries"], 1);
    let groups = shown["multicast_groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0]["queue_pairs"], serde_json::json!([ud.number()]));
    let device = &shown["device"];
    for ring in ["admin", "translation"] {
        let ring = &device[ring];
        assert_eq!(ring["producer"], ring["consumer"], "{ring}");
        assert!(ring["producer"].as_u64().unwrap() > 0, "{ring}");
    }

    // Nothing that its reader could use, or that belongs to the guest's data.
    for secret in [QKEY.to_string(), format!("{QKEY:x}"), PORT.to_string()] {
        assert!(!text.contains(&secret), "{secret} in {text}");
    }
    assert!(!text.contains(std::str::from_utf8(CONTENT).unwrap()));
}

#[test]
fn a_dump_has_running_timers() {
    let (fabric, socket) = start();
    let (a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    // The longest timeout: hours.
    let link = Link {
        timeout: 31,
        ..Link::default()
    };
    connect(&qa, &qb, &link).unwrap();
    // No buffer is posted, and the peer does not answer any more.
    qb.to_error().unwrap();
    let sges = [a.mr.sge(0, 8)];
    qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
    let (_, shown) = dump_when(&socket, "a", |shown| shown["device"]["timer_count"] == 1);
    assert_eq!(shown["device"]["timers"][0]["qpn"], qa.number());
    assert!(shown["device"]["next_deadline"].is_u64());
    let pair = only(&shown, "queue_pairs", "qpn", qa.number());
    assert_eq!(pair["sends_pending"], 1);
}
