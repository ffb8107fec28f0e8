//! `docs/compatibility.md` describes the code correctly, and names existing tests. The lab compares its rows with the
//! headers: `src/bin/headers.rs`.

use std::collections::BTreeSet;
use std::fs;

use faultline_layout::compatibility::{self, Answer, Section};
use faultline_layout::named::{exists, is_name, part, read, root, tests_of};
use faultline_layout::proofs::{self, Sources};

fn sections() -> Vec<Section> {
    let document = read("docs/compatibility.md");
    compatibility::sections(&document).unwrap_or_else(|error| panic!("{error}"))
}

/// Names with this prefix in a text.
fn constants(text: &str, prefix: &str) -> BTreeSet<String> {
    renamed(text, prefix, prefix)
}

/// The same, with another prefix in its place: the kernel and the library have names of their own.
fn renamed(text: &str, prefix: &str, other: &str) -> BTreeSet<String> {
    let words = text.split(|c| !is_name(c));
    words
        .filter_map(|word| word.strip_prefix(prefix))
        .filter(|rest| !rest.is_empty())
        .map(|rest| format!("{other}{rest}"))
        .collect()
}

/// The fields that a table of operations sets.
fn operations(path: &str, table: &str) -> BTreeSet<String> {
    let text = read(path);
    let fields = part(&text, table, "\n};");
    fields
        .lines()
        .filter_map(|line| line.trim().strip_prefix('.')?.split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Fields that a function sets in the object of this name.
fn assigned(text: &str, object: &str) -> BTreeSet<String> {
    let before = format!("{object}->");
    let lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&before));
    lines
        .filter_map(|line| line.split_once(['=', '.', '|']))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

const VERBS: &str = "guest-driver/kernel/faultline_verbs.c";
/// The operations that differ between kernels.
const COMPAT: &str = "guest-driver/kernel/faultline_compat.c";
const MR: &str = "guest-driver/kernel/faultline_mr.c";
const STEERING: &str = "guest-driver/kernel/faultline_steering.c";
const QP: &str = "guest-driver/provider/qp.c";
const CQ: &str = "guest-driver/provider/cq.c";
const TAG: &str = "guest-driver/provider/tag.c";

fn function(path: &str, begin: &str) -> String {
    part(&read(path), begin, "\n}\n").to_owned()
}

/// The sources of a folder, one behind the other.
fn sources(folder: &str, extension: &str) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(root().join(folder)).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(&path.display().to_string(), extension);
        } else if path.extension().is_some_and(|e| e == extension) {
            text += &fs::read_to_string(path).expect("a source file");
        }
    }
    text
}

/// The rows about this structure or enumeration that begin so (all, if it is empty) say yes to what `code` has, and to
/// nothing else. The rows of other structures and enumerations in the same section don't count.
#[track_caller]
fn compare(about: &str, prefix: &str, code: &BTreeSet<String>) {
    assert!(!code.is_empty(), "{about}: nothing found");
    let sections = sections();
    let section = sections
        .iter()
        .find(|section| section.types().contains(&about))
        .unwrap_or_else(|| panic!("no section about {about}"));
    let mut named = BTreeSet::new();
    for row in &section.rows {
        for name in row.names.iter().filter(|name| name.starts_with(prefix)) {
            named.insert(name.clone());
            if row.answer != Answer::Nothing {
                let says = row.answer != Answer::No;
                assert_eq!(code.contains(name), says, "{about}: {name}");
            }
        }
    }
    let missing: Vec<&String> = code.difference(&named).collect();
    assert!(missing.is_empty(), "{about}: no row for {missing:?}");
}

#[test]
fn operations_of_the_library_are_as_described() {
    let code = operations(
        "guest-driver/provider/faultline.c",
        "struct verbs_context_ops fl_ops = {",
    );
    assert!(code.len() > 40, "{code:?}");
    compare("struct verbs_context_ops", "", &code);
}

