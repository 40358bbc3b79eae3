/* valkey_tls.c - see valkey_tls.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_tls.h"

#include <stdio.h>

#ifdef QUIRE_HAS_OPENSSL
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

struct quire_vk_tls {
    SSL_CTX *ctx;
};

struct quire_vk_session {
    SSL *ssl;
    char why[96];
};

static int file_refused(quire_error *err, const char *what, const char *path)
{
    char why[128];

    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    ERR_clear_error();
    return quire_error_set(err, QUIRE_IO, "%s: %.200s cannot be used: %s", what, path, why);
}

static int files_read(SSL_CTX *ctx, const quire_vk_tls_opts *opts, quire_error *err)
{
    if (opts->ca_file == NULL) {
        (void)SSL_CTX_set_default_verify_paths(ctx);
    } else if (SSL_CTX_load_verify_locations(ctx, opts->ca_file, NULL) != 1) {
        return file_refused(err, "store_tls_ca", opts->ca_file);
    }
    if (opts->cert_file != NULL && SSL_CTX_use_certificate_chain_file(ctx, opts->cert_file) != 1) {
        return file_refused(err, "store_tls_cert", opts->cert_file);
    }
    if (opts->key_file != NULL &&
        SSL_CTX_use_PrivateKey_file(ctx, opts->key_file, SSL_FILETYPE_PEM) != 1) {
        return file_refused(err, "store_tls_key", opts->key_file);
    }
    return QUIRE_OK;
}

int quire_vk_tls_new(quire_vk_tls **out, const quire_vk_tls_opts *opts, quire_error *err)
{
    quire_vk_tls *tls = calloc(1, sizeof *tls);
    int rc;

    *out = NULL;
    if (tls == NULL || (tls->ctx = SSL_CTX_new(TLS_client_method())) == NULL) {
        free(tls);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for TLS");
    }
    (void)SSL_CTX_set_min_proto_version(tls->ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(tls->ctx, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_mode(tls->ctx,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    rc = files_read(tls->ctx, opts, err);
    if (rc < 0) {
        quire_vk_tls_free(tls);
        return rc;
    }
    *out = tls;
    return QUIRE_OK;
}

void quire_vk_tls_free(quire_vk_tls *tls)
{
    if (tls != NULL) {
        SSL_CTX_free(tls->ctx);
        free(tls);
    }
}

quire_vk_session *quire_vk_session_new(quire_vk_tls *tls, int fd, const char *host)
{
    quire_vk_session *s = calloc(1, sizeof *s);
    bool has_name;

    if (s == NULL || (s->ssl = SSL_new(tls->ctx)) == NULL) {
        free(s);
        return NULL;
    }
    has_name = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s->ssl), host) == 1;
    /* Names stand in the list of names, not in the subject (RFC 9525). */
    SSL_set_hostflags(s->ssl, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (!has_name) {
        /* SSL_set_tlsext_host_name() casts const away, of which clang warns. */
        has_name = SSL_set1_host(s->ssl, host) == 1 &&
                   SSL_ctrl(s->ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                            (void *)(uintptr_t)host) == 1;
    }
    if (!has_name || SSL_set_fd(s->ssl, fd) != 1) {
        quire_vk_session_free(s);
        return NULL;
    }
    SSL_set_connect_state(s->ssl);
    return s;
}

void quire_vk_session_free(quire_vk_session *s)
{
    if (s != NULL) {
        SSL_free(s->ssl);
        free(s);
    }
}

static ssize_t result_of(quire_vk_session *s, int n, bool *wants_write)
{
    const int error = n > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, n);
    const long verify = SSL_get_verify_result(s->ssl);

    *wants_write = error == SSL_ERROR_WANT_WRITE;
    if (n > 0 || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        return n > 0 ? n : 0;
    }
    if (verify != X509_V_OK) {
        (void)snprintf(s->why, sizeof s->why, "certificate: %s",
                       X509_verify_cert_error_string(verify));
    } else {
        const char *reason = ERR_reason_error_string(ERR_peek_error());

        (void)snprintf(s->why, sizeof s->why, "TLS: %s",
                       reason != NULL ? reason : "the server closed the connection");
    }
    ERR_clear_error();
    return -1;
}

ssize_t quire_vk_session_handshake(quire_vk_session *s, bool *wants_write)
{
    ERR_clear_error();
    return result_of(s, SSL_do_handshake(s->ssl), wants_write);
}

ssize_t quire_vk_session_read(quire_vk_session *s, void *out, size_t n, bool *wants_write)
{
    ERR_clear_error();
    return result_of(s, SSL_read(s->ssl, out, n < INT_MAX ? (int)n : INT_MAX), wants_write);
}

ssize_t quire_vk_session_write(quire_vk_session *s, const void *data, size_t n, bool *wants_write)
{
    ERR_clear_error();
    return result_of(s, SSL_write(s->ssl, data, n < INT_MAX ? (int)n : INT_MAX), wants_write);
}

void quire_vk_session_why(const quire_vk_session *s, char *out, size_t n)
{
    (void)snprintf(out, n, "%s", s->why);
}

#else

int quire_vk_tls_new(quire_vk_tls **out, const quire_vk_tls_opts *opts, quire_error *err)
{
    (void)opts;
    *out = NULL;
    return quire_error_set(err, QUIRE_UNSUPP,
                           "this build has no TLS for stores: it was made without OpenSSL (package "
                           "libssl-dev)");
}

void quire_vk_tls_free(quire_vk_tls *tls)
{
    (void)tls;
}

quire_vk_session *quire_vk_session_new(quire_vk_tls *tls, int fd, const char *host)
{
    (void)tls;
    (void)fd;
    (void)host;
    return NULL;
}

void quire_vk_session_free(quire_vk_session *session)
{
    (void)session;
}

static ssize_t none(bool *wants_write)
{
    *wants_write = false;
    return -1;
}

ssize_t quire_vk_session_handshake(quire_vk_session *session, bool *wants_write)
{
    (void)session;
    return none(wants_write);
}

ssize_t quire_vk_session_read(quire_vk_session *session, void *out, size_t n, bool *wants_write)
{
    (void)session;
    (void)out;
    (void)n;
    return none(wants_write);
}

ssize_t quire_vk_session_write(quire_vk_session *session, const void *data, size_t n,
                               bool *wants_write)
{
    (void)session;
    (void)data;
    (void)n;
    return none(wants_write);
}

void quire_vk_session_why(const quire_vk_session *session, char *out, size_t n)
{
    (void)session;
    (void)snprintf(out, n, "no TLS");
}
#endif
