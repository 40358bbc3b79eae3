/* finish.c - names of the ends of a request.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

const char *quire_finish_name(quire_finish finish)
{
    switch (finish) {
    case QUIRE_FINISH_NONE:
        break;
    case QUIRE_FINISH_STOP:
        return "stop";
    case QUIRE_FINISH_LENGTH:
        return "length";
    case QUIRE_FINISH_CANCEL:
        return "cancelled";
    case QUIRE_FINISH_ERROR:
        return "error";
    }
    return "none";
}
