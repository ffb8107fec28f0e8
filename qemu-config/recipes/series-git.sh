#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What both kinds of series have in front: git, as it works for everyone.
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
