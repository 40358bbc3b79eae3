/* ops_f64.c - the operations in double precision; see ops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/ops.h"

#include "base/check.h"

#include "train/as_f64_body.h"

#include "train/ops_body.h"

#include "train/attention_ops_body.h"

#include "train/loss_ops_body.h"
