//! The work of single calls of NICs.

use faultline_nic::Nic;

/// Steps that one unit of work may stand for, and those of a call that need not be charged.
const STEPS_PER_WORK: u64 = 4;
const FREE_STEPS: u64 = 1024;

/// Compares the work that a NIC charges for a call with the steps that it takes: otherwise a guest could have it take steps without
/// end. A call begins where the last thing before it ended.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Work that each NIC has charged until the end of its last call.
    work: Vec<u64>,
    steps: Option<u64>,
    /// The most work of a call.
    pub(crate) longest: u64,
}

impl Meter {
    pub(crate) fn new(nics: usize) -> Self {
        Self {
            work: vec![0; nics],
            steps: None,
            longest: 0,
        }
    }

    /// Calls of NICs begin now. Steps before do not belong to a NIC.
    pub(crate) fn begin(&mut self) {
        self.steps = faultline_nic::steps();
    }

    /// The same, for a NIC that its owner may have called meanwhile.
    pub(crate) fn begin_with(&mut self, id: usize, nic: &Nic) {
        self.work[id] = nic.work();
        self.begin();
    }

    /// A call of a NIC has ended.
    pub(crate) fn end(&mut self, id: usize, nic: &Nic) {
        let before = std::mem::replace(&mut self.work[id], nic.work());
        // A driver may have asked for a reset, after which the NIC counts anew.
        if let Some(work) = nic.work().checked_sub(before) {
            self.longest = self.longest.max(work);
            if let (Some(before), Some(after)) = (self.steps, faultline_nic::steps()) {
                let steps = after - before;
                assert!(
                    steps <= work * STEPS_PER_WORK + FREE_STEPS,
                    "{steps} steps were taken, and work for {work} was charged"
                );
            }
        }
        self.begin();
    }
}
