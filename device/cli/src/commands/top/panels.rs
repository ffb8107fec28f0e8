//! The lists as tables of text.

use std::ops::Range;

use super::super::ctl::name;
use super::super::table::{duration, or_dash, size};
use super::rates::{FaultRow, NicRow, Owner, PairRow, Rate, RegionRow, Rows};

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Nics,
    QueuePairs,
    Faults,
    Regions,
}

/// A table: title, names of columns, rows of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) title: String,
    columns: &'static [(&'static str, Align)],
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    cells: Vec<String>,
    /// Something that needs attention.
    trouble: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

use Align::{Left, Right};

/// Used part of a completion queue that may soon overflow.
const NEARLY_FULL: f64 = 0.9;

// The columns at the right are not visible in a narrow terminal.
const NICS: &[(&str, Align)] = &[
    ("NIC", Left),
    ("STATE", Left),
    ("LINK", Left),
    ("FAULTS", Right),
    ("NEW", Right),
    ("RNR", Right),
    ("RETRY", Right),
    ("CQ", Right),
    ("TX-PKT", Right),
    ("RX-PKT", Right),
    ("TX-MSG", Right),
    ("RX-MSG", Right),
    ("TX-B", Right),
    ("RX-B", Right),
    ("TIMEOUT", Right),
    ("QPS", Right),
    ("KEYS", Right),
    ("TRANSPORT", Right),
];

const QUEUE_PAIRS: &[(&str, Align)] = &[
    ("QPN", Right),
    ("NIC", Left),
    ("KIND", Left),
    ("STATE", Left),
    ("POLICY", Left),
    ("TX-PKT", Right),
    ("RX-PKT", Right),
    ("TX-B", Right),
    ("RX-B", Right),
    ("WAITS", Left),
    ("PROCESS", Left),
    ("PEER", Right),
    ("SENDS", Right),
];

const FAULTS: &[(&str, Align)] = &[
    ("AGE", Right),
    ("NIC", Left),
    ("TOKEN", Right),
    ("QPN", Right),
    ("WAITERS", Right),
    ("ADDRESS", Right),
    ("PAGES", Right),
    ("KEY", Right),
    ("ACCESS", Left),
    ("PROCESS", Left),
];

const REGIONS: &[(&str, Align)] = &[
    ("KEY", Right),
    ("NIC", Left),
    ("PRESENT", Right),
    ("CHANGE", Right),
    ("LENGTH", Right),
    ("ADDRESS", Right),
    ("PAGING", Left),
    ("TABLE", Right),
];

impl Panel {
    pub(super) const ALL: [Self; 4] = [Self::Nics, Self::QueuePairs, Self::Faults, Self::Regions];

    /// Number of rows.
    pub(super) fn len(self, rows: &Rows) -> usize {
        match self {
            Self::Nics => rows.nics.len(),
            Self::QueuePairs => rows.queue_pairs.len(),
            Self::Faults => rows.faults.len(),
            Self::Regions => rows.regions.len(),
        }
    }

    fn title(self, rows: &Rows) -> String {
        let count = self.len(rows);
        let (title, cut) = match self {
            Self::Nics => ("NICs, per second", false),
            Self::QueuePairs => ("Queue pairs, per second", rows.incomplete.queue_pairs),
            Self::Faults => ("Page faults without an answer", rows.incomplete.faults),
            Self::Regions => ("Regions, pages present", rows.incomplete.regions),
        };
        match cut {
            false => format!("{title} ({count})"),
            true => format!("{title} ({count}, there are more)"),
        }
    }

    /// Some of the rows as a table.
    pub(super) fn table(self, rows: &Rows, range: Range<usize>) -> Table {
        let (columns, cells) = match self {
            Self::Nics => (NICS, part(&rows.nics, range, nic)),
            Self::QueuePairs => (QUEUE_PAIRS, part(&rows.queue_pairs, range, queue_pair)),
            Self::Faults => (FAULTS, part(&rows.faults, range, fault)),
            Self::Regions => (REGIONS, part(&rows.regions, range, region)),
        };
        Table {
            title: self.title(rows),
            columns,
            rows: cells,
        }
    }
}

impl Table {
    /// Lines of text: the names of the columns, then the rows, each with true if it needs attention. Numbers that do not fit into `room`
    /// columns are left out: a part of a number is another number.
    pub(super) fn lines(&self, gap: usize, room: usize) -> Vec<(String, bool)> {
        let width = |at: usize, title: &str| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at));
            let widths = cells.map(|cell| cell.chars().count());
            widths.fold(title.len(), usize::max)
        };
        let columns = self.columns.iter().enumerate();
        let widths: Vec<_> = columns.map(|(at, (title, _))| width(at, title)).collect();
        let ends = widths.iter().scan(0_usize, |end, width| {
            let own = end.saturating_add(*width);
            *end = own.saturating_add(gap);
            Some(own)
        });
        let mut ends = self.columns.iter().zip(ends);
        let cut = ends.position(|((_, align), end)| *align == Right && end > room);
        let shown = cut.unwrap_or(self.columns.len());
        let gap = " ".repeat(gap);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            let columns = self.columns.iter().zip(&widths).take(shown);
            for (((_, align), width), cell) in columns.zip(cells) {
                line += &match align {
                    Left => format!("{cell:<width$}{gap}"),
                    Right => format!("{cell:>width$}{gap}"),
                };
            }
            line.trim_end().to_owned()
        };
        let head = line(&mut self.columns.iter().map(|(title, _)| *title));
        let rows = self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(String::as_str);
            (line(&mut { cells }), row.trouble)
        });
        std::iter::once((head, false)).chain(rows).collect()
    }
}

