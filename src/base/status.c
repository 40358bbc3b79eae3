/* status.c - names, texts and HTTP codes of the status table.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/status.h"

const char *quire_status_name(int status)
{
    switch (status) {
#define X(sym, val, http, label, text)                                                             \
    case (val):                                                                                    \
        return (label);
        QUIRE_STATUS_MAP(X)
#undef X
    default:
        return "unknown";
    }
}

const char *quire_status_text(int status)
{
    switch (status) {
#define X(sym, val, http, label, text)                                                             \
    case (val):                                                                                    \
        return (text);
        QUIRE_STATUS_MAP(X)
#undef X
    default:
        return "unknown status";
    }
}

int quire_status_http(int status)
{
    switch (status) {
#define X(sym, val, http, label, text)                                                             \
    case (val):                                                                                    \
        return (http);
        QUIRE_STATUS_MAP(X)
#undef X
    default:
        return 500;
    }
}
