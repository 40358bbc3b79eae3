/* test_schema_graft_tags.c - schemas in formats that write arguments one by one: which texts their
 * grammars take.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include "grammar_text.h"
#include "model_fixture.h"
#include "server/schema_graft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static quire_model *model;

static int setup(void **state)
{
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    opts.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

/* Between tags, as the library writes it. A text ends at ";/": the rules ac-1 include this tag, the
 * rules until-2 do not. */
static const char tagged[] = "ac-1 ::= [;] ac-1-01 | [^;] ac-1\n"
                             "ac-1-01 ::= [;] ac-1-01 | [/] | [^;/] ac-1\n"
                             "until-2 ::= | [;] until-2-01 | [^;] until-2\n"
                             "until-2-01 ::= | [;] until-2-01 | [^;/] until-2\n"
                             "string-arg ::= ac-1\n"
                             "integer ::= [0-9]+\n"
                             "root ::= tool-f\n"
                             "tool-f ::= (\"f\") tool-f-arg-a-b tool-f-arg-c? tool-f-arg-d?\n"
                             "tool-f-arg-a-b ::= (\"[\" \"a_b\" \"]\") string-arg\n"
                             "tool-f-arg-c ::= (\"[\" \"c\" \"]\") until-2 \";/\"\n"
                             "tool-f-arg-d ::= (\"[\" \"d\" \"]\") integer \";/\"\n";

/* As in Python, and as Gemma 4 writes. */
static const char python[] =
    "python-or-json-value ::= [a-z0-9\"'TF]+\nroot ::= tool-f\n"
    "tool-f ::= (\"f\" \"(\") ((\"a_b\" \"=\") python-or-json-value)* \")\"\nspace ::= | \" \"\n";
static const char gemma[] = "gemma4-dict ::= \"{\" [^}]* \"}\"\ngemma4-string ::= \"<|\\\"|>\" "
                            "[a-z]* \"<|\\\"|>\"\ngemma4-value ::= gemma4-string | gemma4-dict\n"
                            "root ::= tool-f\ntool-f ::= (\"f\") gemma4-dict\nspace ::= | \" \"\n"
                            "unused ::= gemma4-value\n";

#define TOOL(more, parameters)                                                                     \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\"" more ",\"parameters\":" parameters "}}" \
    "]"

typedef struct tags_case {
    const char *grammar, *tools;
    const char *taken[6];
    const char *refused[6];
} tags_case;

static void check(const tags_case *c)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_schema_graft(c->grammar, c->tools, NULL, &gbnf, &err) < 0) {
        fail_msg("%s", err.message);
    }
    for (size_t i = 0; i < N(c->taken) && c->taken[i] != NULL; i++) {
        if (!grammar_text_is_taken(model, gbnf.data, c->taken[i])) {
            fail_msg("not taken is %s:\n%s", c->taken[i], gbnf.data);
        }
    }
    for (size_t i = 0; i < N(c->refused) && c->refused[i] != NULL; i++) {
        if (grammar_text_is_taken(model, gbnf.data, c->refused[i])) {
            fail_msg("taken is %s:\n%s", c->refused[i], gbnf.data);
        }
    }
    quire_bytes_fini(&gbnf);
}

