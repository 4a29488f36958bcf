# Draws what `replay` measured, as the two pictures of the README.
#   gnuplot -c checks/plots.gp TABLES.csv CURVES.csv FOLDER
# TABLES.csv and CURVES.csv are what its --csv and --curve write; FOLDER gets replay-memory.svg and
# replay-running.svg. `make plots` runs it.
tables = ARG1
curves = ARG2
set datafile separator ','
set terminal svg size 760,380 font 'Helvetica,13' background '#ffffff'
set border 3 lc '#666666'
set tics nomirror
set grid y lc '#dddddd' lt 1
set key outside top center horizontal reverse Left samplen 1.5

# Where the slots of the budget are: one bar for each allocator.
set output ARG3.'/replay-memory.svg'
set style data histograms
set style histogram rowstacked
set style fill solid noborder
set boxwidth 0.7
set yrange [0:100]
set ylabel '% of the budget, average over steps'
two_lines(s) = s[1:strstrt(s, ' ') - 1]."\n".s[strstrt(s, ' ') + 1:*]
set xtics scale 0 font ',11'
set bmargin 3
plot tables every ::1 using (100*$3):xtic(two_lines(strcol(1))) title 'used' lc '#1b7837', \
     '' every ::1 using (100*$4) title 'reserved' lc '#a6dba0', \
     '' every ::1 using (100*$5) title 'internal' lc '#c2a5cf', \
     '' every ::1 using (100*$6) title 'external' lc '#762a83', \
     '' every ::1 using (100*$7) title 'free' lc '#dddddd'

# Requests that run together, over time, each point the average of a 256th of the picture. Reserving
# the maximum takes so much longer than the others that the picture stops where they have all ended.
set output ARG3.'/replay-running.svg'
set bmargin -1
set yrange [*:*]
stats tables using (strcol(1) eq 'reserve power of 2' ? $11 : NaN) nooutput
last = STATS_max
stats tables using (strcol(1) eq 'reserve maximum' ? $11 : NaN) nooutput
width = ceil(1.04*last/256)
middle(step) = width*(floor(step/width) + 0.5)
at(name) = strcol(1) eq name ? middle($2) : NaN
set xrange [0:1.04*last]
set yrange [0:*]
set xtics scale 1 font ',13' format '%.0f'
set xlabel sprintf('steps (reserve maximum goes on to step %.0f)', STATS_max)
set ylabel 'requests running together'
plot curves using (at('reserve maximum')):3 smooth unique \
         title 'reserve maximum' with lines lw 2 lc '#762a83', \
     '' using (at('reserve power of 2')):3 smooth unique \
         title 'reserve power of 2' with lines lw 2 lc '#c2a5cf', \
     '' using (at('reserve exactly')):3 smooth unique \
         title 'reserve exactly' with lines lw 2 lc '#888888', \
     '' using (at('paged 16')):3 smooth unique \
         title 'paged 16' with lines lw 2 lc '#1b7837'
