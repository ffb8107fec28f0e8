#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The constants of pyverbs, whichever release of rdma-core the guest has: import verbs_enums as e"""
import enum

try:
    import pyverbs.enums as module
except ModuleNotFoundError:
    import pyverbs.libibverbs_enums as module

for name, value in list(vars(module).items()):
    if not name.startswith("__"):
        globals()[name] = value
    # Later releases have a class for each enumeration.
    if isinstance(value, enum.EnumMeta):
        globals().update(value.__members__)
