/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 63 };

static char fold(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '_' ? '-' : c;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment: F. J. Damerau, "A technique for computer detection and correction of
 * spelling errors", CACM 7(3), 1964, computed row by row with the two rows before kept. */
uint32_t aq_edit_distance(const char *a, const char *b)
{
    assert(a && b);
    size_t a_count = strnlen(a, WORD_MAX), b_count = strnlen(b, WORD_MAX);
    uint32_t rows[3][WORD_MAX + 1];
    uint32_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_count; j++)
        above[j] = (uint32_t)j;
    for (size_t i = 1; i <= a_count; i++) {
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= b_count; j++) {
            char ca = fold(a[i - 1]), cb = fold(b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == fold(b[j - 2]) && fold(a[i - 2]) == cb &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        uint32_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b_count];
}

/* Whether the name begins with the word: "gen" is an unfinished "generate", however many letters
 * are missing. */
static bool begins_with(const char *name, const char *word)
{
    size_t i = 0;
    while (word[i] && fold(name[i]) == fold(word[i]))
        i++;
    return i >= 2 && !word[i];
}

const char *aq_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    uint32_t best_edits = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        if (!names[i])
            continue;
        uint32_t edits = aq_edit_distance(word, names[i]);
        if (edits > 1 && begins_with(names[i], word))
            edits = 1;
        if (edits < best_edits) {
            best = names[i];
            best_edits = edits;
        }
    }
    return best;
}
