/* as_f64_body.h - from here on the templates of src/train (_decl.h, _body.h) mean double precision.
 * Training runs in single precision; finite differences check this build of the same code.
 *
 * SPDX-License-Identifier: MIT */
#undef real
#undef QT
#undef QT_IS_DOUBLE
#define real         double
#define QT(name)     quire_f64_##name
#define QT_IS_DOUBLE 1
