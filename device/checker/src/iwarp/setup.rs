//! MPA setup frames (RFC 5044 section 7.1, RFC 6581).

use faultline_wire::mpa::{EnhancedSetup, MpaFlags, MpaRole, MpaSetup};

use crate::packet::Report;
use crate::rule::Rule;

/// Octets of the key of a setup frame.
pub(crate) const KEY: usize = 16;
/// Octet of the flags.
const FLAGS: usize = 16;
/// Flags that are reserved.
const RESERVED: u8 = 0x0f;

/// What a setup frame says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub fixed: MpaSetup,
    /// The depths of the READ queues, of revision 2.
    pub enhanced: Option<EnhancedSetup>,
}

impl Setup {
    /// True if the frame says so.
    pub(crate) fn has(&self, flag: MpaFlags) -> bool {
        self.fixed.flags.contains(flag)
    }

    /// READs and atomics that its sender serves at once, if that is said.
    pub(crate) fn ird(&self) -> Option<u16> {
        let ird = self.enhanced.map(|enhanced| enhanced.ird);
        ird.filter(|ird| *ird != EnhancedSetup::NOT_NEGOTIATED)
    }
}

/// True if a stream that begins with these octets may begin with a setup frame of this role.
pub(crate) fn may_be(octets: &[u8], role: MpaRole) -> bool {
    let mut key = [0; MpaSetup::LEN];
    let frame = MpaSetup {
        role,
        flags: MpaFlags::empty(),
        revision: 1,
        private_data_len: 0,
    };
    let _ = frame.emit(&mut key);
    let len = octets.len().min(KEY);
    octets.get(..len) == key.get(..len)
}

/// Reads a setup frame. `None`: it continues in later octets, or (after a report) it is none.
pub(crate) fn read(
    octets: &[u8],
    role: MpaRole,
    request: Option<&Setup>,
    report: &mut dyn FnMut(Report),
) -> Result<Option<Setup>, ()> {
    let mut wrong = |what: String| report((Rule::MpaSetup, what));
    if octets.len() < MpaSetup::LEN {
        return Ok(None);
    }
    let (fixed, at) = match MpaSetup::parse(octets) {
        Ok((fixed, at)) if fixed.role == role => (fixed, at),
        Ok(_) => {
            wrong(format!("the first data is not an MPA {}", name(role)));
            return Err(());
        }
        Err(error) => {
            wrong(format!("the MPA {} cannot be read: {error}", name(role)));
            return Err(());
        }
    };
    let end = at.saturating_add(fixed.private_data_len.into());
    let Some(private) = octets.get(at..end) else {
        return Ok(None);
    };
    let flags = octets.get(FLAGS).copied().unwrap_or_default();
    if flags & RESERVED != 0 {
        wrong(format!("reserved flags are set: {flags:#04x}"));
    }
    let MpaSetup {
        revision, flags, ..
    } = fixed;
    if !matches!(revision, 1 | 2) {
        wrong(format!("the revision is {revision}"));
    }
    if role == MpaRole::Request && flags.contains(MpaFlags::REJECT) {
        wrong("a request rejects".to_owned());
    }
    if revision < 2 && flags.contains(MpaFlags::ENHANCED) {
        wrong(format!("revision {revision} has the flag of RFC 6581"));
    }
    if let Some(request) = request
        && revision > request.fixed.revision
    {
        let asked = request.fixed.revision;
        wrong(format!("a reply of revision {revision} answers {asked}"));
    }
    let is_enhanced = revision == 2 && flags.contains(MpaFlags::ENHANCED);
    let enhanced = is_enhanced.then(|| EnhancedSetup::parse(private));
    if matches!(enhanced, Some(Err(_))) {
        let len = private.len();
        wrong(format!("{len} octets of private data have no depths"));
    }
    Ok(Some(Setup {
        fixed,
        enhanced: enhanced.and_then(Result::ok).map(|(depths, _)| depths),
    }))
}

fn name(role: MpaRole) -> &'static str {
    match role {
        MpaRole::Request => "request",
        MpaRole::Reply => "reply",
    }
}

/// Octets that are missing at the end of the first octets of a setup frame.
pub(crate) fn missing(seen: &[u8]) -> usize {
    let len = match MpaSetup::parse(seen) {
        Ok((setup, at)) => at.saturating_add(setup.private_data_len.into()),
        Err(_) => MpaSetup::LEN,
    };
    len.saturating_sub(seen.len())
}
