//! The state table of MODIFY_QP (IBTA 11.2.5.2, table 91).
//!
//! For each transition and transport: the required and the optional attributes. Everything else is refused.

use faultline_abi::Status;
use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE, ACCESS_MW_BIND,
    ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, QP_ATTR_ACCESS_FLAGS,
    QP_ATTR_AV, QP_ATTR_CUR_STATE, QP_ATTR_DEST_QPN, QP_ATTR_EN_SQD_ASYNC_NOTIFY,
    QP_ATTR_FAULT_POLICY, QP_ATTR_MAX_DEST_RD_ATOMIC, QP_ATTR_MAX_QP_RD_ATOMIC,
    QP_ATTR_MIN_RNR_TIMER, QP_ATTR_PATH_MTU, QP_ATTR_PKEY_INDEX, QP_ATTR_PORT, QP_ATTR_QKEY,
    QP_ATTR_RETRY_CNT, QP_ATTR_RNR_RETRY, QP_ATTR_RQ_PSN, QP_ATTR_SQ_PSN, QP_ATTR_STATE,
    QP_ATTR_TIMEOUT, QP_ATTR_UDP_SPORT, QpAttr,
};

use super::fault_policy::FaultPolicy;
use super::types::{QpType, State};

const ACCESS: u32 = QP_ATTR_ACCESS_FLAGS;
const PKEY: u32 = QP_ATTR_PKEY_INDEX;
const PORT: u32 = QP_ATTR_PORT;
const QKEY: u32 = QP_ATTR_QKEY;
const AV: u32 = QP_ATTR_AV;
const MTU: u32 = QP_ATTR_PATH_MTU;
const TIMEOUT: u32 = QP_ATTR_TIMEOUT;
const RETRY: u32 = QP_ATTR_RETRY_CNT;
const RNR_RETRY: u32 = QP_ATTR_RNR_RETRY;
const RQ_PSN: u32 = QP_ATTR_RQ_PSN;
const SQ_PSN: u32 = QP_ATTR_SQ_PSN;
const MAX_RD: u32 = QP_ATTR_MAX_QP_RD_ATOMIC;
const MAX_DEST_RD: u32 = QP_ATTR_MAX_DEST_RD_ATOMIC;
const MIN_RNR: u32 = QP_ATTR_MIN_RNR_TIMER;
const DEST: u32 = QP_ATTR_DEST_QPN;
const NOTIFY: u32 = QP_ATTR_EN_SQD_ASYNC_NOTIFY;
/// Always allowed: the device's own attributes, and the state that the caller assumes.
const ALWAYS: u32 = QP_ATTR_STATE | QP_ATTR_CUR_STATE | QP_ATTR_FAULT_POLICY | QP_ATTR_UDP_SPORT;

/// Required and optional attributes of a transition, or `None` if there is no such transition.
fn rule(kind: QpType, from: State, to: State) -> Option<(u32, u32)> {
    use QpType::{Gsi, Raw, Rc, Uc, Ud, XrcIni, XrcTgt};
    use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    Some(match (from, to, kind) {
        (_, Reset | Err, _) => (0, 0),
        (Reset, Init, Rc | Uc | XrcIni | XrcTgt) => (PKEY | PORT | ACCESS, 0),
        (Reset, Init, Ud) => (PKEY | PORT | QKEY, 0),
        (Reset, Init, Gsi) => (PKEY | QKEY, PORT),
        (Reset, Init, Raw) => (PORT, 0),
        (Init, Init, Rc | Uc | XrcIni | XrcTgt) => (0, PKEY | PORT | ACCESS),
        (Init, Init, Ud) => (0, PKEY | PORT | QKEY),
        (Init, Init, Gsi) => (0, PKEY | QKEY),
        (Init, Init, Raw) => (0, PORT),
        (Init, Rtr, XrcIni) => (AV | MTU | DEST | RQ_PSN, ACCESS | PKEY),
        (Init, Rtr, Rc | XrcTgt) => (
            AV | MTU | DEST | RQ_PSN | MAX_DEST_RD | MIN_RNR,
            ACCESS | PKEY,
        ),
        (Init, Rtr, Uc) => (AV | MTU | DEST | RQ_PSN, ACCESS | PKEY),
        (Init, Rtr, Ud | Gsi) => (0, PKEY | QKEY),
        (Init, Rtr, Raw) => (0, 0),
        (Rtr, Rts, XrcTgt) => (TIMEOUT | SQ_PSN, ACCESS | MIN_RNR),
        (Rtr, Rts, Rc | XrcIni) => (
            TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD,
            ACCESS | MIN_RNR,
        ),
        (Rtr, Rts, Uc) => (SQ_PSN, ACCESS),
        (Rtr, Rts, Ud | Gsi) => (SQ_PSN, QKEY),
        (Rtr, Rts, Raw) => (0, 0),
        (Rts, Rts, Rc | XrcIni | XrcTgt) => (0, ACCESS | MIN_RNR),
        (Rts, Rts, Uc) => (0, ACCESS),
        (Rts | Sqe, Rts, Ud | Gsi) => (0, QKEY),
        (Sqe, Rts, Uc) => (0, ACCESS),
        (Rts | Sqe, Rts, Raw) => (0, 0),
        (Rts, Sqd, _) => (0, NOTIFY),
        (Sqd, Rts, Rc | XrcIni | XrcTgt) => (0, ACCESS | MIN_RNR),
        (Sqd, Rts, Uc) => (0, ACCESS),
        (Sqd, Rts, Ud | Gsi) => (0, QKEY),
        (Sqd, Rts, Raw) => (0, 0),
        (Sqd, Sqd, Rc | XrcIni | XrcTgt) => (
            0,
            PORT | AV
                | TIMEOUT
                | RETRY
                | RNR_RETRY
                | MAX_RD
                | MAX_DEST_RD
                | ACCESS
                | PKEY
                | MIN_RNR,
        ),
        (Sqd, Sqd, Uc) => (0, AV | ACCESS | PKEY),
        (Sqd, Sqd, Ud | Gsi) => (0, PKEY | QKEY),
        _ => return None,
    })
}

