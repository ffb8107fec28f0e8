#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What both kinds of series have in front: git, as it works for everyone, and the number of the driver.
set -eu
# Another repository, and what its user has configured, must not matter.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
run_git() {
	git -c user.name='The Faultline authors' -c user.email=maintainers@faultline.invalid -c commit.gpgsign=false "$@"
}
# Commits all with the message on standard input.
commit() {
	run_git add --all --force
	run_git commit --quiet --file=-
}
# Adds the driver to `enum rdma_driver_id`, behind the last one: add_driver_id FILE
add_driver_id() {
	last=$(sed -n 's/^\tRDMA_DRIVER_[A-Z0-9_]*,$/&/p' "$1" | tail -n 1)
	[ -n "$last" ]
	sed -i "/^$last\$/a\\\tRDMA_DRIVER_FAULTLINE," "$1"
}
