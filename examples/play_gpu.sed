# play_gpu.sed: an engine whose kernels tell docs/play.html where they are: as a function begins, at
# each blank line, where a token is found, and which arrays are shared. Lines keep their numbers.
/^__[dg][a-z]*__.*[^}]$/,/^}/ {
    s/^{$/{ SEE;/
    s/^$/    SEE;/
    s/token_offset(/FOUND(/
    s/^\( *__shared__ float \([a-z_]*\)\[.*\];\)/\1 SHARED(\2);/
}
