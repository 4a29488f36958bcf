# play_kernel.awk: an engine's kernels, as docs/play.html needs them.
#
# to=record: in C. They tell the page where they are: as a function begins, at each blank line (one
# without these has fewer steps in the act), where a token is found, and which arrays are shared.
# Lines keep their numbers.
to == "record" {
    if (/^__[dg][a-z]*__.*[^}]$/) inside = 1
    if (inside) {
        sub(/^[{]$/, "{ SEE;")
        sub(/^$/, "    SEE;")
        sub(/token_offset\(/, "FOUND(")
        if (match($0, /__shared__ float [a-z_]+/))
            sub(/;/, "; SHARED(" substr($0, RSTART + 17, RLENGTH - 17) ");")
    }
    if (/^[}]/) inside = 0
    print
    next
}

# Otherwise: in WGSL, the language of WebGPU, statement by statement. A pointer to floats becomes an
# index into the array `floats`, the shared memory of a thread block; job->q[i] becomes job_q[i].
# What it does not know it leaves as it is, for the compiler to refuse. The comment of each line
# says which line of the C text it is from.
/^__device__ static|^__global__ static void attend_paged|^HD static size_t [a-z]+_offset/ {
    inside = 1
}
inside {
    sub(/ *\/\/.*/, "")
    ends = $0 ~ /^[}]|^[^ ].*[}]$/
    source = source "@" FNR "@" $0  # @7@: line 7 begins
    gsub(/\/\*[^*]*\*\//, "", source)
    if (ends) translate()
    inside = !ends
}
END { if (to != "record") print "var<workgroup> floats: array<f32, 0" shared ">;" }

# What is in s before `stop`, outside of brackets.
function before(s, stop,    i, c, depth) {
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        if (c == stop && depth == 0) break
        if (index("([{", c)) depth++
        if (index(")]}", c)) depth--
    }
    return substr(s, 1, i - 1)
}
function cut_at_commas(s, parts,    n) {
    for (n = 0; s != ""; s = substr(s, length(parts[n]) + 2)) parts[++n] = before(s, ",")
    return n
}

# These take the front of the source.
function take(stop,    taken) {
    taken = before(source, stop)
    source = substr(source, length(taken) + 2)
    gsub(/@[0-9]+@ */, " ", taken)
    return taken
}
function skip() {
    for (; match(source, /^( +|@[0-9]+@)/); source = substr(source, RLENGTH + 1))
        if (source ~ /^@/) line = substr(source, 2, RLENGTH - 2)
}

function put(s) { print s "  // " line }

function translate(    name, parts, n, i, list, result) {
    split("", pointers)
    skip()
    name = take("(")
    sub(/.*static (inline )?/, "", name)
    n = cut_at_commas(take(")"), parts)
    for (i = 1; i <= n; i++) list = list declared(parts[i]) ", "
    result = before(name, " ")
    name = "fn " substr(name, length(result) + 2) "(" list ")"
    put(name (result == "void" ? "" : " -> " type(result)))
    statement()
    source = ""
}

function statement(    word, begin, parts) {
    skip()
    begin = line
    if (source ~ /^[{]/) {
        put(take("{") "{")
        for (skip(); source ~ /^[^}]/; skip()) statement()
        put(take("}") "}")
    } else if (source ~ /^for *\(/) {
        take("(")
        split(take(")"), parts, ";")
        put("{")
        simple(parts[1])
        put("loop {")
        put("if (!(" value(parts[2]) ")) { break; }")
        statement()
        line = begin
        put("continuing {")
        simple(parts[3])
        put("} } }")
    } else if (source ~ /^(if|while) *\(/) {
        word = take("(")
        put(word "(" value(take(")")) ") {")
        statement()
        put("}")
        if (sub(/^[ @0-9]*else/, "", source)) {
            put("else {")
            statement()
            put("}")
        }
    } else simple(take(";"))
}

# What has no statement in it: a declaration, an expression, several of these.
function simple(s,    kind, name, parts, n, i) {
    sub(/^ +/, "", s)
    if (sub(/^__shared__ float /, "", s)) {
        name = before(s, "[")
        pointers[name] = 1
        put("let " name " = 0" shared ";")
        shared = shared " + " substr(s, length(name) + 2, length(s) - length(name) - 2)
        return
    }
    sub(/^const /, "", s)
    if (s ~ /^[A-Za-z_0-9]+ +\**[a-z]/ && s !~ /^return/) kind = before(s, " ") " "
    n = cut_at_commas(substr(s, length(kind) + 1), parts)
    for (i = 1; i <= n; i++) {
        s = parts[i]
        name = before(s, "=")
        if (kind) s = "var " declared(kind name) " " substr(s, length(name) + 1)
        sub(/ = [{]0[}]$/, "", s)
        put(value(s) ";")
    }
}

# "float x", "float *x", "float x[N]", "const Job *x" in WGSL: "x: f32"
function declared(s,    kind, name, i) {
    sub(/^ *(const )?/, "", s)
    kind = before(s, " ")
    name = substr(s, length(kind) + 1)
    gsub(/ /, "", name)
    if (sub(/^\*/, "", name) && kind == "float") {
        pointers[name] = 1
        kind = "int"
    }
    if (name !~ /\[/) return name ": " type(kind)
    i = index(name, "[")
    sub(/\]/, ">", name)
    return substr(name, 1, i - 1) ": array<" type(kind) ", " substr(name, i + 1)
}
function type(kind) {
    if (kind == "float") return "f32"
    return kind ~ /^(int|unsigned|size_t|u?int(32|64)_t)$/ ? "i32" : kind
}

function value(s,    out, name, yes) {
    gsub(/->/, ".", s)
    gsub(/__/, "", s)
    gsub(/&job/, "job", s)
    gsub(/\((size_t|int|unsigned|u?int(32|64)_t)\) */, "", s)
    for (; match(s, /[A-Za-z_][A-Za-z_0-9.]*\[/); s = substr(s, RSTART + RLENGTH)) {
        name = substr(s, RSTART, RLENGTH - 1)
        sub(/^job\./, "job_", name)
        out = out substr(s, 1, RSTART - 1) (name in pointers ? "floats[" name " + " : name "[")
    }
    s = out s
    gsub(/job\.(tables|lse)/, "(& != 0)", s)  # null is 0
    if (!index(s, "?")) return s
    out = match(s, /^[^=!<>]*= /) ? substr(s, 1, RLENGTH) : ""
    name = before(substr(s, length(out) + 1), "?")
    yes = before(substr(s, length(out name) + 2), ":")
    return out "select(" substr(s, length(out name yes) + 3) "," yes "," name ")"
}
