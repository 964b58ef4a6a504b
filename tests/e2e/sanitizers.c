/* SPDX-License-Identifier: Apache-2.0
 * Does what a sanitizer has to stop, by its name: overflow, beyond, leak.  With another name
 * nothing is wrong, and the exit status is 0. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int most = INT_MAX;

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    char *volatile bytes = malloc(16);
    if (!bytes)
        return 1;
    memset(bytes, 0, 16);
    if (strcmp(what, "overflow") == 0)
        printf("%d\n", most + argc);
    if (strcmp(what, "beyond") == 0)
        printf("%d\n", bytes[14 + argc]);
    if (strcmp(what, "leak") == 0)
        bytes = NULL;
    free(bytes);
    return 0;
}