#[test]
fn operations_of_the_driver_are_as_described() {
    let mut code = operations(COMPAT, "struct ib_device_ops faultline_compat_ops = {");
    for adapters in ["dev", "roce", "iwarp"] {
        let table = format!("struct ib_device_ops faultline_{adapters}_ops = {{");
        code.extend(operations(VERBS, &table));
    }
    for attribute in [
        "owner",
        "driver_id",
        "uverbs_abi_ver",
        "uverbs_robust_udata",
    ] {
        assert!(code.remove(attribute), "{attribute}");
    }
    assert!(code.len() > 50, "{code:?}");
    compare("struct ib_device_ops", "", &code);
}

#[test]
fn capabilities_are_as_described() {
    let text = read(VERBS);
    let flags = part(&text, "props->device_cap_flags =", ";");
    compare(
        "enum ib_device_cap_flags",
        "",
        &constants(flags, "IB_DEVICE_"),
    );
    compare("enum ib_kernel_cap_flags", "", &constants(&text, "IBK_"));
    let raw = renamed(&text, "IB_RAW_PACKET_CAP_", "IBV_RAW_PACKET_CAP_");
    compare("enum ibv_raw_packet_caps", "IBV_RAW_PACKET_CAP_", &raw);
}

/// Fields that the driver fills in, by their names in the library, and those that the core and the provider add.
#[test]
fn limits_are_as_described() {
    let query = function(VERBS, "static int faultline_query_device(");
    let mut code = assigned(&query, "props");
    let kernels_own = [
        "kernel_cap_flags",
        "max_recv_sge",
        "max_fast_reg_page_list_len",
    ];
    for name in kernels_own {
        assert!(code.remove(name), "{name}");
    }
    for (kernel, library) in [
        ("max_send_sge", "max_sge"),
        ("timestamp_mask", "completion_timestamp_mask"),
        ("cq_caps", "cq_mod_caps"),
    ] {
        assert!(code.remove(kernel), "{kernel}");
        code.insert(library.to_owned());
    }
    assert!(query.contains("faultline_odp_caps(dev, &props->odp_caps)"));
    let provider = function("guest-driver/provider/verbs.c", "int fl_query_device(");
    for name in ["tso_caps", "rss_caps", "fw_ver"] {
        assert!(provider.contains(name), "{name}");
        code.insert(name.to_owned());
    }
    let cores = ["node_guid", "phys_port_cnt", "phys_port_cnt_ex"];
    let both = [
        "orig_attr",
        "device_cap_flags_ex",
        "odp_caps",
        "xrc_odp_caps",
    ];
    code.extend(cores.iter().chain(&both).map(|&name| name.to_owned()));
    compare("struct ibv_device_attr", "", &code);
}

#[test]
fn rights_are_as_described() {
    let known = read("guest-driver/kernel/faultline_ib.h");
    let hints = read(MR);
    let text = format!(
        "{} {} IB_ACCESS_ON_DEMAND",
        part(&known, "#define FAULTLINE_MR_ACCESS", "\n\n"),
        part(&hints, "#define FAULTLINE_MR_HINTS", "\n\n"),
    );
    // Two have other names in the kernel; of the optional ones there is one.
    let text = text
        .replace("IB_ZERO_BASED", "IB_ACCESS_ZERO_BASED")
        .replace("IB_ACCESS_OPTIONAL", "IB_ACCESS_RELAXED_ORDERING");
    let code = renamed(&text, "IB_ACCESS_", "IBV_ACCESS_");
    compare("enum ibv_access_flags", "", &code);
}

#[test]
fn properties_of_regions_are_as_described() {
    let advise = function(
        "guest-driver/kernel/faultline_odp_prefetch.c",
        "static bool faultline_prefetch_supported(",
    );
    let code = constants(&advise, "IB_UVERBS_ADVISE_MR_");
    compare(
        "enum ib_uverbs_advise_mr_advice",
        "IB_UVERBS_ADVISE_MR_",
        &code,
    );
    let caps = function(
        "guest-driver/kernel/faultline_odp.c",
        "void faultline_odp_caps(",
    );
    // What each transport has, the device says.
    let firmware = read("firmware/nic/src/config.rs");
    let mut code = renamed(&caps, "IB_ODP_", "IBV_ODP_");
    code.extend(renamed(&firmware, "ODP_", "IBV_ODP_SUPPORT_"));
    compare("enum ibv_odp_general_caps", "IBV_ODP_", &code);
    let rereg = function(MR, "struct ib_mr *faultline_rereg_user_mr(");
    let rereg = rereg.replace("IB_MR_REREG_TRANS", "IB_MR_REREG_TRANSLATION");
    let mut code = renamed(&rereg, "IB_MR_REREG_", "IBV_REREG_MR_CHANGE_");
    assert!(code.remove("IBV_REREG_MR_CHANGE_SUPPORTED"));
    compare("enum ibv_rereg_mr_flags", "IBV_REREG_", &code);
    let keys = read("guest-driver/kernel/faultline_keys.c");
    let code = constants(&keys, "IB_MR_TYPE_");
    compare("enum ib_mr_type", "IB_MR_TYPE_", &code);
}

