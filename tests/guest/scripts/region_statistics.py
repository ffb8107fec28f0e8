#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `rdma statistic` and `rdma resource` tell of regions: pages asked for early, faults and their time, pages that
went. All of it in one process, with a queue pair that is connected to itself.
"""
import ctypes
import json
import mmap
import os
import subprocess
import time

import verbs_enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

PAGE, PAGES, EARLY = 4096, 64, 16
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


def rdma(*words):
    return json.loads(subprocess.check_output(["rdma", "-j", *words]))


class Region:
    def __init__(self, pd, access):
        self.memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A huge page would be one fault for all.
        self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.mr = MR(pd, PAGES * PAGE, access, address=self.address)
        own = [mr for mr in rdma("-d", "resource", "show", "mr") if int(mr["lkey"], 16) == self.mr.lkey]
        assert len(own) == 1, own
        self.number = own[0]["mrn"]

    def statistics(self):
        [shown] = rdma("statistic", "show", "mr", "mrn", str(self.number))
        print(shown, flush=True)
        counters = ("page_faults", "page_faults_handled", "page_invalidations", "page_prefetch")
        self.times = shown.get("page_fault_ns"), shown.get("page_fault_max_ns")
        return tuple(shown.get(counter) for counter in counters)

    def details(self):
        [shown] = rdma("-d", "-d", "resource", "show", "mr", "mrn", str(self.number))
        print(shown, flush=True)
        return shown

    def present(self):
        return self.details()["drv_pages_present"]


def write(qp, cq, source, target):
    wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(source.address, PAGES * PAGE, source.mr.lkey)])
    wr.set_wr_rdma(target.mr.rkey, target.address)
    qp.post_send(wr)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found, completions = cq.poll()
        if found:
            assert completions[0].status == e.IBV_WC_SUCCESS, completions[0].status
            return
    raise TimeoutError("no completion")


context = Context(name=os.environ["RDMA_DEV"])
pd = PD(context)
cq = CQ(context, 4)
index = int(os.environ["GID_INDEX"])
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1), sq_sig_all=1))
route = GlobalRoute(dgid=context.query_gid(1, index), sgid_index=index)
attr = QPAttr(port_num=1)
attr.qp_access_flags = ACCESS
attr.dest_qp_num = qp.qp_num
attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=1)
attr.path_mtu = e.IBV_MTU_1024
attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
qp.to_rts(attr)

pinned = Region(pd, ACCESS)
region = Region(pd, ACCESS | e.IBV_ACCESS_ON_DEMAND)
LINK = os.environ["RDMA_DEV"] + "/1"
TIMED = ("page_fault_ns", "page_fault_wait_ns", "page_fault_map_ns")


def optional():
    """The optional counters; those that are off are not shown."""
    [shown] = rdma("statistic", "show", "link", LINK)
    return {name: shown[name] for name in TIMED if name in shown}


assert pinned.statistics() == (None, None, None, None)
assert region.statistics() == (0, 0, 0, 0)
assert region.times == (0, 0) and region.present() == 0
assert pinned.details()["drv_kind"] == "pinned" and "drv_pages_present" not in pinned.details()
# proves: fill_res_mr_entry
assert region.details()["drv_kind"] == "on-demand"
assert region.details()["drv_access"] == ACCESS | e.IBV_ACCESS_ON_DEMAND
pd.advise_mr(e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, e._IBV_ADVISE_MR_FLAG_FLUSH,
             [SGE(region.address, EARLY * PAGE, region.mr.lkey)])
*others, prefetches = region.statistics()
assert others == [0, 0, 0] and prefetches > 0
assert region.present() == EARLY and optional() == {}
subprocess.check_call(["rdma", "statistic", "set", "link", LINK, "optional-counters", ",".join(TIMED)])
# They keep their values while they are off.
before = optional()
assert before.keys() == set(TIMED), before
# The other pages are not there, then all are, and then none.
write(qp, cq, pinned, region)
faults, handled, *others = region.statistics()
# proves: fill_stat_mr_entry
assert faults > 0 and handled == faults and others == [0, prefetches]
total, longest = region.times
assert faults * longest >= total >= longest > 0 and region.present() == PAGES
time.sleep(0.1)
timed = {name: value - before[name] for name, value in optional().items()}
# proves: modify_hw_stat
assert timed["page_fault_ns"] == total, timed
assert 0 < timed["page_fault_wait_ns"] + timed["page_fault_map_ns"] < total, timed
subprocess.check_call(["rdma", "statistic", "unset", "link", LINK, "optional-counters"])
assert optional() == {}
write(qp, cq, pinned, region)
assert region.statistics() == (faults, handled, 0, prefetches) and region.times == (total, longest)
region.memory.madvise(mmap.MADV_DONTNEED)
assert region.statistics() == (faults, handled, PAGES, prefetches) and region.present() == 0
write(qp, cq, pinned, region)
more, handled, *others = region.statistics()
assert more > faults and handled == more and others == [PAGES, prefetches]
assert region.times[0] > total and region.present() == PAGES
print("PASS")
