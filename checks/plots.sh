#!/bin/sh
# make plots: draws what ./replay measures, as build/replay-memory.svg and build/replay-running.svg.
#
#     sh checks/plots.sh               a generated trace
#     sh checks/plots.sh TRACE.csv     a trace of your own
#
# The pictures of the README are drawn from the Azure trace that it names: FOLDER=docs replaces them.
set -eu
folder=${FOLDER:-build}
mkdir -p "$folder" build
if ! command -v gnuplot >/dev/null; then
    echo "make plots needs gnuplot: sudo apt-get install gnuplot-nox" >&2
    exit 1
fi
if [ $# = 0 ]; then
    echo "no TRACE=file.csv: 10000 generated requests"
    set -- --generate 10000
fi
./replay "$@" --saturate --csv build/replay.csv --curve build/replay-curve.csv
gnuplot -c checks/plots.gp build/replay.csv build/replay-curve.csv "$folder"
echo "drawn: $folder/replay-memory.svg $folder/replay-running.svg"