#[test]
fn kinds_of_queues_are_as_described() {
    let provider = sources("guest-driver/provider", "c");
    compare(
        "enum ibv_qp_type",
        "IBV_QPT_",
        &constants(&provider, "IBV_QPT_"),
    );
    let kinds = function(
        "guest-driver/kernel/faultline_qp.c",
        "static int faultline_qp_type(",
    );
    compare("enum ib_qp_type", "IB_QPT_", &constants(&kinds, "IB_QPT_"));
    compare(
        "enum ibv_srq_type",
        "IBV_SRQT_",
        &constants(&provider, "IBV_SRQT_"),
    );
    compare(
        "enum ibv_wq_type",
        "IBV_WQT_",
        &constants(&provider, "IBV_WQT_"),
    );
}

#[test]
fn attributes_of_creation_are_as_described() {
    let text = sources("guest-driver/provider", "c");
    for (about, prefix) in [
        ("enum ibv_qp_init_attr_mask", "IBV_QP_INIT_ATTR_"),
        ("enum ibv_cq_init_attr_mask", "IBV_CQ_INIT_ATTR_"),
        ("enum ibv_create_cq_attr_flags", "IBV_CREATE_CQ_ATTR_"),
        ("enum ibv_srq_init_attr_mask", "IBV_SRQ_INIT_ATTR_"),
        ("enum ibv_wq_init_attr_mask", "IBV_WQ_INIT_ATTR_"),
        (
            "enum ibv_parent_domain_init_attr_mask",
            "IBV_PARENT_DOMAIN_INIT_ATTR_",
        ),
        ("enum ibv_values_mask", "IBV_VALUES_MASK_"),
        ("enum ibv_rx_hash_function_flags", "IBV_RX_HASH_FUNC_"),
    ] {
        compare(about, prefix, &constants(&text, prefix));
    }
    for refused in ["IBV_QP_CREATE_", "IBV_WQ_FLAGS_"] {
        let found = constants(&text, refused);
        assert!(found.is_empty(), "there is code for {found:?} now");
    }
    let fields = read("guest-driver/provider/faultline.h");
    let fields = part(&fields, "#define FL_RX_HASH_FIELDS", "\n\n");
    let mut code = constants(fields, "IBV_RX_HASH_");
    code.insert("IBV_RX_HASH_FUNC_TOEPLITZ".to_owned());
    compare("enum ibv_rx_hash_fields", "IBV_RX_HASH_", &code);
}

#[test]
fn changes_of_queues_are_as_described() {
    let text = read("guest-driver/kernel/faultline_qp.c");
    let attributes = part(&text, "#define FAULTLINE_QP_ATTRS", "\n\n");
    let code = renamed(attributes, "IB_QP_", "IBV_QP_");
    compare("enum ibv_qp_attr_mask", "IBV_QP_", &code);
    let wq = function(
        "guest-driver/kernel/faultline_rss.c",
        "int faultline_modify_wq(",
    );
    let wq = wq.replace("IB_WQ_CUR_STATE", "IB_WQ_CURR_STATE");
    let code = renamed(&wq, "IB_WQ_", "IBV_WQ_ATTR_");
    compare("enum ibv_wq_attr_mask", "IBV_WQ_ATTR_", &code);
    compare(
        "enum ibv_wq_state",
        "IBV_WQS_",
        &renamed(&wq, "IB_WQS_", "IBV_WQS_"),
    );
    let srq = function(
        "guest-driver/kernel/faultline_srq.c",
        "static int __faultline_modify_srq(",
    );
    let mut code = renamed(&srq, "IB_SRQ_", "IBV_SRQ_");
    assert!(code.len() == 2, "{code:?}");
    let provider = sources("guest-driver/provider", "c");
    code.extend(constants(&provider, "IBV_SRQ_INIT_ATTR_"));
    compare("enum ibv_srq_attr_mask", "IBV_SRQ_", &code);
}

