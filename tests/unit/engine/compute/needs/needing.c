/* SPDX-License-Identifier: Apache-2.0 */
int aq_needed(void);
int aq_needing(void);

int aq_needing(void)
{
    return aq_needed() + 1;
}
