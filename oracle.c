// oracle.c: the cache without blocks. paged.cu.c includes it, as its last section but for the tour.
//
// What serving systems did before paging, and the judge of everything above: one contiguous piece
// per sequence, all of it reserved at once; a fork is a memcpy; attention is the textbook formula
// in double, two passes, all scores in an array.

static size_t oracle_offset(const Oracle *o, int layer, int token)
{
    return ((size_t)layer * o->max_tokens + token) * o->config.num_kv_heads * o->config.head_dim;
}

static int oracle_has(const Oracle *o, int layer, int num_tokens)
{
    return o && layer >= 0 && layer < o->config.num_layers && num_tokens >= 0 &&
           num_tokens <= o->length;
}

int oracle_create(const PoolConfig *config, int max_tokens, Oracle **out)
{
    if (!config_ok(config) || max_tokens < 1 || !out) return PAGED_BAD_ARGUMENT;
    PoolConfig f32 = *config;
    f32.dtype = PAGED_F32;
    size_t bytes = multiply(pool_bytes_per_token(&f32), max_tokens);  // of K and V
    if (bytes == 0 || bytes > PTRDIFF_MAX) return PAGED_OUT_OF_MEMORY;
    Oracle *oracle = (Oracle *)calloc(1, sizeof *oracle);
    float *memory = (float *)malloc(bytes);
    if (!oracle || !memory) {
        free(oracle);
        free(memory);
        return PAGED_OUT_OF_MEMORY;
    }
    oracle->config = *config;
    oracle->max_tokens = max_tokens;
    oracle->k = memory;
    oracle->v = memory + oracle_offset(oracle, config->num_layers, 0);
    *out = oracle;
    return PAGED_OK;
}

void oracle_release(Oracle *oracle)
{
    if (oracle) free(oracle->k);
    free(oracle);
}

int oracle_append(Oracle *oracle, int n)
{
    if (!oracle || n < 0) return PAGED_BAD_ARGUMENT;
    if (n > oracle->max_tokens - oracle->length) return PAGED_TOO_LONG;
    oracle->length += n;
    return PAGED_OK;
}

int oracle_rewind(Oracle *oracle, int n)
{
    if (!oracle_has(oracle, 0, n)) return PAGED_BAD_ARGUMENT;
    oracle->length -= n;
    return PAGED_OK;
}

int oracle_fork(const Oracle *parent, int at, Oracle **out)
{
    Oracle *child;
    if (!oracle_has(parent, 0, at) || !out) return PAGED_BAD_ARGUMENT;
    int error = oracle_create(&parent->config, parent->max_tokens, &child);
    if (error) return error;
    child->length = at;
    for (int layer = 0; layer < parent->config.num_layers; layer++) {
        size_t start = oracle_offset(parent, layer, 0), end = oracle_offset(parent, layer, at);
        memcpy(child->k + start, parent->k + start, (end - start) * sizeof(float));
        memcpy(child->v + start, parent->v + start, (end - start) * sizeof(float));
    }
    *out = child;
    return PAGED_OK;
}

static float round_to(int dtype, float x)
{
    if (dtype == PAGED_F32) return x;
    return dtype == PAGED_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

int oracle_write(Oracle *oracle, int layer, int num_tokens, const float *k, const float *v)
{
    if (!oracle_has(oracle, layer, num_tokens) || (num_tokens > 0 && (!k || !v)))
        return PAGED_BAD_ARGUMENT;
    size_t start = oracle_offset(oracle, layer, oracle->length - num_tokens);
    size_t end = oracle_offset(oracle, layer, oracle->length);
    for (size_t i = start; i < end; i++) {
        oracle->k[i] = round_to(oracle->config.dtype, k[i - start]);
        oracle->v[i] = round_to(oracle->config.dtype, v[i - start]);
    }
    return PAGED_OK;
}

// One query vector over the first `visible` tokens. k, v: [visible][num_kv_heads][head_dim], of one
// layer, from the head in question on; score: [visible].
static void oracle_row(const Oracle *oracle, const float *k, const float *v, int visible,
                       double scale, const float *q, double *score, float *out, float *lse)
{
    int head_dim = oracle->config.head_dim;
    size_t stride = (size_t)oracle->config.num_kv_heads * head_dim;
    double max = -INFINITY, sum = 0;
    for (int t = 0; t < visible; t++) {
        score[t] = 0;
        for (int i = 0; i < head_dim; i++) score[t] += (double)q[i] * k[t * stride + i];
        score[t] *= scale;
        if (score[t] > max) max = score[t];
    }
    for (int t = 0; t < visible; t++) sum += exp(score[t] - max);
    for (int i = 0; i < head_dim; i++) {
        double o = 0;
        for (int t = 0; t < visible; t++) o += exp(score[t] - max) / sum * v[t * stride + i];
        out[i] = (float)o;
    }
    if (lse) *lse = (float)(max + log(sum));
}

int oracle_attend(const Oracle *oracle, int layer, int num_tokens, int num_q_heads, float scale,
                  const float *q, float *out, float *lse)
{
    if (!oracle_has(oracle, layer, num_tokens) || num_q_heads < 1 || !isfinite(scale) ||
        num_q_heads % oracle->config.num_kv_heads != 0 || (num_tokens > 0 && (!q || !out)))
        return PAGED_BAD_ARGUMENT;
    double *score = (double *)malloc(((size_t)oracle->length + 1) * sizeof *score);
    if (!score) return PAGED_OUT_OF_MEMORY;
    int head_dim = oracle->config.head_dim, group = num_q_heads / oracle->config.num_kv_heads;
    double s = scale == 0 ? 1 / sqrt((double)head_dim) : scale;
    for (int t = 0; t < num_tokens; t++)
        for (int head = 0; head < num_q_heads; head++) {
            size_t row = (size_t)t * num_q_heads + head;  // q, out: [num_tokens][num_q_heads][dim]
            size_t kv = oracle_offset(oracle, layer, 0) + (size_t)(head / group) * head_dim;
            oracle_row(oracle, oracle->k + kv, oracle->v + kv, oracle->length - num_tokens + t + 1,
                       s, q + row * head_dim, score, out + row * head_dim, lse ? lse + row : NULL);
        }
    free(score);
    return PAGED_OK;
}