#[test]
fn work_requests_are_as_described() {
    let text = read(QP);
    let opcodes = part(&text, "wr_opcode[] = {", "};");
    let mut code = constants(opcodes, "IBV_WR_");
    // It has no opcode of the device's own: raw frames all have one.
    let raw = function(QP, "static uint32_t qp_ops(");
    if raw.contains("WR_BIT(TSO)") {
        code.insert("IBV_WR_TSO".to_owned());
    }
    compare("enum ibv_wr_opcode", "IBV_WR_", &code);
    compare(
        "enum ibv_send_flags",
        "IBV_SEND_",
        &constants(&text, "IBV_SEND_"),
    );
    compare(
        "enum ibv_qp_create_send_ops_flags",
        "IBV_QP_EX_",
        &constants(&text, "IBV_QP_EX_"),
    );
    let builders = function(QP, "static void set_builders(");
    compare("struct ibv_qp_ex", "wr_", &assigned(&builders, "ex"));
    let text = read("guest-driver/kernel/faultline_post.c");
    compare("enum ib_wr_opcode", "IB_WR_", &constants(&text, "IB_WR_"));
    compare(
        "enum ib_send_flags",
        "IB_SEND_",
        &constants(&text, "IB_SEND_"),
    );
    let text = read(TAG);
    compare(
        "enum ibv_ops_wr_opcode",
        "IBV_WR_TAG_",
        &constants(&text, "IBV_WR_TAG_"),
    );
    compare(
        "enum ibv_ops_flags",
        "IBV_OPS_",
        &constants(&text, "IBV_OPS_"),
    );
}

#[test]
fn completion_fields_are_as_described() {
    let mut code = constants(&function(CQ, "ibv_wc_opcode wc_opcode("), "IBV_WC_");
    code.extend(constants(
        &function(CQ, "static unsigned int wc_flags("),
        "IBV_WC_",
    ));
    code.extend(constants(
        &function(TAG, "unsigned int fl_tag_wc_flags("),
        "IBV_WC_",
    ));
    compare("enum ibv_wc_opcode", "IBV_WC_", &code);
    let text = read(CQ);
    compare(
        "enum ibv_create_cq_wc_flags",
        "IBV_WC_EX_WITH_",
        &constants(&text, "IBV_WC_EX_WITH_"),
    );
    let readers = function(CQ, "static void set_readers(");
    let (readers, others): (BTreeSet<String>, BTreeSet<String>) = assigned(&readers, "cq")
        .into_iter()
        .partition(|name| name.starts_with("read_"));
    compare("struct ibv_cq_ex", "read_", &readers);
    assert_eq!(others.len(), 3, "{others:?}");
    let kernel = read("guest-driver/kernel/faultline_cq.c");
    let mut code = constants(&kernel, "IB_WC_WITH_");
    // Beside it there are opcodes and statuses without a prefix of their own.
    assert!(kernel.contains("IB_WC_GRH"));
    code.insert("IB_WC_GRH".to_owned());
    compare("enum ib_wc_flags", "IB_WC_", &code);
}

/// The library gives the device's statuses as they are.
#[test]
fn statuses_are_as_described() {
    let firmware = sources("firmware/nic/src", "rs");
    let words: BTreeSet<&str> = firmware.split(|c| !is_name(c)).collect();
    let abi = read("firmware/abi/src/cqe.rs");
    let statuses = part(&abi, "group STATUSES", "\n    }");
    let code = statuses
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| words.contains(name))
        .map(|name| format!("IBV_WC_{name}"))
        .collect();
    compare("enum ibv_wc_status", "", &code);
}

