/* SPDX-License-Identifier: Apache-2.0 */
int aq_needed(void);

int aq_needed(void)
{
    return 42;
}
