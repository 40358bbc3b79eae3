/* views.h - views of the cache for people: pages, sizes of sessions, regions, tenants' accounts.
 *
 * Only the engine's thread walks the cache and the tree. It makes a view in slices of some
 * microseconds between steps, within a budget of QUIRE_VIEW_SHARE of the step time. When a slice
 * takes longer, later steps have less for views. So the caller of a view waits, not the requests.
 * While nothing runs, a view is made at once. A view of a large cache under load may take a second
 * or so; pages that come or go meanwhile may be in the view or not.
 *
 * Thread: any. Calls return QUIRE_AGAIN when the engine has ended.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_VIEWS_H
#define QUIRE_ENGINE_VIEWS_H

#include <stdint.h>

#include "engine/engine.h"
#include "quire/cache.h"
#include "quire/prefix.h"

#define QUIRE_VIEW_SHARE 0.005 /* of the time of a step */

/* ---- pages ---- */

typedef enum quire_page_cell_state {
    QUIRE_PAGE_CELL_FREE = 0,
    QUIRE_PAGE_CELL_LIVE,   /* used by running sequences only */
    QUIRE_PAGE_CELL_SHARED, /* live and cached */
    QUIRE_PAGE_CELL_CACHED,
    QUIRE_PAGE_CELL_PINNED /* cached and pinned */
} quire_page_cell_state;

typedef struct quire_page_cell {
    uint64_t owner;    /* owner number of a session; 0 = none */
    uint64_t used_us;  /* last use, by the engine's clock; 0 = not in the tree */
    uint16_t n_filled; /* slots that hold tokens */
    uint8_t group;
    uint8_t state; /* quire_page_cell_state */
} quire_page_cell;

typedef struct quire_page_map {
    quire_page_cell *cells; /* [n_cells], by page id; cell 0 is no page */
    uint32_t n_cells;
    uint32_t n_in_use;
} quire_page_map;

/* Errors: QUIRE_NOMEM, QUIRE_AGAIN. Memory: end with quire_page_map_fini(), on errors too. Cost: 24
 * bytes a page while it is held. */
int quire_engine_page_map(quire_engine *engine, quire_page_map *out);
void quire_page_map_fini(quire_page_map *map);

/* ---- sessions ---- */

typedef struct quire_session_kv {
    /* in */
    const void *tenant;
    uint32_t tenant_bytes;
    const char *id;
    /* out: charge of the cached pages of its tokens; 0 if the session does not exist */
    uint64_t bytes;
    uint64_t own_bytes; /* of these, pages used by this session only */
} quire_session_kv;

int quire_engine_sessions_kv(quire_engine *engine, quire_session_kv *items, uint32_t n);

/* ---- regions and accounts ---- */

typedef struct quire_region_view {
    quire_region_id id;
    quire_region_stats stats;
} quire_region_view;

/* The open regions. Returns their number; never waits. */
uint32_t quire_engine_regions(const quire_engine *engine, quire_region_view out[QUIRE_REGIONS_MAX]);
/* The regions of one device, 0 .. quire_engine_devices_get() - 1; of a lost device, as they
 * were. */
uint32_t quire_engine_device_regions(const quire_engine *engine, uint32_t device,
                                     quire_region_view out[QUIRE_REGIONS_MAX]);

/* A device that has some of the layers of a model (quire_runtime_opts.split). */
typedef struct quire_layers_view {
    const char *name; /* as --device takes it */
    uint32_t first_layer;
    uint32_t last_layer;
    double kv_share;       /* of each budget of KV: quire_split_share() */
    uint64_t budget_bytes; /* its share of all regions' */
} quire_layers_view;

/* The devices of a split, in the order of their layers. Returns their number, 0 without one; never
 * waits. */
uint32_t quire_engine_layers(const quire_engine *engine,
                             quire_layers_view out[QUIRE_DEVICE_SPLIT_MAX]);

/* Accounts 1 .. n of quire_engine_opts.accounts, account i + 1 at i. */
int quire_engine_accounts_get(quire_engine *engine, quire_account_info *out, uint32_t n);

#endif /* QUIRE_ENGINE_VIEWS_H */
