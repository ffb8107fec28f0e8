#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks the units, the AppArmor profile, the shell completions, the manual pages and the example of an unpacked package in a
# root: check-units TREE MOST. MOST is ten times the largest exposure that `systemd-analyze security` may report.
set -eu
tree=$1 most=$2
units=$tree/usr/lib/systemd/system
# systemd looks for the program and the manual pages.
cp "$tree/usr/bin/faultline" /usr/bin/
cp "$units"/* /usr/lib/systemd/system/
# It only warns of a key that it does not know.
systemd-analyze verify --man=no faultline.service faultline@test.service >/tmp/verified 2>&1 || :
if [ -s /tmp/verified ]; then
	cat /tmp/verified
	exit 1
fi
for unit in faultline.service faultline@test.service; do
	systemd-analyze security --offline=yes --threshold="$most" --no-pager "$unit" >/tmp/exposure || {
		cat /tmp/exposure
		exit 1
	}
	tail -n 1 /tmp/exposure
done
apparmor_parser --skip-kernel-load --skip-cache "$tree/etc/apparmor.d/faultline"
bash -c ". $tree/usr/share/bash-completion/completions/faultline && complete -p faultline"
zsh -f -c "autoload -U compinit && compinit -D -u && . $tree/usr/share/zsh/vendor-completions/_faultline && whence -w _faultline"
fish -c ". $tree/usr/share/fish/vendor_completions.d/faultline.fish && complete -C 'faultline ctl --'" | grep -e '^--control'
xmllint --noout --relaxng /usr/share/libvirt/schemas/domain.rng "$tree/usr/share/doc/faultline/examples/domain.xml"
