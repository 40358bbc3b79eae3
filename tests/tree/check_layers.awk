# check_layers.awk - which directory may include which: the table of docs/architecture.md.
#
# SPDX-License-Identifier: MIT

BEGIN {
    allowed["base"] = "base"
    allowed["codec"] = "base codec"
    allowed["attn"] = "base codec attn"
    allowed["device"] = "base codec attn device"
    allowed["matmul"] = "base codec matmul"
    allowed["core"] = "base codec core"
    allowed["retain"] = "base codec attn core retain"
    allowed["store"] = "base codec core store"
    allowed["offload"] = "base codec attn core store offload"
    allowed["trace"] = "base core trace"
    allowed["train"] = "base codec core train"
    allowed["model"] = "base codec attn device matmul core model"
    allowed["engine"] = "base core retain store offload trace model engine"
    allowed["server"] = "base core trace model engine server"
    allowed["cli"] = "base codec attn device matmul core retain store offload trace train model engine server cli"
    # Public headers belong to a layer too.
    public["status"] = public["error"] = public["alloc"] = public["types"] = "base"
    public["codec"] = "codec"
    public["attn"] = "attn"
    public["device"] = "device"
    public["cache"] = public["prefix"] = public["pin"] = public["block_state"] = "core"
}

function found(what)
{
    printf "%s:%d: %s\n", FILENAME, FNR, what
    n_found++
}

function may_use(layer, other)
{
    return index(" " allowed[layer] " ", " " other " ") > 0
}

# Inside a layer: the engine has two halves, loop and adapt. The loop and the headers beside the
# halves do not include adapt, and adapt includes loop.h alone of the loop. Other layers include
# neither half. The engine and the server include only the online part of src/trace.
function check_parts(path)
{
    if (path ~ /^engine\/adapt\// && FILENAME ~ /(^|\/)src\/engine\/(loop\/|[^\/]*\.h$)/) {
        found("engine/loop and the headers of engine must not include " path)
    }
    if (path ~ /^engine\/loop\// && path != "engine/loop/loop.h" && FILENAME ~ /(^|\/)src\/engine\/adapt\//) {
        found("engine/adapt includes of the loop only engine/loop/loop.h, not " path)
    }
    if (path ~ /^engine\/(adapt|loop)\// && layer != "engine") {
        found(layer " must not include " path ", which is inside the engine")
    }
    if (path ~ /^trace\/[^\/]*\// && path !~ /^trace\/online\// && layer ~ /^(engine|server)$/) {
        found(layer " includes of src/trace only trace/online and trace/*.h, not " path)
    }
}

FNR == 1 {
    n_files++
    layer = ""
    is_public = FILENAME ~ /(^|\/)include\/quire\//
    is_example = FILENAME ~ /(^|\/)examples\//
    # The cache calls the prefix tree through one table (cache_internal.h), the pool does not know
    # it.
    is_below_tree = FILENAME ~ /(^|\/)src\/core\/(pool|cache)\//
    if (match(FILENAME, /(^|\/)src\/[a-z]+\//)) {
        layer = substr(FILENAME, RSTART, RLENGTH - 1)
        sub(/.*\//, "", layer)
        if (!(layer in allowed)) {
            found("directory " layer " is not in the table of layers")
        }
    }
}

/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0
    sub(/^[^"]*"/, "", path)
    sub(/".*/, "", path)
    if (layer != "") {
        check_parts(path)
    }
    other = path
    sub(/\/.*/, "", other)
    name = path
    sub(/.*\//, "", name)
    sub(/\.h$/, "", name)
    if (is_below_tree && path ~ /^(core\/(prefix|evict|pin)\/|quire\/(prefix|pin)\.h)/) {
        found("core/pool and core/cache must not include " path)
    }
    if (other == "quire") {
        if (!(name in public)) {
            found(path " has no layer in the table")
        } else if (layer != "" && layer in allowed && !may_use(layer, public[name])) {
            found(layer " must not include " path " of " public[name])
        }
    } else if (is_public || is_example) {
        found("only public headers may be included here, not " path)
    } else if (layer != "" && path !~ /\//) {
        found("write the layer: \"" layer "/" path "\"")
    } else if (layer != "" && layer in allowed && !may_use(layer, other)) {
        found(layer " must not include " path " of " other)
    }
}

/^[ \t]*#[ \t]*include[ \t]*</ {
    path = $0
    sub(/^[^<]*</, "", path)
    sub(/>.*/, "", path)
    if (is_public && path !~ /^(stdint|stddef|stdbool)\.h$/) {
        found("a public header includes stdint.h, stddef.h and stdbool.h only, not " path)
    }
    if (path ~ /^(ggml|gguf|llama)/ && layer != "" && layer != "model") {
        found("only model uses ggml and libllama, not " layer)
    }
    if (path ~ /^jansson/ && layer ~ /^(base|codec|attn|matmul|core|retain|store|train|model)$/) {
        found(layer " must not use jansson")
    }
}

END {
    if (n_files == 0) {
        print "no file was checked"
    }
    exit n_found > 0 || n_files == 0
}
