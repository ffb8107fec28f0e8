#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests of rdma-core's own suite, in one call: run_pyverbs -k tests.MODULE.*.TEST…
# Begins with a line for each of these that the guest's rdma-core does not define.
. /lab/lib.sh
set -e

mkdir -p /tmp/pyverbs
cd /tmp/pyverbs
cp -r /usr/share/doc/rdma-core/tests .
# Python reads each module that is there. Those for other devices take it longer than the tests.
rm -f tests/test_mlx5_* tests/test_efa* tests/test_cuda*
gunzip -f tests/*.gz
cd tests
declare -A modules
for pattern; do
	[ "$pattern" != -k ] || continue
	IFS=. read -r _ module _ test <<<"$pattern"
	if [ -z "${modules[$module]-}" ]; then
		modules[$module]=$(cat "$module.py" || echo "# none")
	fi
	[[ ${modules[$module]} == *"def $test("* ]] || echo "not defined: $module $test"
done
# The tests expect that their processes are forked. Since Python 3.14 that is not the default.
PYTHONPATH=/tmp/pyverbs python3 -c 'import multiprocessing, runpy
multiprocessing.set_start_method("fork")
runpy.run_path("/tmp/pyverbs/tests/run_tests.py", run_name="__main__")' --dev "$RDMA_DEV" --gid "$GID_INDEX" -v "$@" 2>&1 |
	tee "$ARTEFACTS/pyverbs.log"
