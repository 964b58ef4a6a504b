/* SPDX-License-Identifier: Apache-2.0
 * Codes of W in 16 bits, for products on codes without VNNI: pairs along K, as int8's panels have
 * them.  Included once, behind spread and nibbles. */

VEC_FN void codes_spread8(uint8_t *dst, const uint8_t *src, uint32_t n)
{
    uint32_t pairs = (uint32_t)aq_div_up(n, 2);
    for (uint32_t i = 0; i < pairs; i++) {
        spread(dst + (size_t)i * AQ_PANEL_ROWS * 4, src + (size_t)i * AQ_PANEL_ROWS * 2);
        spread(dst + (size_t)i * AQ_PANEL_ROWS * 4 + 128, src + (size_t)i * AQ_PANEL_ROWS * 2 + 64);
    }
    memset(dst + (size_t)pairs * AQ_PANEL_ROWS * 4, 0,
           (AQ_GROUP_K / 2 - pairs) * (size_t)AQ_PANEL_ROWS * 4);
}

VEC_FN void codes_spread4(uint8_t *dst, const uint8_t *src, uint32_t n)
{
    uint32_t words = (uint32_t)aq_div_up(n, 16);
    for (uint32_t j = 0; j < words; j++) {
        for (uint32_t i = 0; i < 8; i++) {
            for (uint32_t row = 0; row < AQ_PANEL_ROWS; row += 8)
                nibbles(dst + (((size_t)j * 8 + i) * AQ_PANEL_ROWS + row) * 4,
                        src + ((size_t)j * AQ_PANEL_ROWS + row) * 8, 4 * i);
        }
    }
    memset(dst + (size_t)words * 8 * AQ_PANEL_ROWS * 4, 0,
           (AQ_GROUP_K / 16 - words) * (size_t)8 * AQ_PANEL_ROWS * 4);
}