#[test]
fn events_are_as_described() {
    let kernel = sources("guest-driver/kernel", "c");
    let code = renamed(&kernel, "IB_EVENT_", "IBV_EVENT_");
    compare("enum ibv_event_type", "", &code);
}

#[test]
fn flows_are_as_described() {
    let mut code = renamed(&read(STEERING), "IB_FLOW_", "IBV_FLOW_");
    // Named to be refused; one specification for both of the library's.
    assert!(code.remove("IBV_FLOW_ATTR_FLAGS_EGRESS"));
    code.insert("IBV_FLOW_SPEC_IPV4_EXT".to_owned());
    compare("enum ibv_flow_spec_type", "IBV_FLOW_", &code);
}

/// Those which go through the code of a section: simulator and harness have drivers of their own, and the provider's
/// tests have no kernel.
fn goes_through(section: &Section, test: &str) -> bool {
    let place = test.split("::").next().unwrap_or_default();
    let types = section.types();
    let is_about = |names: &[&str]| names.iter().any(|name| types.contains(name));
    let guests = ["pyverbs", "guest", "lab"].contains(&place);
    if is_about(&["struct ib_device_ops"]) {
        return guests;
    }
    let library = [
        "struct verbs_context_ops",
        "struct ibv_qp_ex",
        "struct ibv_cq_ex",
    ];
    !is_about(&library) || guests || place == "provider"
}

#[test]
fn supported_rows_name_tests_that_exist() {
    let sections = sections();
    assert!(sections.len() >= 20, "{}", sections.len());
    let mut count = 0;
    let mut wrong = Vec::new();
    for section in &sections {
        for row in &section.rows {
            let tests = tests_of(&row.note);
            let shown = tests.iter().any(|test| goes_through(section, test));
            if row.answer == Answer::Yes && !shown {
                wrong.push(format!("{:?}: no test goes through it", row.names));
            }
            let gone = tests.iter().filter(|test| !exists(test));
            wrong.extend(gone.map(|test| format!("{:?}: there is no {test}", row.names)));
            count += tests.len();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 400, "only {count}");
    for wrong in [
        "pyverbs::test_that_there_is_not",
        "simulator::keys::invalidate",
        "elsewhere::test_create_dm",
        "guest::torture_client",
        "lab::verbs::srq",
        "lab::nothing::rc",
    ] {
        assert!(!exists(wrong), "{wrong}");
    }
}

#[test]
fn every_named_test_tags_its_proof_of_the_row() {
    let sources = Sources::read();
    let (tags, _) = sources.tags();
    assert!(tags.len() > 400, "only {}", tags.len());
    let wrong = proofs::differences(&sections(), &sources, goes_through);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `rdma statistic show link` gets all counters of a port, the optional ones too, in one message of the kernel: what a page leaves
/// to it (NLMSG_GOODSIZE), without the header and the names of device and port.
#[test]
fn the_counters_of_a_port_fit_into_a_message() {
    const ROOM: usize = 4096 - 320 - 108;
    let path = root().join("guest-driver/kernel/faultline_stats.c");
    let text = fs::read_to_string(path).expect("a file of the driver");
    let list = text
        .split_once("faultline_stat_descs[] = {")
        .map(|(_, rest)| rest);
    let list = list.and_then(|rest| rest.split_once("\n};"));
    let (list, _) = list.expect("the list of counters");
    let name = |line: &str| {
        let line = line.trim();
        let counter = line
            .strip_prefix("FAULTLINE_COUNTER(")
            .and_then(|rest| rest.split_once(')'));
        let named = line
            .strip_prefix("{ .name = \"")
            .and_then(|rest| rest.split_once('"'));
        counter.or(named).map(|(name, _)| name.len())
    };
    let names: Vec<usize> = list.lines().filter_map(name).collect();
    assert!(names.len() > 80, "{}", names.len());
    // A nest with a name, which ends with a zero, and a value of 64 bits.
    let bytes: usize = names
        .iter()
        .map(|name| 4 + (4 + name + 1).next_multiple_of(4) + 12)
        .sum();
    assert!(bytes <= ROOM, "{bytes} bytes, there is room for {ROOM}");
}
