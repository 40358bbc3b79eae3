/* dashboard.h - web/index.html, put into the program at build time (cmake/embed.cmake).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_DASHBOARD_H
#define QUIRE_SERVER_DASHBOARD_H

#include <stddef.h>

extern const unsigned char quire_dashboard_page[];
extern const size_t quire_dashboard_page_bytes;

#endif /* QUIRE_SERVER_DASHBOARD_H */
