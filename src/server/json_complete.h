/* json_complete.h - JSON that ends too early, made whole.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_COMPLETE_H
#define QUIRE_SERVER_JSON_COMPLETE_H

/* A JSON object that begins with the text: open strings, lists and objects are closed, and a member
 * without a value is left out. Blanks alone are {}. NULL: the text is not the beginning of an
 * object, nests too deep, or there is no memory. Memory: free(). */
char *quire_json_complete(const char *text);

#endif /* QUIRE_SERVER_JSON_COMPLETE_H */
