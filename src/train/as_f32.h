/* as_f32.h - from here on the templates of src/train (_decl.h, _body.h) mean single precision.
 * Included any number of times: it says a type and a name, nothing else.
 *
 * SPDX-License-Identifier: MIT */
#undef real
#undef QT
#undef QT_IS_DOUBLE
#define real         float
#define QT(name)     quire_f32_##name
#define QT_IS_DOUBLE 0
