/* layers_card.h - ggml's device on the card of vulkan0, for layers of a model (-ngl).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_LAYERS_CARD_H
#define QUIRE_TESTS_LAYERS_CARD_H

#include <ggml-backend.h>

/* The device, opened once for the process. NULL, and a line with the reason: there is no vulkan0,
 * or the build has no backend of ggml's for it. */
ggml_backend_dev_t card_of_vulkan0(void);

#endif /* QUIRE_TESTS_LAYERS_CARD_H */
