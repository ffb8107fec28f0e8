#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The step of action.yml: `cargo lab run` with its inputs. Ends with the exit status of the script.
set -euo pipefail
lab=$(cd "$(dirname "$0")/../.." && pwd)
workspace=${GITHUB_WORKSPACE:-$PWD}

# The path of a file of the workspace.
in_workspace() {
	realpath -ms "$workspace/$1"
}

results=$(in_workspace "$FAULTLINE_ARTEFACTS")
mkdir -p "$results"
# That of another step must not be taken for that of this one, if the guests do not boot.
rm -f "$results/junit.xml"
arguments=(
	--script "$(in_workspace "$FAULTLINE_SCRIPT")"
	--guests "$FAULTLINE_GUESTS"
	--kernel "$FAULTLINE_KERNEL"
	--timeout "$FAULTLINE_TIMEOUT"
	--junit "$results/junit.xml"
	--results "$results"
)
if [ -n "$FAULTLINE_PACKAGES" ]; then
	packages=
	IFS=, read -ra names <<<"$FAULTLINE_PACKAGES"
	for name in "${names[@]}"; do
		case $name in
		*.deb) name=$(in_workspace "$name") ;;
		esac
		packages+=${packages:+,}$name
	done
	arguments+=(--packages "$packages")
fi
cd "$lab"
export CARGO_INCREMENTAL=0
exec cargo lab run "${arguments[@]}"
