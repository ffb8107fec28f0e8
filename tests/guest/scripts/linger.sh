#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a program that keeps its queue pairs for a second after it needs them: linger COMMAND…
LD_PRELOAD=/usr/local/bin/lingering.so exec "$@"
