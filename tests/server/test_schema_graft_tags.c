/* test_schema_graft_tags.c - schemas in formats that write arguments one by one: which texts their
 * grammars take.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "grammar_text.h"
#include "schema_graft_forms.h"
#include "server/schema_graft.h"

#include <stdio.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static quire_model *model;

static int setup(void **state)
{
    (void)state;
    model = grammar_text_model();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

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
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"enum\":[\"x\",\"y\\\"z\\n\"]},\"c\":{\"type\":"
                   "\"string\",\"format\":\"date\"},\"d\":{\"type\":\"integer\",\"maximum\":9}}}"),
          { "f[a_b]x;/", "f[a_b]y\"z\n;/[c]2024-02-28;/[d]9;/" },
          { "f[a_b]z;/", "f[a_b]x", "f[a_b]x;/[c]2024-2-29;/", "f[a_b]x;/[d]10;/" } },
        /* const, a pattern, a reference */
        { TAGGED,
          TOOL("", "{\"$defs\":{\"k\":{\"const\":\"v\"}},\"properties\":{\"a_b\":{\"$ref\":"
                   "\"#/$defs/k\"},\"c\":{\"type\":\"string\",\"pattern\":\"^[0-9]{2}$\"},\"d\":{"
                   "\"enum\":[3]}}}"),
          { "f[a_b]v;/[c]42;/[d]3;/" },
          { "f[a_b]w;/", "f[a_b]v;/[c]4;/", "f[a_b]v;/[d]4;/" } },
        /* no constraint, one that is not supported, and values that are not texts alone */
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\"},\"c\":{\"type\":\"string\","
                   "\"format\":\"unknown\"},\"d\":{\"multipleOf\":\"x\"}}}"),
          { "f[a_b]any;;text;/", "f[a_b];/[c]any;/[d]12;/" },
          { "f[a_b]x", "f[a_b];/[d]x;/" } },
        /* of a union the texts alone; a text and its length */
        { TAGGED,
          TOOL("",
               "{\"properties\":{\"a_b\":{\"enum\":[\"x\",1]},\"c\":{\"anyOf\":[{\"const\":"
               "\"name\"},{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"null\"}]},\"d\":{"
               "\"type\":[\"integer\",\"null\"]}}}"),
          { "f[a_b]x;/[c]name;/[d]3;/", "f[a_b]x;/[c]2024-02-28;/[d]null;/" },
          { "f[a_b]1;/", "f[a_b]x;/[c]null;/", "f[a_b]x;/[d]x;/" } },
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":4},"
                   "\"c\":{\"type\":[\"string\",\"null\"],\"minLength\":1}}}"),
          { "f[a_b]ab;/", "f[a_b]a bc;/[c]x;/", "f[a_b]a\nbc;/[c]x y;/" },
          { "f[a_b]a;/", "f[a_b]abcde;/", "f[a_b] b;/", "f[a_b]a ;/", "f[a_b]a;c;/",
            "f[a_b]ab;/[c];/" } },
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"maxLength\":1},\"c\":{\"allOf\":[{\"type\":"
                   "\"string\"},{\"maxLength\":3}]}}}"),
          { "f[a_b];/", "f[a_b]x;/[c]abc;/", "f[a_b]x;/[c];/" },
          { "f[a_b]xy;/", "f[a_b]x;/[c]abcd;/" } },
        /* unions and allOf beside keywords: the values of both, the stricter length; true is any */
        { TAGGED,
          TOOL("",
               "{\"properties\":{\"a_b\":{\"type\":\"string\",\"enum\":[\"x\",\"y\"],\"anyOf\":[{"
               "\"enum\":[\"y\",\"z\"]},{\"const\":\"w\"},{\"const\":1},false,7]},\"c\":{\"type\":"
               "\"string\",\"maxLength\":2,\"allOf\":[{\"maxLength\":5,\"minLength\":2},{"
               "\"minLength\":1}]}}}"),
          { "f[a_b]y;/", "f[a_b]y;/[c]xy;/" },
          { "f[a_b]x;/", "f[a_b]z;/", "f[a_b]w;/", "f[a_b]y;/[c]x;/", "f[a_b]y;/[c]xyz;/" } },
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\",\"maxLength\":2,\"anyOf\":[{"
                   "\"const\":\"long\"},true]},\"c\":{\"enum\":[\"a\",\"b\"],\"allOf\":[{\"enum\":["
                   "\"b\","
                   "\"c\"]},true]}}}"),
          { "f[a_b]xy;/[c]b;/", "f[a_b]long;/" },
          { "f[a_b]xyz;/", "f[a_b]x;/[c]a;/", "f[a_b]x;/[c]c;/" } },
        /* two patterns at once are any text, the same one twice is one */
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"pattern\":\"^a\",\"allOf\":[{\"pattern\":\"b$\"}]},"
                   "\"c\":{\"pattern\":\"^a$\",\"allOf\":[{\"pattern\":\"^a$\"}]}}}"),
          { "f[a_b]c;/[c]a;/" },
          { "f[a_b]c;/[c]b;/" } },
        /* places of a reference: the whole, a property, an escape, a member of a union */
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"$ref\":\"#/$defs/x~1y/anyOf/1\"},\"c\":{\"$ref\":"
                   "\"#/properties/a_b\"},\"d\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"x/y\":{"
                   "\"anyOf\":[{},{\"const\":\"v\"}]},\"n\":{\"type\":\"object\",\"properties\":{"
                   "\"a\":{\"$ref\":\"#/$defs/x~1y/anyOf/1\"},\"w\":{\"$ref\":\"#\"}}}}}"),
          { "f[a_b]v;/[c]v;/[d]{\"a\":\"v\",\"w\":{\"a_b\":\"v\"}};/" },
          { "f[a_b]w;/", "f[a_b]v;/[c]w;/", "f[a_b]v;/[d]{\"a\":\"w\"};/",
            "f[a_b]v;/[d]{\"w\":{\"a_b\":\"w\"}};/" } },
        /* values that are no counts bound nothing; nor do pairs that no text keeps to */
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\",\"maxLength\":null},\"c\":{"
                   "\"type\":\"string\",\"minLength\":2,\"maxLength\":1}}}"),
          { "f[a_b]xyz;/", "f[a_b]x;/[c]xyz;/", "f[a_b]x;/[c];/" },
          { 0 } },
        { TAGGED,
          TOOL("", "{\"properties\":{\"a_b\":{\"type\":\"string\",\"maxLength\":1.5},\"c\":{"
                   "\"type\":\"string\",\"minLength\":2001,\"maxLength\":0}}}"),
          { "f[a_b]xyz;/", "f[a_b]x;/[c];/" },
          { "f[a_b]x;/[c]x;/" } },
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
        { TAGGED,
          TOOL("",
               "{\"allOf\":[{\"$ref\":\"#/$defs/b\"}],\"$defs\":{\"b\":{\"properties\":{\"a_b\":{"
               "\"const\":\"x\"}}}}}"),
          { "f[a_b]x;/" },
          { "f[a_b]y;/" } },
        { TAGGED,
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
        { nested,
          TOOL("", "{\"properties\":{\"l\":{\"items\":{\"enum\":[\"x\"]},\"minItems\":-1,"
                   "\"maxItems\":3000},\"o\":{}},\"required\":[\"l\",\"o\"]}"),
          { "f<l></l><o><p>y</</o>", "f<l><item>x</<item>x</</l><o><p>y</</o>" },
          { "f<l><item>y</</l><o><p>y</</o>" } },
        { nested,
          TOOL("", "{\"properties\":{\"l\":{\"items\":{},\"maxItems\":0},\"o\":{}},\"required\":["
                   "\"l\",\"o\"]}"),
          { "f<l></l><o><p>y</</o>" },
          { "f<l><item>y</</l><o><p>y</</o>" } },
        /* tuples and other items differ: any; like them: these */
        { nested,
          TOOL("",
               "{\"properties\":{\"l\":{\"prefixItems\":[{\"const\":\"x\"}],\"items\":{\"const\":"
               "\"y\"}},\"o\":{}},\"required\":[\"l\",\"o\"]}"),
          { "f<l><item>x</<item>y</</l><o><p>y</</o>" },
          { 0 } },
        { nested,
          TOOL("",
               "{\"properties\":{\"l\":{\"prefixItems\":[{\"const\":\"x\"}],\"items\":{\"const\":"
               "\"x\"}},\"o\":{}},\"required\":[\"l\",\"o\"]}"),
          { "f<l><item>x</<item>x</</l><o><p>y</</o>" },
          { "f<l><item>x</<item>y</</l><o><p>y</</o>" } },
        { "root ::= tool-f\nspace ::= | \" \"\n"
          "tool-f ::= (\"f\") space tool-f-arg-o\n"
          "tool-f-arg-o ::= (\"<o>\") tool-f-arg-o-schema \"</o>\"\n"
          "tool-f-arg-o-schema ::= \"{\\\"schema\\\":1}\"\n",
          TOOL("", "{\"properties\":{\"o\":{\"properties\":{\"schema\":{\"const\":2}}}}}"),
          { "f<o>{\"schema\":2}</o>" },
          { "f<o>{\"schema\":1}</o>" } },
        /* an object with one property, called "schema" */
        { "root ::= tool-f\nspace ::= | \" \"\nac-1 ::= [<] ac-1-01 | [^<] ac-1\nac-1-01 ::= [/]\n"
          "tool-f ::= (\"f\") space tool-f-arg-o\n"
          "tool-f-arg-o ::= (\"<o>\") (tool-f-arg-o-schema) space \"</o>\"\n"
          "tool-f-arg-o-schema ::= (\"<\" \"schema\" \">\") ac-1\n",
          TOOL("", "{\"properties\":{\"o\":{\"properties\":{\"schema\":{\"const\":\"x\"}}}}}"),
          { "f<o><schema>x</</o>" },
          { "f<o><schema>y</</o>", "f<o>{\"schema\":\"x\"}</o>" } },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        check(&cases[i]);
    }
}