static void test_between_tags(void **state)
{
    static const tags_case cases[] = {
        /* enum of texts with the tag in the rule, format without, bounds of a number */
        { tagged,
          TOOL("", "{\"properties\":{\"a_b\":{\"enum\":[\"x\",\"y\\\"z\\n\"]},\"c\":{\"type\":"
                   "\"string\",\"format\":\"date\"},\"d\":{\"type\":\"integer\",\"maximum\":9}}}"),
          { "f[a_b]x;/", "f[a_b]y\"z\n;/[c]2024-02-28;/[d]9;/" },
          { "f[a_b]z;/", "f[a_b]x", "f[a_b]x;/[c]2024-2-29;/", "f[a_b]x;/[d]10;/" } },
        /* const, a pattern, a reference */
        { tagged,
          TOOL("", "{\"$defs\":{\"k\":{\"const\":\"v\"}},\"properties\":{\"a_b\":{\"$ref\":"
                   "\"#/$defs/k\"},\"c\":{\"type\":\"string\",\"pattern\":\"^[0-9]{2}$\"},\"d\":{"
                   "\"enum\":[3]}}}"),
          { "f[a_b]v;/[c]42;/[d]3;/" },
          { "f[a_b]w;/", "f[a_b]v;/[c]4;/", "f[a_b]v;/[d]4;/" } },
        /* no constraint, one that is not supported, and values that are not texts alone */
        { tagged,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\"},\"c\":{\"type\":\"string\","
                   "\"format\":\"unknown\"},\"d\":{\"multipleOf\":\"x\"}}}"),
          { "f[a_b]any;;text;/", "f[a_b];/[c]any;/[d]12;/" },
          { "f[a_b]x", "f[a_b];/[d]x;/" } },
        /* of a union the texts alone; a text and its length */
        { tagged,
          TOOL("",
               "{\"properties\":{\"a_b\":{\"enum\":[\"x\",1]},\"c\":{\"anyOf\":[{\"const\":"
               "\"name\"},{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"null\"}]},\"d\":{"
               "\"type\":[\"integer\",\"null\"]}}}"),
          { "f[a_b]x;/[c]name;/[d]3;/", "f[a_b]x;/[c]2024-02-28;/[d]null;/" },
          { "f[a_b]1;/", "f[a_b]x;/[c]null;/", "f[a_b]x;/[d]x;/" } },
        { tagged,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":4},"
                   "\"c\":{\"type\":[\"string\",\"null\"],\"minLength\":1}}}"),
          { "f[a_b]ab;/", "f[a_b]a bc;/[c]x;/", "f[a_b]a\nbc;/[c]x y;/" },
          { "f[a_b]a;/", "f[a_b]abcde;/", "f[a_b] b;/", "f[a_b]a ;/", "f[a_b]a;c;/",
            "f[a_b]ab;/[c];/" } },
        { tagged,
          TOOL("", "{\"properties\":{\"a_b\":{\"maxLength\":1},\"c\":{\"allOf\":[{\"type\":"
                   "\"string\"},{\"maxLength\":3}]}}}"),
          { "f[a_b];/", "f[a_b]x;/[c]abc;/", "f[a_b]x;/[c];/" },
          { "f[a_b]xy;/", "f[a_b]x;/[c]abcd;/" } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

static void test_objects_between_tags(void **state)
{
    static const tags_case cases[] = {
        /* properties behind allOf and $ref; a choice of objects: each has its own */
        { tagged,
          TOOL("",
               "{\"allOf\":[{\"$ref\":\"#/$defs/b\"}],\"$defs\":{\"b\":{\"properties\":{\"a_b\":{"
               "\"const\":\"x\"}}}}}"),
          { "f[a_b]x;/" },
          { "f[a_b]y;/" } },
        { tagged,
          TOOL("",
               "{\"oneOf\":[{\"properties\":{\"a_b\":{\"const\":\"x\"},\"c\":{\"const\":\"y\"}},"
               "\"required\":[\"a_b\",\"c\"]},{\"properties\":{\"a_b\":{\"const\":\"z\"},\"d\":{"
               "\"maximum\":9,\"type\":\"integer\",\"minimum\":0}},\"required\":[\"a_b\"]}]}"),
          { "f[a_b]x;/[c]y;/", "f[a_b]z;/", "f[a_b]z;/[d]9;/" },
          { "f[a_b]x;/", "f[a_b]z;/[c]y;/", "f[a_b]z;/[d]10;/", "f[a_b]x;/[c]y;/[d]9;/" } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

/* Tags of fixed words: any arguments in the library's rule. */
static const char words[] =
    "root ::= tool-f\nspace ::= | \" \"\n"
    "tool-f ::= (\"<f>\") space (((\"<param name=\\\"\" \"a\" \"\\\">\") ac-1 | (\"<param "
    "name=\\\"\" \"b\" \"\\\">\") [0-9]+ \"</param>\") space)* space \"</f>\"\n"
    "ac-1 ::= [^<]* \"</param>\"\n";
static const char kimi[] =
    "root ::= kimi-k3-tool-f\nuntil-1 ::= [^<]*\n"
    "kimi-k3-tool-f ::= (\"f\" until-1 \"<|sep|>\") (kimi-k3-arg-f-a | kimi-k3-arg-f-b)* \"end\"\n"
    "kimi-k3-arg-f-a ::= \"<|open|>argument key=\\\"\" \"a\" \"\\\"\" until-1 \"<|sep|>\" until-1 "
    "\"<|close|>argument<|sep|>\"\nkimi-k3-arg-f-b ::= kimi-k3-arg-f-a\n";
static const char ling[] =
    "root ::= ling3-tool-f\nspace ::= | \" \"\nuntil-1 ::= [^<]*\n"
    "ling3-arg-string ::= until-1 \"</v>\"\n"
    "ling3-tool-f ::= (\"f\" space?) (ling3-f-args-1 (ling3-arg-f-b)*) (space? \"end\")\n"
    "ling3-f-args-1 ::= ling3-arg-f-a\n"
    "ling3-arg-f-a ::= space? ((\"<k>\" \"a\" \"</k>\") space? \"<v>\" ling3-arg-string)\n"
    "ling3-arg-f-b ::= space? ((\"<k>\" \"b\" \"</k>\") space? \"<v>\" [0-9]+ integer \"</v>\")\n"
    "integer ::= [0-9]*\n";
static const char nested[] =
    "root ::= tool-f\nspace ::= | \" \"\nac-1 ::= [<] ac-1-01 | [^<] ac-1\nac-1-01 ::= [/]\n"
    "tool-f ::= (\"f\") space tool-f-arg-l space tool-f-arg-o\n"
    "tool-f-arg-l ::= (\"<l>\") (space tool-f-arg-l-item)* space \"</l>\"\n"
    "tool-f-arg-l-item ::= \"<item>\" ac-1\n"
    "tool-f-arg-o ::= (\"<o>\") (tool-f-arg-o-p) space \"</o>\"\n"
    "tool-f-arg-o-p ::= (\"<p>\") ac-1\n";

#define AB                                                                                         \
    "{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\",\"minimum\":0,"      \
    "\"maximum\":9}},\"required\":[\"a\"]}"

static void test_other_tags(void **state)
{
    static const tags_case cases[] = {
        { words,
          TOOL("", AB),
          { "<f><param name=\"a\">x < y</par</param></f>",
            "<f><param name=\"a\"></param> <param name=\"b\">9</param></f>",
            "<f> <param name=\"a\"><<</p></param></f>" },
          { "<f></f>", "<f><param name=\"b\">9</param></f>", "<f><param name=\"a\">x</param>x</f>",
            "<f><param name=\"a\">x</param><param name=\"b\">10</param></f>",
            "<f><param name=\"a\">x</param><param name=\"a\">x</param></f>" } },
        { words,
          TOOL("", "{\"properties\":{\"a\":{\"enum\":[\"x\"]},\"b\":{\"unknown\":1}}}"),
          { "<f></f>", "<f><param name=\"a\">x</param></f>",
            "<f><param name=\"b\">[true]</param></f>" },
          { "<f><param name=\"a\">y</param></f>", "<f><param name=\"b\">x</param></f>" } },
        { kimi,
          TOOL("", AB),
          { "f i<|sep|><|open|>argument key=\"a\"<|sep|>x<|close|>x<|close|>argument<|sep|>end",
            "f<|sep|><|open|>argument key=\"a\"<|sep|><|close|>argument<|sep|><|open|>argument "
            "key=\"b\"<|sep|>3<|close|>argument<|sep|>end" },
          { "f<|sep|>end",
            "f<|sep|><|open|>argument key=\"b\"<|sep|>3<|close|>argument<|sep|>end" } },
        { ling,
          TOOL("", "{\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}"),
          { "f<k>a</k><v>x</v>end", "f <k>a</k> <v>x</v> end" },
          { "f<k>a</k><v>y</v>end", "fend" } },
        { nested,
          TOOL("",
               "{\"properties\":{\"l\":{\"type\":\"array\",\"items\":{\"enum\":[\"x\"]},"
               "\"minItems\":1,\"maxItems\":2},\"o\":{\"type\":\"object\",\"properties\":{\"p\":{"
               "\"const\":\"y\"}}}},\"required\":[\"l\",\"o\"]}"),
          { "f<l><item>x</</l><o><p>y</</o>", "f<l><item>x</<item>x</</l><o><p>y</</o>" },
          { "f<l></l><o><p>y</</o>", "f<l><item>y</</l><o><p>y</</o>",
            "f<l><item>x</<item>x</<item>x</</l><o><p>y</</o>",
            "f<l><item>x</</l><o><p>x</</o>" } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

static void test_as_in_python(void **state)
{
    static const tags_case cases[] = {
        { python,
          TOOL("", "{\"properties\":{\"c\":{\"type\":\"integer\"},\"a_b\":{\"enum\":[\"x\"]},\"d\":"
                   "{\"type\":\"boolean\"}},\"required\":[\"a_b\"]}"),
          { "f(a_b=\"x\")", "f( a_b=\"x\", c=3, d=True)", "f(a_b=\"x\",d=false )" },
          { "f()", "f(a_b=\"y\")", "f(a_b=\"x\",d=true,c=3)", "f(c=3)", "f(a_b=\"x\",c=\"3\")" } },
        /* without required ones: any of them, in order */
        { python,
          TOOL("", "{\"properties\":{\"c\":{\"type\":\"integer\"},\"d\":{\"type\":\"integer\"}}}"),
          { "f()", "f(c=1)", "f(d=1)", "f(c=1,d=2)" },
          { "f(d=1,c=2)", "f(c=1,)", "f(,d=1)" } },
        /* of a union the strings alone */
        { python,
          TOOL("", "{\"properties\":{\"c\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\","
                   "\"pattern\":\"^k$\"}]}},\"required\":[\"c\"]}"),
          { "f(c=\"k\")" },
          { "f(c=1)", "f(c=\"x\")" } },
        /* a choice of objects */
        { python,
          TOOL("", "{\"anyOf\":[{\"properties\":{\"c\":{\"const\":1}},\"required\":[\"c\"]},{"
                   "\"properties\":{\"d\":{\"const\":2}},\"required\":[\"d\"]}]}"),
          { "f(c=1)", "f(d=2)" },
          { "f()", "f(c=2)", "f(c=1,d=2)" } },
        { python, TOOL("", "{\"properties\":{}}"), { "f()", "f(a_b=True)" }, { 0 } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

#define Q "<|\"|>"

static void test_as_gemma_4(void **state)
{
    static const tags_case cases[] = {
        { gemma,
          TOOL("", "{\"properties\":{\"m\":{\"enum\":[\"x\"]},\"t\":{\"type\":\"string\"},\"n\":{"
                   "\"type\":\"integer\",\"minimum\":5},\"l\":{\"type\":\"array\",\"items\":{"
                   "\"type\":\"boolean\"}}},\"required\":[\"m\",\"t\"]}"),
          { "f{m:" Q "x" Q ",t:" Q "any" Q "}", "f{ m: " Q "x" Q ", t:" Q Q ",n:7,l:[true,false] }",
            "f{m:" Q "x" Q ",t:" Q Q ",l:[]}" },
          { "f{}", "f{m:" Q "y" Q ",t:" Q Q "}", "f{m:\"x\",t:" Q Q "}", "f{m:" Q "x" Q "}",
            "f{m:" Q "x" Q ",t:" Q Q ",n:4}", "f{m:" Q "x" Q ",t:" Q Q ",l:[1]}" } },
        /* objects within, a pattern, and a schema of another form */
        { gemma,
          TOOL("", "{\"properties\":{\"o\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":"
                   "\"string\",\"pattern\":\"^k+$\"}},\"required\":[\"p\"]},\"u\":{}},"
                   "\"required\":[\"o\"]}"),
          { "f{o:{p:" Q "kk" Q "}}", "f{o:{p:" Q "k" Q "},u:{x:1}}",
            "f{o:{p:" Q "k" Q "},u:" Q "a" Q "}" },
          { "f{o:{}}", "f{o:{p:" Q "x" Q "}}", "f{o:" Q "k" Q "}" } },
        /* counts of items, tuples, lengths */
        { gemma,
          TOOL("",
               "{\"properties\":{\"l\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
               "\"minItems\":2,\"maxItems\":3},\"t\":{\"prefixItems\":[{\"const\":true},{\"enum\":["
               "\"x\",7]}]},\"s\":{\"type\":\"string\",\"minLength\":2}}}"),
          { "f{l:[1,2]}", "f{l:[1,2,3]}", "f{t:[true," Q "x" Q "]}", "f{t:[true,7]}",
            "f{s:" Q "xy" Q "}" },
          { "f{l:[1]}", "f{l:[1,2,3,4]}", "f{l:[]}", "f{t:[true]}", "f{t:[true," Q "y" Q "]}",
            "f{s:" Q "x" Q "}" } },
        { gemma,
          TOOL("", "{\"properties\":{\"l\":{\"type\":\"array\",\"maxItems\":0},\"m\":{\"type\":"
                   "\"array\","
                   "\"items\":{\"type\":\"null\"},\"minItems\":1}}}"),
          { "f{l:[]}", "f{m:[null]}", "f{m:[null,null,null]}" },
          { "f{l:[1]}", "f{m:[]}" } },
        /* unions, and a schema that contains itself */
        { gemma,
          TOOL(
              "",
              "{\"properties\":{\"u\":{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"array\",\"items\":{"
              "\"type\":\"null\"}}]},\"v\":{\"type\":[\"boolean\",\"string\"]}}}"),
          { "f{u:" Q "a" Q "}", "f{u:[null]}", "f{v:true}", "f{v:" Q "any" Q "}" },
          { "f{u:" Q "b" Q "}", "f{u:[1]}", "f{v:1}" } },
        { gemma,
          TOOL("",
               "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"oneOf\":[{\"$ref\":"
               "\"#/$defs/n\"},{\"type\":\"integer\"}]}},\"required\":[\"n\"]}},\"properties\":{"
               "\"n\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"n\"]}"),
          { "f{n:{n:1}}", "f{n:{n:{n:{n:2}}}}" },
          { "f{n:1}", "f{n:{}}", "f{n:{n:{}}}" } },
        /* unions that begin with themselves, and with each other */
        { gemma,
          TOOL("",
               "{\"$defs\":{\"A\":{\"anyOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/B\"}"
               ",{\"const\":1}]},\"B\":{\"oneOf\":[{\"$ref\":\"#/$defs/A\"},{\"type\":\"object\","
               "\"properties\":{\"b\":{\"$ref\":\"#/$defs/B\"}},\"required\":[\"b\"]}]},\"C\":{"
               "\"anyOf\":[{\"$ref\":\"#/$defs/C\"}]},\"D\":{\"$ref\":\"#/$defs/D\"}},"
               "\"properties\":{\"a\":{\"$ref\":\"#/$defs/A\"},\"b\":{\"$ref\":\"#/$defs/B\"},"
               "\"c\":{\"$ref\":\"#/$defs/C\"},\"d\":{\"$ref\":\"#/$defs/D\"}}}"),
          { "f{a:1}", "f{a:{b:1},b:{b:{b:1}}}", "f{b:1}", "f{c:{x}}", "f{d:{x}}" },
          { "f{a:2}", "f{a:{b:2}}", "f{b:{}}", "f{b:{b:2}}" } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

/* A strict function is refused by the name of a keyword that the format cannot hold. */
static void test_strict_functions(void **state)
{
    static const struct {
        const char *grammar, *tools, *says;
    } cases[] = {
        { tagged,
          TOOL(",\"strict\":true", "{\"type\":\"object\",\"properties\":{\"c\":{\"type\":"
                                   "\"string\",\"format\":\"date\",\"maxLength\":3}}}"),
          "the strict function \"f\": json_schema, #/properties/c: minLength or maxLength "
          "forbids" },
        { gemma,
          TOOL(",\"strict\":true",
               "{\"type\":\"object\",\"properties\":{\"c\":{\"allOf\":[{\"type\":\"string\"}]}}}"),
          "cannot hold the keyword \"allOf\"" },
        { tagged,
          TOOL(",\"strict\":true", "{\"type\":\"object\",\"properties\":{\"d\":{\"not\":{}}}}"),
          "not supported is the keyword \"not\"" },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        quire_bytes gbnf = { 0 };
        quire_error err = QUIRE_ERROR_INIT;

        assert_int_equal(quire_schema_graft(cases[i].grammar, cases[i].tools, NULL, &gbnf, &err),
                         QUIRE_INVAL);
        if (strstr(err.message, cases[i].says) == NULL) {
            fail_msg("\"%s\" says nothing of \"%s\"", err.message, cases[i].says);
        }
        quire_bytes_fini(&gbnf);
    }
}

/* ---- schemas that are much work ---- */

static json_t *loaded(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);

    if (value == NULL) {
        fail_msg("%.200s: %s", text, why.text);
    }
    return value;
}

static json_t *copies(const char *text, unsigned n)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(json_array_append_new(list, loaded(text)), 0);
    }
    return list;
}

/* Graft a function "f"; takes the parameters. */
static int graft(const char *grammar, json_t *parameters, bool is_strict, quire_bytes *gbnf,
                 quire_error *err)
{
    json_t *tools = json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function", "function", "name",
                              "f", "strict", is_strict, "parameters", parameters);
    char *text = json_dumps(tools, JSON_COMPACT);
    int rc;

    assert_non_null(text);
    rc = quire_schema_graft(grammar, text, NULL, gbnf, err);
    free(text);
    json_decref(tools);
    return rc;
}

/* The function takes the text; takes the parameters. */
static void check_text(const char *grammar, json_t *parameters, const char *text, bool is_taken)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    if (graft(grammar, parameters, false, &gbnf, &err) < 0) {
        fail_msg("%s", err.message);
    }
    if (grammar_text_is_taken(model, gbnf.data, text) != is_taken) {
        fail_msg("%s %s:\n%.4000s", is_taken ? "not taken is" : "taken is", text, gbnf.data);
    }
    quire_bytes_fini(&gbnf);
}

/* Takes the parameters. */
static void check_strict(const char *grammar, json_t *parameters, int status, const char *says)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(graft(grammar, parameters, true, &gbnf, &err), status);
    if (status < 0 && strstr(err.message, says) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", err.message, says);
    }
    quire_bytes_fini(&gbnf);
}

#define REF_A "{\"$ref\":\"#/$defs/A\"}"

/* Definitions that name themselves ten times: 10^17 schemas. */
static void test_unions_of_themselves(void **state)
{
    static const char *const keywords[] = { "anyOf", "allOf", "oneOf" };
    static const struct {
        const char *grammar, *text;
    } forms[] = { { tagged, "f[a_b]any;/" }, { python, "f(a_b=x)" }, { gemma, "f{a_b:{}}" } };

    (void)state;
    for (size_t k = 0; k < N(keywords); k++) {
        for (size_t i = 0; i < N(forms); i++) {
            json_t *parameters =
                json_pack("{s:{s:o}, s:{s:{s:s, s:o}}}", "properties", "a_b", loaded(REF_A),
                          "$defs", "A", "type", "string", keywords[k], copies(REF_A, 10));
            quire_bytes gbnf = { 0 };
            quire_error err = QUIRE_ERROR_INIT;

            assert_int_equal(graft(forms[i].grammar, json_incref(parameters), false, &gbnf, &err),
                             QUIRE_OK);
            assert_true(gbnf.n < 4096);
            quire_bytes_fini(&gbnf);
            json_decref(parameters);
        }
    }
}

/* Unions whose members multiply: 10^9 alternatives, and texts of more than a grammar. */
static void test_unions_beside_unions(void **state)
{
    json_t *parameters = json_pack(
        "{s:{s:{s:o, s:o, s:o}}}", "properties", "u", "anyOf", copies("{\"minLength\":1}", 1000),
        "oneOf", copies("{\"maxLength\":9}", 1000), "type", copies("\"string\"", 1000));
    char *text = malloc(1u << 20);

    (void)state;
    check_text(gemma, parameters, "f{x}", true); /* the library's rule */
    memset(text, 'x', 1u << 20);
    text[(1u << 20) - 1] = '\0';
    parameters = json_pack("{s:{s:{s:o}}}", "properties", "a_b", "anyOf", copies(REF_A, 1000));
    (void)json_object_set_new(parameters, "$defs", json_pack("{s:{s:[s]}}", "A", "enum", text));
    check_text(tagged, json_incref(parameters), "f[a_b]any;/", true);
    check_text(gemma, parameters, "f{x}", true);
    free(text);
}

/* Definitions one in another, and those whose names are equal up to byte 128. */
static void test_definitions_within_definitions(void **state)
{
    json_t *defs = json_object();
    char name[200], longer[216], target[256];
    const unsigned n = 20000;

    (void)state;
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "d%u", i);
        (void)snprintf(target, sizeof target, "#/$defs/d%u", (i + 1) % n);
        (void)json_object_set_new(
            defs, name,
            json_pack("{s:s, s:{s:{s:s}}}", "type", "object", "properties", "n", "$ref", target));
    }
    check_text(
        gemma,
        json_pack("{s:{s:{s:s}}, s:O}", "properties", "n", "$ref", "#/$defs/d0", "$defs", defs),
        "f{n:{n:{n:{}}}}", true);
    check_strict(gemma,
                 json_pack("{s:s, s:{s:{s:s}}, s:o}", "type", "object", "properties", "n", "$ref",
                           "#/$defs/d0", "$defs", defs),
                 QUIRE_LIMIT, "more than");

    memset(name, 'x', 150);
    memcpy(name + 150, "a", 2);
    (void)snprintf(longer, sizeof longer, "%sa", name);
    (void)snprintf(target, sizeof target, "#/$defs/%s", name);
    defs = json_pack("{s:{s:i}, s:{s:i}}", name, "const", 1, longer, "const", 2);
    {
        json_t *parameters = json_pack("{s:{s:{s:s}, s:{s:s+}}, s:o}", "properties", "p", "$ref",
                                       target, "q", "$ref", target, "a", "$defs", defs);

        check_text(gemma, json_incref(parameters), "f{p:1,q:2}", true);
        check_text(gemma, parameters, "f{p:1,q:1}", false);
    }
}

/* A rule of 200 bytes whose name with "-item", cut, would be its own. */
static void test_names_of_rules_are_not_cut(void **state)
{
    char name[224], grammar[2048], long_name[230];

    (void)state;
    memset(name, 'x', sizeof name);
    (void)snprintf(name + 200 - strlen("tool-f-arg-"), 8, "-item");
    (void)snprintf(grammar, sizeof grammar,
                   "root ::= tool-f\ntool-f ::= (\"f\") tool-f-arg-%s\nspace ::= | \" \"\n"
                   "tool-f-arg-%s ::= (\"<l>\") (space tool-f-arg-%s-item)* \"</l>\"\n"
                   "tool-f-arg-%s-item ::= \"i\"\n",
                   name, name, name, name);
    memset(long_name, 'x', sizeof long_name);
    long_name[229] = '\0';
    check_text(
        grammar,
        json_pack("{s:{s:{s:{}}, s:{s:s}}}", "properties", name, "items", long_name, "const", "y"),
        "f<l>i</l>", true);
    check_strict(grammar,
                 json_pack("{s:s, s:{s:{s:s, s:{s:s}}}}", "type", "object", "properties", name,
                           "type", "array", "items", "type", "string"),
                 QUIRE_LIMIT, "names of more than 200 bytes");
}

static void test_strict_functions_of_too_many_alternatives(void **state)
{
    static const char one[] = "{\"type\":\"object\",\"properties\":{\"c\":{\"const\":1}}}";

    (void)state;
    check_strict(python, json_pack("{s:o}", "anyOf", copies(one, 16)), QUIRE_OK, "");
    check_strict(python, json_pack("{s:o}", "anyOf", copies(one, 17)), QUIRE_LIMIT,
                 "more than 16 members");
    check_strict(python, json_pack("{s:o, s:o}", "anyOf", copies(one, 2), "oneOf", copies(one, 2)),
                 QUIRE_INVAL, "cannot hold anyOf or oneOf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_tags),
        cmocka_unit_test(test_objects_between_tags),
        cmocka_unit_test(test_other_tags),
        cmocka_unit_test(test_as_in_python),
        cmocka_unit_test(test_as_gemma_4),
        cmocka_unit_test(test_strict_functions),
        cmocka_unit_test(test_unions_of_themselves),
        cmocka_unit_test(test_unions_beside_unions),
        cmocka_unit_test(test_definitions_within_definitions),
        cmocka_unit_test(test_names_of_rules_are_not_cut),
        cmocka_unit_test(test_strict_functions_of_too_many_alternatives),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
