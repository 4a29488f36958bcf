# play_gpu.awk: prints an engine whose kernels tell docs/play.html what they do. SEE stands before
# each statement of a __global__ or __device__ function that begins a line and is not the body of an
# if or a for, FOUND() around token_offset(), SHARED() after an array in shared memory. Every line
# keeps its number. With -v text=1, prints these functions as the page shows them.

/^__(global|device)__/ && !/}$/ { kernel = 1; ended = 0 }
!kernel { if (!text) print; next }
{
    code = line = $0
    sub(/ *\/\/.*/, "", code)
    inside = depth  # of the parentheses that earlier lines have opened
    depth += gsub(/\(/, "(", code) - gsub(/\)/, ")", code)
    listed = code ~ /,$/ && !depth  # in an initializer
    gsub(/token_offset\(/, "FOUND(", line)
    if (match(code, /^ *__shared__ +float +[a-z_]+\[/)) {
        name = substr(code, RSTART, RLENGTH - 1)
        sub(/.* /, "", name)
        sub(/;/, "; SHARED(" name ");", line)
    }
    if (ended && !inside && !listed && code ~ /^ +[A-Za-z_*(]/ && code !~ /^ *(else|case|default)/)
        sub(/[^ ]/, "SEE; &", line)
    if (code ~ /[^ ]/) ended = code ~ /[;{}] *$/
    print text ? NR "\t" $0 : line
}
/^}/ { kernel = 0 }
