/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options_check.h"
#include "engine/placement.h"

#include "base/types.h"
#include "engine/device.h"
#include "engine/units.h"
#include "offload/numa.h"

#include <stdlib.h>
#include <string.h>

static int later(const char *label, const char *text, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL, "%s: '%s' is not available in this version", label, text);
}

static bool all_digits(const char *text)
{
    size_t n = strspn(text, "0123456789");
    return n > 0 && n <= 9 && !text[n];
}

int aq_check_device(const char *label, const char *text, struct aq_err *reterr)
{
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0)
        return 0;
    if (strcmp(text, "cuda") == 0 || (strncmp(text, "cuda:", 5) == 0 && all_digits(text + 5)))
        return aq_error(reterr, -ENODEV, "%s: '%s' cannot be used: %s", label, text,
                        aq_device_cuda_reason());
    return aq_error(reterr, -EINVAL, "%s: expected auto, cpu, cuda or cuda:N, found '%s'", label,
                    text);
}

int aq_check_kv_policy(const char *label, const char *text, struct aq_err *reterr)
{
    static const char *const known[] = {"h2o", "window", "heavy"};
    if (strcmp(text, "full") == 0)
        return 0;
    size_t n = strcspn(text, ":");
    for (size_t i = 0; i < AQ_ARRAY_LEN(known); i++) {
        if (strlen(known[i]) == n && strncmp(text, known[i], n) == 0)
            return later(label, text, reterr);
    }
    return aq_error(reterr, -EINVAL, "%s: expected full, found '%s'", label, text);
}

int aq_check_kv_budget(const char *label, const char *text, struct aq_err *reterr)
{
    if (strcmp(text, "1") == 0)
        return aq_error(reterr, -EINVAL,
                        "%s: '1' could mean 100 %% or one token; write 1.0 or 100%% for the whole "
                        "sequence",
                        label);
    size_t n = strlen(text);
    char number[64];
    bool percent = n > 0 && text[n - 1] == '%';
    double x;
    if (n - percent >= sizeof(number))
        return aq_error(reterr, -EINVAL, "%s: expected a share (0.2, 20%%) or slots, found '%s'",
                        label, text);
    memcpy(number, text, n - percent);
    number[n - percent] = '\0';
    if (!aq_parse_real(number, &x) || x <= 0)
        return aq_error(reterr, -EINVAL, "%s: expected a share (0.2, 20%%) or slots, found '%s'",
                        label, text);
    bool share = percent || strpbrk(number, ".eE");
    if (share && x > (percent ? 100 : 1))
        return aq_error(reterr, -EINVAL, "%s: expected a share of at most 100 %%, found '%s'",
                        label, text);
    return share && x == (percent ? 100 : 1) ? 0 : later(label, text, reterr);
}

int aq_check_numa(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_numa_choice choice;
    return aq_numa_parse(text, &choice)
               ? 0
               : aq_error(reterr, -EINVAL, "%s: expected auto, off or a node's number, found '%s'",
                          label, text);
}

int aq_check_link(const char *label, const char *text, struct aq_err *reterr)
{
    uint64_t bytes_per_s[2];
    return aq_link_parse(bytes_per_s, label, text, reterr);
}

int aq_check_placement(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_placement placement;
    return strcmp(text, "auto") == 0 ? 0 : aq_placement_parse(&placement, label, text, reterr);
}
