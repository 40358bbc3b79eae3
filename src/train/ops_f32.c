/* ops_f32.c - the operations in single precision; see ops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/ops.h"

#include "base/check.h"

#include "train/as_f32_body.h"

#include "train/ops_body.h"

#include "train/attention_ops_body.h"

#include "train/loss_ops_body.h"
