/* fuzz_json_schema.c - bytes as a JSON Schema: refused with a message that says where, or made into
 * a grammar that passes the check.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/grammar.h"
#include "server/json_schema.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_bytes gbnf = { 0 };
    json_t *schema = json_loadb((const char *)data, size_bytes, JSON_DECODE_ANY, NULL);
    int rc;

    if (schema == NULL) {
        return 0;
    }
    rc = quire_json_schema_grammar(schema, &gbnf, &err);
    if (rc == QUIRE_OK) {
        QUIRE_CHECK(strlen(gbnf.data) == gbnf.n);
        QUIRE_CHECK(quire_grammar_check(gbnf.data, &err) == QUIRE_OK);
    } else {
        QUIRE_CHECK(rc == QUIRE_INVAL || rc == QUIRE_LIMIT);
        QUIRE_CHECK(err.message[0] != '\0');
    }
    quire_bytes_fini(&gbnf);
    json_decref(schema);
    return 0;
}
