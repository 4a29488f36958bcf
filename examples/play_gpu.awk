# play_gpu.awk: prints an engine whose kernels tell docs/play.html what they do. SEE() stands before
# each statement of a __global__ or __device__ function that begins a line and is not the body of an
# if or a for; it has 1 where the page begins a step. FOUND() is around token_offset(), SHARED()
# after an array in shared memory. Lines keep their numbers. -v text=1: prints these functions only.

/^__(global|device)__/ && !/}$/ { kernel = begins = 1; ended = 0 }
!kernel { if (!text) print; next }
{
    code = line = $0
    sub(/ *\/\/.*/, "", code)
    inside = depth  # of the parentheses that earlier lines have opened
    depth += gsub(/\(/, "(", code) - gsub(/\)/, ")", code)
    listed = code ~ /,$/ && !depth  # in an initializer
    if ($0 !~ /[^ ]/ || code ~ /token_offset\(/) begins = 1
    if (match(code, /^ *__shared__ +float +[a-z_]+\[/)) {
        name = substr(code, RSTART, RLENGTH - 1)
        sub(/.* /, "", name)
        sub(/;/, "; SHARED(" name ");", line)
    }
    gsub(/token_offset\(/, "FOUND(", line)
    if (ended && !inside && !listed && code ~ /^ +[A-Za-z_*(]/ &&
        code !~ /^ *(else|case|default)/ && sub(/[^ ]/, "SEE(" begins + 0 "); &", line)) begins = 0
    if (code ~ /[^ ]/) ended = code ~ /[;{}] *$/
    print text ? NR "\t" $0 : line
}
/^}/ { kernel = 0 }