/// The state that a command asks for in state `from`, which the caller may have named.
pub(crate) fn target(from: State, change: &QpAttr) -> Result<State, Status> {
    let mask = change.mask.get();
    if mask & QP_ATTR_CUR_STATE != 0 && change.cur_state != from as u8 {
        return Err(Status::WrongState);
    }
    match mask & QP_ATTR_STATE {
        0 => Ok(from),
        _ => State::from_abi(change.state).ok_or(Status::BadAttribute),
    }
}

/// Checks a command against the table and the ranges of its attributes.
pub(crate) fn check(
    kind: QpType,
    from: State,
    change: &QpAttr,
    max_rd_atomic: u32,
) -> Result<(), Status> {
    let mask = change.mask.get();
    let to = target(from, change)?;
    let own_only = mask & !(QP_ATTR_CUR_STATE | QP_ATTR_FAULT_POLICY | QP_ATTR_UDP_SPORT) == 0;
    if !own_only || mask & QP_ATTR_STATE != 0 {
        let (required, optional) = rule(kind, from, to).ok_or(Status::BadTransition)?;
        if mask & required != required {
            return Err(Status::MissingAttribute);
        }
        if mask & !(required | optional | ALWAYS) != 0 {
            return Err(Status::ExtraAttribute);
        }
    }
    check_values(mask, change, max_rd_atomic)
}

pub(crate) fn check_values(mask: u32, change: &QpAttr, max_rd_atomic: u32) -> Result<(), Status> {
    const RIGHTS: u32 = ACCESS_REMOTE_WRITE
        | ACCESS_REMOTE_READ
        | ACCESS_REMOTE_ATOMIC
        | ACCESS_FLUSH_GLOBAL
        | ACCESS_FLUSH_PERSISTENT;
    const PSN_MASK: u32 = 0xff_ffff;
    // Local write and binding in a QP's access flags are customary and have no effect.
    const LOCAL: u32 = ACCESS_LOCAL_WRITE | ACCESS_MW_BIND;
    let given = |bit: u32| mask & bit != 0;
    let bad = [
        given(ACCESS) && change.access.get() & !(RIGHTS | LOCAL) != 0,
        given(PKEY) && change.pkey_index.get() != 0,
        given(PORT) && change.port != 1,
        given(MTU) && !(1..=5).contains(&change.path_mtu),
        given(TIMEOUT) && change.timeout > 31,
        given(RETRY) && change.retry_cnt > 7,
        given(RNR_RETRY) && change.rnr_retry > 7,
        given(RQ_PSN) && change.rq_psn.get() > PSN_MASK,
        given(SQ_PSN) && change.sq_psn.get() > PSN_MASK,
        given(DEST) && change.dest_qpn.get() > PSN_MASK,
        given(MAX_RD) && u32::from(change.max_rd_atomic) > max_rd_atomic,
        given(MAX_DEST_RD) && u32::from(change.max_dest_rd_atomic) > max_rd_atomic,
        given(MIN_RNR) && change.min_rnr_timer > 31,
        given(QP_ATTR_FAULT_POLICY) && FaultPolicy::from_abi(change.fault_policy).is_none(),
    ];
    if bad.contains(&true) {
        return Err(Status::BadAttribute);
    }
    Ok(())
}