fn part<T>(rows: &[T], range: Range<usize>, row: fn(&T) -> Row) -> Vec<Row> {
    let rows = rows.iter().skip(range.start).take(range.len());
    rows.map(row).collect()
}

fn nic(nic: &NicRow) -> Row {
    let state = match nic.stalled {
        true => "stalled".to_owned(),
        false => name(&nic.state),
    };
    Row {
        trouble: nic.stalled
            || !nic.link_up
            || state == "fatal"
            || nic.fullest_cq.is_some_and(|used| used >= NEARLY_FULL),
        cells: vec![
            nic.name.clone(),
            state,
            if nic.link_up { "up" } else { "down" }.to_owned(),
            nic.faults_in_flight.to_string(),
            per_second(nic.page_faults_per_s),
            per_second(total(nic.rnr_naks_sent_per_s, nic.rnr_naks_received_per_s)),
            per_second(nic.retransmitted_packets_per_s),
            nic.fullest_cq
                .map_or("-".to_owned(), |used| format!("{:.0} %", used * 100.0)),
            per_second(nic.tx_packets_per_s),
            per_second(nic.rx_packets_per_s),
            per_second(nic.tx_messages_per_s),
            per_second(nic.rx_messages_per_s),
            per_second(nic.tx_bytes_per_s),
            per_second(nic.rx_bytes_per_s),
            per_second(nic.ack_timeouts_per_s),
            nic.queue_pairs.to_string(),
            nic.memory_keys.to_string(),
            nic.transport.clone(),
        ],
    }
}

fn queue_pair(pair: &PairRow) -> Row {
    let state = pair.state.map_or("-".to_owned(), |state| name(&state));
    Row {
        trouble: pair.waits_for_page || state == "ERR" || state == "SQE",
        cells: vec![
            pair.qpn.to_string(),
            pair.nic.clone(),
            name(&pair.kind),
            state,
            name(&pair.fault_policy),
            per_second(pair.tx_packets_per_s),
            per_second(pair.rx_packets_per_s),
            per_second(pair.tx_bytes_per_s),
            per_second(pair.rx_bytes_per_s),
            if pair.waits_for_page { "page" } else { "-" }.to_owned(),
            process(&pair.owner),
            or_dash(pair.peer_qpn),
            pair.sends_pending.to_string(),
        ],
    }
}

fn fault(fault: &FaultRow) -> Row {
    Row {
        trouble: fault.age_ms >= 1000.0,
        cells: vec![
            milliseconds(fault.age_ms),
            fault.nic.clone(),
            format!("{:#x}", fault.token),
            or_dash(fault.qpn),
            fault.waiters.to_string(),
            format!("{:#x}", fault.va),
            fault.pages.to_string(),
            format!("{:#x}", fault.key),
            if fault.write { "write" } else { "read" }.to_owned(),
            process(&fault.owner),
        ],
    }
}

fn region(region: &RegionRow) -> Row {
    let paging = if region.on_demand { "demand" } else { "pinned" };
    Row {
        trouble: false,
        cells: vec![
            format!("{:#x}", region.key),
            region.nic.clone(),
            region.present_entries.to_string(),
            per_second(region.present_change_per_s),
            size(region.length),
            format!("{:#x}", region.iova),
            paging.to_owned(),
            size(region.table_bytes),
        ],
    }
}

fn process(owner: &Owner) -> String {
    match (owner.context, owner.pid) {
        (0, _) => "kernel".to_owned(),
        (_, Some(pid)) => format!("{} {pid}", owner.program.as_deref().unwrap_or("?")),
        (context, None) => format!("context {context}"),
    }
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 100_000.0 => format!("{ms:.1} ms"),
        ms => format!("{:.0} s", ms / 1000.0),
    }
}

fn total(a: Rate, b: Rate) -> Rate {
    Some(a? + b?)
}

/// A rate with at most three digits and a factor of 1000.
fn per_second(rate: Rate) -> String {
    let Some(rate) = rate else {
        return "-".to_owned();
    };
    let mut value = rate.abs();
    let mut unit = "";
    for larger in ["k", "M", "G", "T"] {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    let digits = match value {
        v if v < 0.05 => 0,
        v if v < 9.95 => 1,
        _ => 0,
    };
    let sign = if rate <= -0.05 { "-" } else { "" };
    format!("{sign}{value:.digits$}{unit}")
}

/// A line about the engine.
pub(super) fn engine(rows: &Rows) -> String {
    let engine = &rows.engine;
    let busy = match engine.busy {
        Some(busy) => format!("{:.0} % busy", busy * 100.0),
        None => "- % busy".to_owned(),
    };
    let paused = if engine.paused { "paused, " } else { "" };
    format!("engine {paused}{busy}, up {}", duration(engine.uptime_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        let texts = [
            None,
            Some(0.0),
            Some(0.3),
            Some(9.94),
            Some(9.96),
            Some(999.4),
            Some(999.6),
            Some(12_345.0),
            Some(2.7e6),
            Some(5.9e9),
            Some(7e15),
            Some(-120.0),
            Some(-0.01),
        ]
        .map(per_second);
        let expected = [
            "-", "0", "0.3", "9.9", "10", "999", "1.0k", "12k", "2.7M", "5.9G", "7000T", "-120",
            "0",
        ];
        assert_eq!(texts, expected);
    }
}
