#!/bin/sh
# The build track of learn/, proved: checks/learn.py, where there is a python3. --all: wholly.
cd "$(dirname "$0")/.." || exit 1
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
    echo "SKIPPED: build track: there is no python3 from 3.7 on"
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
exec python3 checks/learn.py "$@"