/// Takes over the attributes that a command gives.
pub(crate) fn merge(attr: &mut QpAttr, change: &QpAttr) {
    let mask = change.mask.get();
    macro_rules! take {
        ($($bit:expr => $field:ident),* $(,)?) => {
            $( if mask & $bit != 0 { attr.$field = change.$field; } )*
        };
    }
    take! {
        ACCESS => access,
        PKEY => pkey_index,
        PORT => port,
        QKEY => qkey,
        AV => av,
        MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY => retry_cnt,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        SQ_PSN => sq_psn,
        MAX_RD => max_rd_atomic,
        MAX_DEST_RD => max_dest_rd_atomic,
        MIN_RNR => min_rnr_timer,
        DEST => dest_qpn,
        NOTIFY => sqd_notify,
        QP_ATTR_UDP_SPORT => udp_sport,
        QP_ATTR_FAULT_POLICY => fault_policy,
    }
    attr.mask.set(attr.mask.get() | mask);
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_abi::U32;

    fn change(to: State, mask: u32) -> QpAttr {
        QpAttr {
            mask: U32::new(mask | QP_ATTR_STATE),
            state: to as u8,
            path_mtu: 3,
            port: 1,
            ..QpAttr::default()
        }
    }

    #[test]
    fn the_usual_way_up() {
        let steps = [
            (State::Reset, State::Init, PKEY | PORT | ACCESS),
            (
                State::Init,
                State::Rtr,
                AV | MTU | DEST | RQ_PSN | MAX_DEST_RD | MIN_RNR,
            ),
            (
                State::Rtr,
                State::Rts,
                TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD,
            ),
        ];
        for (from, to, mask) in steps {
            assert_eq!(check(QpType::Rc, from, &change(to, mask), 16), Ok(()));
            for bit in (0..28).map(|n| 1 << n).filter(|bit| mask & bit != 0) {
                let missing = check(QpType::Rc, from, &change(to, mask & !bit), 16);
                assert_eq!(missing, Err(Status::MissingAttribute), "{from:?} {bit:#x}");
            }
            let extra = check(QpType::Rc, from, &change(to, mask | NOTIFY), 16);
            assert_eq!(extra, Err(Status::ExtraAttribute));
        }
    }

    #[test]
    fn only_transitions_in_the_table() {
        let all = [
            State::Reset,
            State::Init,
            State::Rtr,
            State::Rts,
            State::Sqd,
            State::Sqe,
            State::Err,
        ];
        let mut allowed = 0;
        for from in all {
            for to in all {
                let verdict = check(QpType::Rc, from, &change(to, 0), 16);
                if verdict != Err(Status::BadTransition) {
                    allowed += 1;
                }
            }
        }
        // 14 to RESET or ERR, RESET-INIT, INIT-INIT, INIT-RTR, RTR-RTS, RTS-RTS, RTS-SQD, SQD-RTS, SQD-SQD.
        assert_eq!(allowed, 22);
    }

    #[test]
    fn values_out_of_range() {
        let base = change(State::Rtr, AV | MTU | DEST | RQ_PSN | MAX_DEST_RD | MIN_RNR);
        let check = |attr: &QpAttr| check(QpType::Rc, State::Init, attr, 16);
        assert_eq!(check(&base), Ok(()));
        assert_eq!(
            check(&QpAttr {
                path_mtu: 6,
                ..base
            }),
            Err(Status::BadAttribute)
        );
        assert_eq!(
            check(&QpAttr {
                rq_psn: U32::new(1 << 24),
                ..base
            }),
            Err(Status::BadAttribute)
        );
        assert_eq!(
            check(&QpAttr {
                max_dest_rd_atomic: 17,
                ..base
            }),
            Err(Status::BadAttribute)
        );
        assert_eq!(
            check(&QpAttr {
                min_rnr_timer: 32,
                ..base
            }),
            Err(Status::BadAttribute)
        );
        let wrong = QpAttr {
            mask: U32::new(base.mask.get() | QP_ATTR_CUR_STATE),
            cur_state: State::Rts as u8,
            ..base
        };
        assert_eq!(check(&wrong), Err(Status::WrongState));
    }
}
