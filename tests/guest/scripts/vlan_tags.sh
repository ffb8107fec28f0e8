#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Datagrams of an interface behind a VLAN tag, and of the one below it.
. /lab/lib.sh
set -eu

ip link add link "$NETDEV" name tagged type vlan id 291
ip link set tagged up
ip address add 10.97.0.1/24 dev tagged
completion_fields vlan 10.97.0.1 291
ip link del tagged
