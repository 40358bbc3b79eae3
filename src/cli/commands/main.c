/* main.c - the quire program.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"

int main(int argc, char **argv)
{
    return quire_main(argc, argv);
}
