/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/forecast_json.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

static json_t *rate(double count, double seconds)
{
    return seconds > 0 ? aq_json_real(count / seconds) : json_null();
}

json_t *aq_predict_lanes_json(const struct aq_forecast *f)
{
    json_t *lanes = json_object();
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        const struct aq_sim_lane *s = &f->lane[l];
        if (s->busy_s <= 0)
            continue;
        json_t *lane = json_pack("{s:o, s:o, s:s}", "busy", aq_json_real(s->share),
                                 "bytes_per_pass", json_integer((json_int_t)llround(s->bytes)),
                                 "limit", aq_resource_name(s->limit));
        aq_json_put(&lane, "gb_s", rate(s->bytes * 1e-9, s->bytes > 0 ? s->busy_s : 0));
        aq_json_put(&lanes, aq_lane_name((enum aq_lane)l), lane);
    }
    return lanes;
}

static json_t *rates_json(const struct aq_hardware *hw, const struct aq_rates_measured *m,
                          enum aq_dtype compute)
{
    json_t *o = json_object(), *measured = json_array();
    aq_json_put(&o, "product_gflop_s",
                aq_json_real(hw->device.product_flops_per_s[compute] * 1e-9));
    aq_json_put(&o, "memory_gb_s", aq_json_real(hw->host_memory_bytes_per_s * 1e-9));
    aq_json_put(&o, "disk_read_gb_s", aq_json_real(hw->disk_read_bytes_per_s * 1e-9));
    aq_json_put(&o, "h2d_gb_s", aq_json_real(hw->h2d_bytes_per_s * 1e-9));
    aq_json_put(&o, "d2h_gb_s", aq_json_real(hw->d2h_bytes_per_s * 1e-9));
    if (m->products)
        aq_json_add(&measured, json_string("product_gflop_s"));
    if (m->memory)
        aq_json_add(&measured, json_string("memory_gb_s"));
    if (m->disk)
        aq_json_add(&measured, json_string("disk_read_gb_s"));
    aq_json_put(&o, "measured", measured);
    return o;
}

json_t *aq_predict_times_json(const struct aq_forecast *f)
{
    json_t *o = json_object();
    bool known = f->blocks > 0;
    aq_json_put(&o, "prefill_pass_s", aq_json_real(f->prefill_pass_s));
    aq_json_put(&o, "decode_pass_s", aq_json_real(f->decode_pass_s));
    aq_json_put(&o, "prefill_s", known ? aq_json_real(f->all_prefill_s) : json_null());
    aq_json_put(&o, "decode_s", known ? aq_json_real(f->all_decode_s) : json_null());
    aq_json_put(&o, "total_s",
                known ? aq_json_real(f->all_prefill_s + f->all_decode_s) : json_null());
    aq_json_put(&o, "gen_tok_s", aq_json_real(f->gen_tok_s));
    aq_json_put(&o, "prefill_tok_s", rate(f->prompt_tokens, f->prefill_s));
    aq_json_put(&o, "decode_tok_s", rate(f->prompts, f->decode_pass_s));
    return o;
}

json_t *aq_predict_json(const struct aq_forecast *f, const struct aq_hardware *hw,
                        const struct aq_rates_measured *measured, enum aq_dtype compute)
{
    json_t *o = aq_predict_times_json(f);
    aq_json_put(&o, "bound_by", json_string(aq_resource_name(f->binding)));
    aq_json_put(&o, "bound_lane", json_string(aq_lane_name(f->binding_lane)));
    aq_json_put(&o, "lanes", aq_predict_lanes_json(f));
    aq_json_put(&o, "rates", rates_json(hw, measured, compute));
    return o;
}

/* ---- lines ---- */

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "?";
}

static const char *measured(const json_t *rates, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(rates, "measured"), i, v)
    {
        if (json_is_string(v) && !strcmp(json_string_value(v), key))
            return "measured";
    }
    return "assumed";
}

static void put_rates(struct aq_buf *out, const json_t *rates)
{
    aq_buf_printf(out,
                  "rates: products %.3g GFLOP/s (%s), memory %.3g GB/s (%s), disk %.3g GB/s (%s)",
                  number(rates, "product_gflop_s"), measured(rates, "product_gflop_s"),
                  number(rates, "memory_gb_s"), measured(rates, "memory_gb_s"),
                  number(rates, "disk_read_gb_s"), measured(rates, "disk_read_gb_s"));
}

void aq_predict_lines(const json_t *predicted, void (*line)(void *user, const char *text),
                      void *user)
{
    struct aq_buf text = {0};
    const char *name;
    json_t *lane;
    if (!json_is_object(predicted))
        return;
    aq_buf_printf(&text, "predicted: prefill %.3g s a pass, decode %.3g s a pass, %.3g tok/s",
                  number(predicted, "prefill_pass_s"), number(predicted, "decode_pass_s"),
                  number(predicted, "gen_tok_s"));
    if (json_is_number(json_object_get(predicted, "total_s")))
        aq_buf_printf(&text, ", %.3g s in all", number(predicted, "total_s"));
    aq_buf_printf(&text, "; bound by %s (%s)", text_of(predicted, "bound_by"),
                  text_of(predicted, "bound_lane"));
    line(user, text.data ? text.data : "");
    json_object_foreach(json_object_get(predicted, "lanes"), name, lane)
    {
        aq_buf_clear(&text);
        aq_buf_printf(&text, "predicted: %-13s %3.0f %% busy", name, 100 * number(lane, "busy"));
        if (number(lane, "bytes_per_pass") > 0)
            aq_buf_printf(&text, ", %.4g GB a decode pass at %.3g GB/s",
                          number(lane, "bytes_per_pass") * 1e-9, number(lane, "gb_s"));
        line(user, text.data ? text.data : "");
    }
    aq_buf_clear(&text);
    put_rates(&text, json_object_get(predicted, "rates"));
    line(user, text.data ? text.data : "");
    aq_buf_close(&text);
}
