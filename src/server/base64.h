/* base64.h - bytes as base64 (RFC 4648), for replies.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_BASE64_H
#define QUIRE_SERVER_BASE64_H

#include <stddef.h>

#include "base/bytes.h"

/* Append n bytes as base64 with padding. Errors: QUIRE_NOMEM. */
int quire_base64_add(quire_bytes *out, const void *data, size_t n);

#endif /* QUIRE_SERVER_BASE64_H */
