#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs the package of the host in a root without systemd, and serves NICs as its unit says: serve-from-package COMMAND
# COMMAND is what a user runs in the folder of the packages. The sockets are in the folder faultline of /mnt as well.
set -eu
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
cd /mnt
sh -euc "$1"
unit=/usr/lib/systemd/system/faultline.service
user=$(sed -n 's/^User=//p' $unit)
command=$(sed -n 's/^ExecStart=//p' $unit)
# As RuntimeDirectory= does.
install -d -m 750 -o "$user" -g "$user" /mnt/faultline /run/faultline
mount --bind /mnt/faultline /run/faultline
# A child: the death of the parent kills this shell, but no process that has changed its user.
# shellcheck disable=SC2086 # words
setpriv --reuid "$user" --regid "$user" --init-groups $command
