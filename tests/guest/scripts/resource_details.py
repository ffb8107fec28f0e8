#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `rdma resource show ... -dd` tells of queue pairs, CQs and SRQs of this process."""
import json
import os
import subprocess

import verbs_enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr


def details(kind):
    """Objects of this kind that belong to this process, with the driver's details."""
    shown = json.loads(subprocess.check_output(["rdma", "-j", "-d", "-d", "resource", "show", kind]))
    own = [one for one in shown if one.get("pid") == os.getpid()]
    print(kind, own, flush=True)
    return own


def numbers(one, *names):
    return [one[f"drv_{name}"] for name in names]


context = Context(name=os.environ["RDMA_DEV"])
pd = PD(context)
cq = CQ(context, 60)
srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=100, max_sge=2)))
cap = QPCap(max_send_wr=30, max_recv_wr=10, max_send_sge=3, max_recv_sge=2, max_inline_data=64)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
other = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, srq=srq))

[shown] = details("cq")
# proves: fill_res_cq_entry
assert numbers(shown, "depth") == [64] and shown["cqe"] in (60, 64), shown
# The index of a process' CQ is in its own memory.
assert "drv_consumer" not in shown
[shown] = details("srq")
assert numbers(shown, "depth", "max_sge", "limit") == [128, 2, 0]
srq.modify(SrqAttr(srq_limit=7), e.IBV_SRQ_LIMIT)
[shown] = details("srq")
# proves: fill_res_srq_entry
assert numbers(shown, "limit") == [7]
mine = {one["lqpn"]: one for one in details("qp")}
shown = mine[qp.qp_num]
# proves: fill_res_qp_entry
assert numbers(shown, "sq_depth", "sq_max_sge", "rq_depth", "rq_max_sge") == [32, 3, 16, 2]
assert shown["drv_max_inline"] >= 64 and shown["drv_fault_policy"] == "rnr"
assert shown["drv_access"] == 0 and "drv_sq_producer" not in shown
assert "drv_rq_depth" not in mine[other.qp_num] and "drv_sq_depth" in mine[other.qp_num]
attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
attr.qp_access_flags = e.IBV_ACCESS_REMOTE_READ
qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PORT | e.IBV_QP_PKEY_INDEX | e.IBV_QP_ACCESS_FLAGS)
mine = {one["lqpn"]: one for one in details("qp")}
assert mine[qp.qp_num]["drv_access"] == e.IBV_ACCESS_REMOTE_READ
# The kernel's own: QP 1 has indices, and its SQ is at least as deep as what waits in it.
shown = json.loads(subprocess.check_output(["rdma", "-j", "-d", "-d", "resource", "show", "qp"]))
[gsi] = [one for one in shown if one["lqpn"] == 1 and one["ifname"] == os.environ["RDMA_DEV"]]
print(gsi, flush=True)
depth, producer, consumer = numbers(gsi, "rq_depth", "rq_producer", "rq_consumer")
assert 0 < producer - consumer <= depth
for thing in (other, qp, srq, cq, pd, context):
    thing.close()
print("PASS")
