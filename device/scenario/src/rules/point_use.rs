//! Rules and expectations that use the injection table of NICs.

use faultline_nic::{Outcome, Point};

use crate::plan::{Choice, Conditions};

/// What an entry of the injection table is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Rule(usize),
    Expectation(usize),
}

/// A rule or an expectation about a point.
#[derive(Clone, Debug)]
pub(super) struct PointUse {
    pub(super) purpose: Purpose,
    pub(super) nic: Option<usize>,
    pub(super) point: Point,
    pub(super) code: Option<u16>,
    pub(super) conditions: Conditions,
    pub(super) choice: Choice,
    pub(super) outcome: Outcome,
    pub(super) active: bool,
    /// Ids of entries, by NIC.
    pub(super) ids: Vec<(usize, u32)>,
}

/// Something new that conditions can name by its number.
#[derive(Clone, Copy, Debug)]
pub(super) enum NewObject {
    Connection(u32),
    Region(u32),
}
