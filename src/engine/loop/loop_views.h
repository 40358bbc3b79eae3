/* loop_views.h - the loop's part of views.h.
 *
 * Thread: any but the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_VIEWS_H
#define QUIRE_ENGINE_LOOP_VIEWS_H

#include "engine/loop/loop.h"
#include "engine/views.h"

int quire_loop_page_map(quire_loop *loop, quire_page_map *out);
int quire_loop_sessions_kv(quire_loop *loop, quire_session_kv *items, uint32_t n);
uint32_t quire_loop_regions(const quire_loop *loop, quire_region_view out[QUIRE_REGIONS_MAX]);
int quire_loop_accounts_get(quire_loop *loop, quire_account_info *out, uint32_t n);

#endif /* QUIRE_ENGINE_LOOP_VIEWS_H */
