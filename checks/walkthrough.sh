#!/bin/sh
# The documents against the program, and the exercises: checks/walkthrough.py, where there is a
# python3. Each part ends with the usual line.
cd "$(dirname "$0")/.." || exit 1
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
    echo "SKIPPED: walkthrough and exercises: there is no python3 from 3.7 on"
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
bad=0
python3 checks/walkthrough.py || bad=1
python3 checks/walkthrough.py --self-test || bad=1
python3 checks/walkthrough.py --exercises || bad=1
exit $bad
