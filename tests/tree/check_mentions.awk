# check_mentions.awk - prints file names in comments that the tree does not have.
#
#   awk -f check_mentions.awk LIST SOURCE...
#
# LIST has the paths of the tree's files, one per line. A comment may leave out folders in front:
# "loop/room.h" means every path that ends so. In C, in shaders and in JavaScript, comments begin
# with "/*" or "//"; in other files they are lines that begin with "#". A name in capital letters,
# such as PAGE.mjs, stands for several names and is not looked up.
#
# SPDX-License-Identifier: MIT
BEGIN {
    # Files of llama.cpp and ggml that do not begin with the name of their project.
    n = split("unicode.cpp minicpm3.cpp src/models/deepseek2.cpp src/models/gemma3n.cpp " \
        "tools/perplexity/perplexity.cpp docs/gguf.md", names, " ")
    for (i = 1; i <= n; i++) {
        is_there[names[i]] = 1
    }
}

# Enter a path and all its ends.
function enter(path) {
    is_there[path] = 1
    while (match(path, /\//)) {
        path = substr(path, RSTART + 1)
        is_there[path] = 1
    }
}

function is_known(name) {
    return name in is_there || name ~ /^(llama|ggml|gguf)(-[a-z0-9-]+)?\.(h|c|cpp)$/ ||
        name ~ /(^|\/)[A-Z]+\.[a-z]+$/ && name !~ /\.md$/
}

function look(text,    name, before) {
    while (match(text, /[A-Za-z0-9][A-Za-z0-9_.\/-]*\.(c|h|cpp|cu|comp|glsl|md|sh|awk|mjs)/)) {
        name = substr(text, RSTART, RLENGTH)
        before = RSTART > 1 ? substr(text, RSTART - 1, 1) : ""
        text = substr(text, RSTART + RLENGTH)
        # Neither a part of a longer word nor the end of a pattern or of an absolute path.
        if (text !~ /^[A-Za-z0-9_(*]/ && before !~ /[_*\/.<>{}$-]/ && !is_known(name)) {
            print FILENAME ":" FNR ": no file " name
            n_found++
        }
    }
}

# Take the comments out of a line. Texts in quotes may hold "/*".
function look_c(line,    end, mark) {
    for (;;) {
        if (in_comment) {
            end = index(line, "*/")
            look(end > 0 ? substr(line, 1, end - 1) : line)
            if (end == 0) {
                return
            }
            in_comment = 0
            line = substr(line, end + 2)
        }
        if (!match(line, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\//)) {
            return
        }
        mark = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (mark == "//") {
            look(line)
            return
        }
        in_comment = mark == "/*"
    }
}

FNR == 1 {
    n_files++
    in_comment = 0
    is_c = FILENAME ~ /\.(c|h|cpp|cu|comp|glsl|mjs)$/
}
n_files == 1 {
    enter($0)
    next
}
is_c {
    look_c($0)
}
!is_c && /^ *#/ {
    look($0)
}
END {
    exit n_found > 0
}
