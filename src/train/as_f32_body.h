/* as_f32_body.h - from here on the templates of src/train (_decl.h, _body.h) mean single precision.
 * A file may include it several times, in turns with as_f64_body.h.
 *
 * SPDX-License-Identifier: MIT */
#undef real
#undef QT
#undef QT_IS_DOUBLE
#define real         float
#define QT(name)     quire_f32_##name
#define QT_IS_DOUBLE 0
