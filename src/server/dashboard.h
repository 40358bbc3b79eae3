/* dashboard.h - the pages of web/, put into the program at build time (cmake/embed.cmake):
 * index.html, the dashboard, and chat.html, a page to talk to the model on.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_DASHBOARD_H
#define QUIRE_SERVER_DASHBOARD_H

#include <stddef.h>

extern const unsigned char quire_dashboard_page[];
extern const size_t quire_dashboard_page_bytes;
extern const unsigned char quire_chat_page[];
extern const size_t quire_chat_page_bytes;

#endif /* QUIRE_SERVER_DASHBOARD_H */
