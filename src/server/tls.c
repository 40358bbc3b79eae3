/* tls.c - see tls.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/tls.h"

#include "base/bytes.h"
#include "base/check.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a PEM file, which must hold `what`. Memory: free(). */
static int read_pem(const char *path, const char *name, const char *what, char **out,
                    quire_error *err)
{
    FILE *file = fopen(path, "rbe");
    quire_bytes text = { 0 };
    char block[4096];
    size_t n;
    int rc = QUIRE_OK;

    if (file == NULL) {
        return quire_error_set_errno(err, errno, "%s: cannot read %s", name, path);
    }
    while (rc == QUIRE_OK && (n = fread(block, 1, sizeof block, file)) > 0) {
        rc = quire_bytes_add(&text, block, n);
        if (text.n > QUIRE_TLS_FILE_BYTES_MAX) {
            rc = quire_error_set(err, QUIRE_LIMIT, "%s: %s is larger than 1 MiB", name, path);
        }
    }
    if (rc == QUIRE_OK && ferror(file)) {
        rc = quire_error_set_errno(err, errno, "%s: cannot read %s", name, path);
    }
    (void)fclose(file);
    if (rc == QUIRE_OK && (text.n == 0 || strstr(text.data, what) == NULL)) {
        rc = quire_error_set(err, QUIRE_INVAL, "%s: there is no \"%s\" in %s, PEM is expected",
                             name, what, path);
    }
    if (rc == QUIRE_NOMEM) {
        (void)quire_error_set(err, rc, "out of memory");
    }
    if (rc < 0) {
        quire_bytes_fini(&text);
        return rc;
    }
    *out = text.data;
    return QUIRE_OK;
}

int quire_tls_read(quire_tls *tls, const char *cert_path, const char *key_path, quire_error *err)
{
    int rc;

    *tls = (quire_tls){ NULL, NULL };
    if (cert_path == NULL && key_path == NULL) {
        return QUIRE_OK;
    }
    if (cert_path == NULL || key_path == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s is missing: TLS takes tls_cert and tls_key",
                               cert_path == NULL ? "tls_cert" : "tls_key");
    }
    if (MHD_is_feature_supported(MHD_FEATURE_SSL) != MHD_YES) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "tls_cert: libmicrohttpd was built without GnuTLS; let a proxy "
                               "speak TLS");
    }
    QUIRE_TRY(read_pem(cert_path, "tls_cert", "-----BEGIN CERTIFICATE-----", &tls->cert, err));
    rc = read_pem(key_path, "tls_key", "PRIVATE KEY-----", &tls->key, err);
    if (rc < 0) {
        quire_tls_fini(tls);
    }
    return rc;
}

bool quire_tls_is_on(const quire_tls *tls)
{
    return tls->cert != NULL;
}

void quire_tls_fini(quire_tls *tls)
{
    free(tls->cert);
    free(tls->key);
    *tls = (quire_tls){ NULL, NULL };
}
