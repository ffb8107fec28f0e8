//! Statuses of completions, by name.

use std::borrow::Cow;
use std::fmt;

use faultline_abi::{ConstantGroup, cqe};

/// Status and vendor error of a completion. A number without a name is written as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusName(pub(crate) u8, pub(crate) u8);

fn name(group: &ConstantGroup, number: u8) -> Cow<'static, str> {
    match group.name(number) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(number.to_string()),
    }
}

impl fmt::Display for StatusName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status, vendor) = *self;
        f.write_str(&name(&cqe::STATUSES, status))?;
        match vendor {
            cqe::NONE => Ok(()),
            _ => write!(f, ", vendor error {}", name(&cqe::VENDOR_ERRS, vendor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names() {
        let shown = [
            (cqe::RETRY_EXC_ERR, 129),
            (cqe::LOC_PROT_ERR, cqe::DMA),
            (0, 0),
        ]
        .map(|(status, vendor)| StatusName(status, vendor).to_string());
        let wanted = [
            "RETRY_EXC_ERR, vendor error 129",
            "LOC_PROT_ERR, vendor error DMA",
            "SUCCESS",
        ];
        assert_eq!(shown, wanted);
    }
}
