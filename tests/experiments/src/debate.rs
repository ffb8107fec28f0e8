//! The rows of the mailing-list debate: the question of each, the experiment, and a figure where one makes sense.

mod figures;

use anyhow::{Context, Result};

use crate::document::{Experiment, Table};
use crate::measured::Measured;

/// What the texts ask, and the experiment.
struct Row {
    question: &'static str,
    experiment: &'static str,
    /// None if a test shows it without a figure.
    figure: Option<fn(&Measured) -> Result<String>>,
}

const ROWS: [Row; 22] = [
    Row {
        question: "Does the device ever touch a page that the kernel has taken back?",
        experiment: "simulator: 400 messages go to 400 pages through 16 page frames, so that pages are taken back all the time. guests: 16 MiB are \
                     written remotely, swapped out and read back",
        figure: Some(figures::taken_back),
    },
    Row {
        question: "What does an adapter without paging say to software that wants it?",
        experiment: "simulator, profile `pinned-only`: an on-demand registration, and the same traffic in a pinned region",
        figure: Some(figures::pinned_only),
    },
    Row {
        question: "Can a transfer begin without a present page and resume by itself?",
        experiment: "simulator, `ideal`: 64 messages of each operation, both ends on demand, each on fresh pages \
                     (the receives of the SENDs use one buffer in turn)",
        figure: Some(figures::from_absent_pages),
    },
    Row {
        question: "What does a page table in host memory cost, with a cache in front?",
        experiment: "simulator: WRITEs, each to another page, with look-ups of 0, 0.5 and 2 µs",
        figure: Some(figures::look_ups),
    },
    Row {
        question: "What memory does a region over the whole address space take?",
        experiment: "socket: 1 GiB of a region of 1 TiB is mapped in pieces of 2 MiB; memory of the device's process",
        figure: Some(figures::sparse_region),
    },
    Row {
        question: "What does each fault policy cost the requester?",
        experiment: "simulator, `ideal`: WRITEs to absent pages, one at a time, with a fault of 4 µs; ACK timeout 67 ms",
        figure: Some(figures::policies),
    },
    Row {
        question: "Does a fault slow down others, and does swapping through the same NIC end?",
        experiment: "simulator: a queue pair writes beside one that faults all the time (5 ms each); then a fault that is never served under \
                     `stall`. guests: the tests swap over NVMe through the same NIC",
        figure: Some(figures::neighbours),
    },
    Row {
        question: "What is a READY notice worth against waiting for an RNR timer?",
        experiment: "simulator, `ideal`: WRITEs to absent pages, with and without the notice. The RNR timer follows the mean time of \
                     repairs",
        figure: Some(figures::ready),
    },
    Row {
        question: "Can pages be replaced under a live key?",
        experiment: "guests: migration, compaction, KSM, split and collapse under traffic",
        figure: None,
    },
    Row {
        question: "Can a region be larger than memory?",
        experiment: "simulator: all pages of a region that is ten times the page frames are written, then read. guests: 10 times the \
                     guest's memory",
        figure: Some(figures::larger_than_memory),
    },
    Row {
        question: "What do regions count against the limit of locked memory?",
        experiment: "guests: VmPin of regions of 256 MiB; an ordinary user registers twice RLIMIT_MEMLOCK",
        figure: Some(figures::locked),
    },
    Row {
        question: "Does a registration cache send stale data after munmap and mmap?",
        experiment: "guests: a naive cache on pinned and on on-demand regions",
        figure: None,
    },
    Row {
        question: "Can software learn of changes of a mapping without a system call?",
        experiment: "guests: a cache that reads the counter of a watch",
        figure: None,
    },
    Row {
        question: "Can a pinned region follow a changed mapping?",
        experiment: "guests: event, restore and lease",
        figure: None,
    },
    Row {
        question: "What happens to regions of files that are truncated?",
        experiment: "guests: truncation and hole-punching of a DAX file under traffic",
        figure: None,
    },
    Row {
        question: "Do only the requests fail that touch lost memory?",
        experiment: "simulator: the pages of one connection are lost, those of another are not",
        figure: Some(figures::lost_memory),
    },
    Row {
        question: "Can keys have versions and be invalidated from any queue pair?",
        experiment: "guests: RDS and NVMe; simulator: versions and batches",
        figure: None,
    },
    Row {
        question: "How long does an invalidation wait on a saturated device?",
        experiment: "socket: LOCAL_INV on one queue pair beside 1 MiB WRITEs that fill another",
        figure: Some(figures::invalidation),
    },
    Row {
        question: "Does a queue pair in error harm others?",
        experiment: "simulator: a region is deregistered under traffic; another connection goes on",
        figure: Some(figures::failed_queue_pair),
    },
    Row {
        question: "Do the kernel's consumers run?",
        experiment: "guests: NVMe, NFS, RDS and SRP with checked data",
        figure: None,
    },
    Row {
        question: "And iWARP?",
        experiment: "none: RoCEv2 is the only wire",
        figure: None,
    },
    Row {
        question: "What does on-demand memory cost when all pages are present?",
        experiment: "socket: bandwidth and message rate of a warm on-demand region against a pinned one over the same memory, in turn",
        figure: Some(figures::warm),
    },
];

/// The experiment.
///
/// # Errors
/// A simulation fails, or a figure is absent.
pub fn experiment(measured: &Measured) -> Result<Experiment> {
    let mut table = Table::new(
        "The texts have no figures of their own; they ask",
        &["Row", "Question", "Experiment", "Figure"],
    );
    for (number, row) in (1..).zip(&ROWS) {
        let Some(figure) = row.figure else {
            continue;
        };
        table.add([
            format!("R{number}"),
            row.question.to_owned(),
            row.experiment.to_owned(),
            figure(measured).with_context(|| format!("row R{number}"))?,
        ]);
    }
    Ok(Experiment {
        title: "The debate",
        asked: "Can RDMA do without pinned memory, and what does it cost? Each row of [requirements.md](requirements.md), which has the \
                tests, is a question of the mailing-list debate of 2008 to 2017.",
        published: "The debate has positions and no measurements: the hardware that was argued about did not exist.",
        method: "As each row says. `ideal` serves a fault in 4 µs, other simulations in 50 µs; latencies are medians.".to_owned(),
        tables: vec![table],
        pictures: Vec::new(),
        differs: "Rows that are not in the table have no figure: a test shows them. For R21 see [What a fault does to TCP](#what-a-fault-does-to-tcp).",
    })
}
