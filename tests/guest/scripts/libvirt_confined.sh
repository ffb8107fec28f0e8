#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# libvirt starts a virtual machine in this guest by the packaged example. All of them run as their units and AppArmor profiles say; QEMU
# attaches the NIC of the packaged service. The machine's disk is empty: the boot of a system would take too long in a guest without
# hardware virtualization.
. /lab/lib.sh
set -eu

DOMAIN=/tmp/rdma0.xml
profile() { cat "/proc/$1/attr/current"; }
main_pid() { systemctl show -P MainPID "$1"; }
denied() { dmesg | grep 'apparmor="DENIED".*faultline'; }

systemctl start faultline libvirtd
[ "$(profile "$(main_pid faultline)")" = 'faultline (enforce)' ]
[ "$(profile "$(main_pid libvirtd)")" = 'libvirtd (enforce)' ]

qemu-img create -q -f qcow2 /var/lib/libvirt/images/rdma0.qcow2 1G
# No hardware virtualization, and less memory than this guest has.
sed "s/type='kvm'/type='qemu'/; s/mode='host-passthrough'/mode='maximum'/; s/<vcpu>2</<vcpu>1</
	s/<memory unit='GiB'>2</<memory unit='MiB'>256</" /usr/share/doc/faultline/examples/domain.xml >$DOMAIN
[ "$(diff /usr/share/doc/faultline/examples/domain.xml $DOMAIN | grep -c '^>')" = 4 ]
virsh net-start default
virsh define $DOMAIN
virsh start rdma0
virsh qemu-monitor-command rdma0 --hmp 'info pci' | grep -A 1 'device  30, function 0' | grep '1af4:10f0'
qemu=$(cat /run/libvirt/qemu/rdma0.pid)
profile "$qemu" | grep '^libvirt-.* (enforce)'
[ "$(stat -c %U "/proc/$qemu")" = libvirt-qemu ]
journalctl -u faultline -o cat --no-pager | grep 'nic0.*client connected'
lab_fails denied
virsh destroy rdma0
