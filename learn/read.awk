# A chapter of walkthrough.md for a terminal: awk -v chapter=3 -v show= -v width=80 -f learn/read.awk
# Without `show`, the answers are left out; without `chapter`, it is the whole text. Paragraphs are
# folded to the width; code and tables are left as they are.

# Prints the paragraph p.
function end(    words, n, i, line, indent) {
    n = split(p, words, " ")
    indent = match(p, item) ? substr("      ", 1, RLENGTH) : ""
    for (i = 1; i <= n; i++) {
        while (i < n && (gsub(/`/, "`", words[i]) % 2 || words[i] ~ /^\(?ln$/)) {  # stays whole
            words[i + 1] = words[i] " " words[i + 1]
            i++
        }
        if (line && length(line) + 1 + length(words[i]) > width) {
            print line
            line = indent words[i]
        } else {
            line = line (line ? " " : "") words[i]
        }
    }
    if (line) print line
    p = ""
}

function verbatim() {
    end()
    if ($0 || !blank) print
    blank = !$0
    lines++
}

BEGIN {
    item = "^(-|[0-9]+\\.) "
    on = chapter == ""
    if (width < 20) width = 80
    if (width > 100) width = 100  # longer lines are hard to read
}

/^## / && chapter != "" { on = $2 == chapter "." }

/^<.?details>/ {
    gsub(/<[^>]*>/, "")
    fold = $0 && !show
    if (fold) $0 = "[" $0 "] (SHOW=1)"
    if (on && $0 && !/^(Look|Answer)$/) verbatim()
    next
}

!on || fold { next }
/^```/ { code = !code; sub(/ simple/, "") }
code || /^(```|    |[|#<]|$)/ { verbatim(); next }
$0 ~ item && (!p || p ~ item) { end() }  # otherwise it is a number in a sentence
{ p = p (p ? " " : "") $0; blank = 0; lines++ }

END {
    end()
    if (!lines) print "There is no chapter " chapter "."
}
