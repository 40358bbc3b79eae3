/* model_pass_f32.c - passes in single precision; see model_pass.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/model_pass.h"

#include "base/check.h"

#include "train/as_f32_body.h"

#include "train/model_memory_body.h"

#include "train/model_choice_body.h"

#include "train/model_pass_body.h"

#include "train/model_back_body.h"