static void test_as_in_python(void **state)
{
    static const tags_case cases[] = {
        { PYTHON,
          TOOL("", "{\"properties\":{\"c\":{\"type\":\"integer\"},\"a_b\":{\"enum\":[\"x\"]},\"d\":"
                   "{\"type\":\"boolean\"}},\"required\":[\"a_b\"]}"),
          { "f(a_b=\"x\")", "f( a_b=\"x\", c=3, d=True)", "f(a_b=\"x\",d=false )" },
          { "f()", "f(a_b=\"y\")", "f(a_b=\"x\",d=true,c=3)", "f(c=3)", "f(a_b=\"x\",c=\"3\")" } },
        /* without required ones: any of them, in order */
        { PYTHON,
          TOOL("", "{\"properties\":{\"c\":{\"type\":\"integer\"},\"d\":{\"type\":\"integer\"}}}"),
          { "f()", "f(c=1)", "f(d=1)", "f(c=1,d=2)" },
          { "f(d=1,c=2)", "f(c=1,)", "f(,d=1)" } },
        /* of a union the strings alone */
        { PYTHON,
          TOOL("", "{\"properties\":{\"c\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\","
                   "\"pattern\":\"^k$\"}]}},\"required\":[\"c\"]}"),
          { "f(c=\"k\")" },
          { "f(c=1)", "f(c=\"x\")" } },
        /* a choice of objects */
        { PYTHON,
          TOOL("", "{\"anyOf\":[{\"properties\":{\"c\":{\"const\":1}},\"required\":[\"c\"]},{"
                   "\"properties\":{\"d\":{\"const\":2}},\"required\":[\"d\"]}]}"),
          { "f(c=1)", "f(d=2)" },
          { "f()", "f(c=2)", "f(c=1,d=2)" } },
        { PYTHON, TOOL("", "{\"properties\":{}}"), { "f()", "f(a_b=True)" }, { 0 } },
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
        { GEMMA,
          TOOL("", "{\"properties\":{\"m\":{\"enum\":[\"x\"]},\"t\":{\"type\":\"string\"},\"n\":{"
                   "\"type\":\"integer\",\"minimum\":5},\"l\":{\"type\":\"array\",\"items\":{"
                   "\"type\":\"boolean\"}}},\"required\":[\"m\",\"t\"]}"),
          { "f{m:" Q "x" Q ",t:" Q "any" Q "}", "f{ m: " Q "x" Q ", t:" Q Q ",n:7,l:[true,false] }",
            "f{m:" Q "x" Q ",t:" Q Q ",l:[]}" },
          { "f{}", "f{m:" Q "y" Q ",t:" Q Q "}", "f{m:\"x\",t:" Q Q "}", "f{m:" Q "x" Q "}",
            "f{m:" Q "x" Q ",t:" Q Q ",n:4}", "f{m:" Q "x" Q ",t:" Q Q ",l:[1]}" } },
        /* objects within, a pattern, and a schema of another form */
        { GEMMA,
          TOOL("", "{\"properties\":{\"o\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":"
                   "\"string\",\"pattern\":\"^k+$\"}},\"required\":[\"p\"]},\"u\":{}},"
                   "\"required\":[\"o\"]}"),
          { "f{o:{p:" Q "kk" Q "}}", "f{o:{p:" Q "k" Q "},u:{x:1}}",
            "f{o:{p:" Q "k" Q "},u:" Q "a" Q "}" },
          { "f{o:{}}", "f{o:{p:" Q "x" Q "}}", "f{o:" Q "k" Q "}" } },
        /* counts of items, tuples, lengths */
        { GEMMA,
          TOOL("",
               "{\"properties\":{\"l\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
               "\"minItems\":2,\"maxItems\":3},\"t\":{\"prefixItems\":[{\"const\":true},{\"enum\":["
               "\"x\",7]}]},\"s\":{\"type\":\"string\",\"minLength\":2}}}"),
          { "f{l:[1,2]}", "f{l:[1,2,3]}", "f{t:[true," Q "x" Q "]}", "f{t:[true,7]}",
            "f{s:" Q "xy" Q "}" },
          { "f{l:[1]}", "f{l:[1,2,3,4]}", "f{l:[]}", "f{t:[true]}", "f{t:[true," Q "y" Q "]}",
            "f{s:" Q "x" Q "}" } },
        { GEMMA,
          TOOL("", "{\"properties\":{\"l\":{\"type\":\"array\",\"maxItems\":0},\"m\":{\"type\":"
                   "\"array\","
                   "\"items\":{\"type\":\"null\"},\"minItems\":1}}}"),
          { "f{l:[]}", "f{m:[null]}", "f{m:[null,null,null]}" },
          { "f{l:[1]}", "f{m:[]}" } },
        { GEMMA,
          TOOL("",
               "{\"properties\":{\"l\":{\"items\":{\"type\":\"null\"},\"maxItems\":null},\"m\":{"
               "\"items\":{\"type\":\"null\"},\"minItems\":3,\"maxItems\":2},\"n\":{\"items\":{"
               "\"type\":\"null\"},\"minItems\":-1,\"maxItems\":2001},\"o\":{\"items\":{\"const\":"
               "1},\"maxItems\":1}}}"),
          { "f{l:[null]}", "f{m:[]}", "f{m:[null]}", "f{n:[null,null]}", "f{o:[1]}" },
          { "f{l:[1]}", "f{m:[1]}", "f{n:[1]}", "f{o:[1,1]}" } },
        /* values of another type; an object without properties; a tuple of another number */
        { GEMMA,
          TOOL("",
               "{\"properties\":{\"e\":{\"type\":\"string\",\"enum\":[\"a\",null]},\"o\":{\"type\":"
               "\"object\",\"additionalProperties\":false},\"t\":{\"prefixItems\":[{\"const\":1}],"
               "\"minItems\":2}}}"),
          { "f{e:" Q "a" Q "}", "f{o:{}}", "f{t:{x}}" },
          { "f{e:null}", "f{o:{x}}", "f{t:[1]}" } },
        /* keywords beside a union */
        { GEMMA,
          TOOL("", "{\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":2,\"oneOf\":[{"
                   "\"minLength\":1}]},\"n\":{\"type\":[\"integer\",\"null\"],\"anyOf\":[{\"type\":"
                   "\"integer\"}]}}}"),
          { "f{s:" Q "xy" Q "}", "f{n:1}" },
          { "f{s:" Q "x" Q "}", "f{n:null}" } },
        /* unions, and a schema that contains itself */
        { GEMMA,
          TOOL(
              "",
              "{\"properties\":{\"u\":{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"array\",\"items\":{"
              "\"type\":\"null\"}}]},\"v\":{\"type\":[\"boolean\",\"string\"]}}}"),
          { "f{u:" Q "a" Q "}", "f{u:[null]}", "f{v:true}", "f{v:" Q "any" Q "}" },
          { "f{u:" Q "b" Q "}", "f{u:[1]}", "f{v:1}" } },
        { GEMMA,
          TOOL("",
               "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"oneOf\":[{\"$ref\":"
               "\"#/$defs/n\"},{\"type\":\"integer\"}]}},\"required\":[\"n\"]}},\"properties\":{"
               "\"n\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"n\"]}"),
          { "f{n:{n:1}}", "f{n:{n:{n:{n:2}}}}" },
          { "f{n:1}", "f{n:{}}", "f{n:{n:{}}}" } },
        /* unions that begin with themselves, and with each other */
        { GEMMA,
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
        { TAGGED,
          TOOL(",\"strict\":true", "{\"type\":\"object\",\"properties\":{\"c\":{\"type\":"
                                   "\"string\",\"format\":\"date\",\"maxLength\":3}}}"),
          "the strict function \"f\": json_schema, #/properties/c: minLength or maxLength "
          "forbids" },
        { GEMMA,
          TOOL(",\"strict\":true",
               "{\"type\":\"object\",\"properties\":{\"c\":{\"allOf\":[{\"type\":\"string\"}]}}}"),
          "cannot hold the keyword \"allOf\"" },
        { GEMMA,
          TOOL(",\"strict\":true",
               "{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"object\","
               "\"additionalProperties\":{\"type\":\"integer\"}}}}"),
          "cannot hold the keyword \"additionalProperties\"" },
        { GEMMA,
          TOOL(",\"strict\":true",
               "{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"object\","
               "\"minProperties\":1}}}"),
          "cannot hold the keyword \"minProperties\"" },
        { GEMMA,
          TOOL(",\"strict\":true", "{\"type\":\"object\",\"properties\":{\"c\":{\"prefixItems\":[{"
                                   "\"const\":1}],\"items\":{},\"minItems\":2}}}"),
          "cannot hold the keyword \"minItems\"" },
        { TAGGED,
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_tags), cmocka_unit_test(test_objects_between_tags),
        cmocka_unit_test(test_other_tags),   cmocka_unit_test(test_as_in_python),
        cmocka_unit_test(test_as_gemma_4),   cmocka_unit_test(test_strict_functions),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
