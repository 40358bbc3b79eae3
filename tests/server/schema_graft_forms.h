/* schema_graft_forms.h - grammars of formats that write arguments one by one, of a function "f".
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SCHEMA_GRAFT_FORMS_H
#define QUIRE_TESTS_SCHEMA_GRAFT_FORMS_H

/* Between tags, as the library writes it. A text ends at ";/": the rules ac-1 include this tag, the
 * rules until-2 do not. */
#define TAGGED                                                                                     \
    "ac-1 ::= [;] ac-1-01 | [^;] ac-1\n"                                                           \
    "ac-1-01 ::= [;] ac-1-01 | [/] | [^;/] ac-1\n"                                                 \
    "until-2 ::= | [;] until-2-01 | [^;] until-2\n"                                                \
    "until-2-01 ::= | [;] until-2-01 | [^;/] until-2\n"                                            \
    "string-arg ::= ac-1\n"                                                                        \
    "integer ::= [0-9]+\n"                                                                         \
    "root ::= tool-f\n"                                                                            \
    "tool-f ::= (\"f\") tool-f-arg-a-b tool-f-arg-c? tool-f-arg-d?\n"                              \
    "tool-f-arg-a-b ::= (\"[\" \"a_b\" \"]\") string-arg\n"                                        \
    "tool-f-arg-c ::= (\"[\" \"c\" \"]\") until-2 \";/\"\n"                                        \
    "tool-f-arg-d ::= (\"[\" \"d\" \"]\") integer \";/\"\n"

/* Values as in Python, and as Gemma 4 writes them. */
#define PYTHON                                                                                     \
    "python-or-json-value ::= [a-z0-9\"'TF]+\nroot ::= tool-f\n"                                   \
    "tool-f ::= (\"f\" \"(\") ((\"a_b\" \"=\") python-or-json-value)* \")\"\nspace ::= | \" \"\n"
#define GEMMA                                                                                      \
    "gemma4-dict ::= \"{\" [^}]* \"}\"\ngemma4-string ::= \"<|\\\"|>\" "                           \
    "[a-z]* \"<|\\\"|>\"\ngemma4-value ::= gemma4-string | gemma4-dict\n"                          \
    "root ::= tool-f\ntool-f ::= (\"f\") gemma4-dict\nspace ::= | \" \"\n"                         \
    "unused ::= gemma4-value\n"

#endif /* QUIRE_TESTS_SCHEMA_GRAFT_FORMS_H */
