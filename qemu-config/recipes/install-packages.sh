#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs packages (names, or paths of .deb files) in a guest root: install-packages PACKAGE…
set -eu
apt-get update
apt-get install -y --no-install-recommends "$@"
apt-get clean
