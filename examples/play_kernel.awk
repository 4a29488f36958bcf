# play_kernel.awk: an engine for docs/play.html. Its kernels tell the page where they are, as a
# function begins, at a blank line, where a token is found, and which arrays are shared.
BEGIN { print "#line 1 \"" ARGV[1] "\"" }
/^__[dg][a-z]*__.*[^}]$/ { inside = 1 }
inside {
    sub(/^[{]$/, "{ SEE;")
    sub(/^$/, "    SEE;")
    sub(/token_offset\(/, "FOUND(")
    if (match($0, /__shared__ float [a-z_]+/))
        sub(/;/, "; SHARED(" substr($0, RSTART + 17, RLENGTH - 17) ");")
}
/^[}]/ { inside = 0 }
{ print }
