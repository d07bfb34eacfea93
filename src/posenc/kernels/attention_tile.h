// One tile of queries against all keys that it sees; attention.cpp includes this once for each
// instruction set, in a namespace with its TARGET, W floats to a vector and V vectors to a row.
//
// The tile lies transposed, its last query first: one vector holds many queries against one key,
// their biases lie side by side in memory, and maxima and sums over keys need nothing across lanes.

typedef float Floats __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
constexpr int R = W * V;  // queries of a tile

INLINE Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
INLINE void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }
INLINE Floats all(float x) { return x - Floats{}; }

INLINE float dot(const float* a, const float* b, int64_t dim) {
  Floats sums{};
  int64_t d = 0;
  for (; d + W <= dim; d += W) sums += load(a + d) * load(b + d);
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += sums[i];
  for (; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

// e^x for x <= 0, to about a unit in the last place: 2^n times a polynomial on |r| <= ln(2) / 2, of
// the coefficients of Cephes' expf. Below kFar zero; NaN stays.
INLINE Floats exp_below(Floats x) {
  Ints is_far = x < kFar;
  Floats y = is_far ? all(kFar) : x;
  Floats rounder = all(12582912.0f);  // 1.5 * 2^23: a sum with it is rounded to an integer
  Floats shifted = y * 1.44269504088896341f + rounder;
  Floats n = shifted - rounder;
  Floats r = y - n * 0.693145751953125f - n * 1.42860682030941723212e-6f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints bits, exponent;
  std::memcpy(&bits, &p, sizeof bits);
  std::memcpy(&exponent, &shifted, sizeof exponent);
  bits += exponent << 23;  // n stands in the low bits of `shifted`
  std::memcpy(&p, &bits, sizeof p);
  p = (y == y) ? p : y;
  return is_far ? Floats{} : p;
}

// N keys: their logits with bias into `weights`, the largest of each query into `top`.
template <int N>
INLINE void add_keys(const float* q, const float* k, int64_t k_token, int64_t dim,
                     const float* bias, float* weights, Floats* top) {
  Floats sum[N][V] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Floats x[V];
    for (int i = 0; i < V; ++i) x[i] = load(q + d * R + i * W);
    for (int n = 0; n < N; ++n) {
      Floats y = all(k[n * k_token + d]);
      for (int i = 0; i < V; ++i) sum[n][i] += x[i] * y;
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int i = 0; i < V; ++i) {
      Floats logit = sum[n][i] + load(bias + n + i * W);
      store(weights + n * R + i * W, logit);
      top[i] = (logit <= top[i]) ? top[i] : logit;  // NaN may go: its weight is NaN
    }
  }
}

// N channels of the values summed over `count` keys, joined to the sums before, which shrink.
template <int N>
INLINE void add_values(const float* weights, const float* v, int64_t v_token, int64_t count,
                       const Floats* shrink, float* sums) {
  Floats sum[N][V] = {};
  for (int64_t j = 0; j < count; ++j) {
    Floats x[V];
    for (int i = 0; i < V; ++i) x[i] = load(weights + j * R + i * W);
    for (int n = 0; n < N; ++n) {
      Floats y = all(v[j * v_token + n]);
      for (int i = 0; i < V; ++i) sum[n][i] += x[i] * y;
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int i = 0; i < V; ++i) {
      float* at = sums + n * R + i * W;
      store(at, load(at) * shrink[i] + sum[n][i]);
    }
  }
}

// The largest distance that queries first ... last - 1 must read: keys beyond it weigh less than
// half a unit in the last place together. attention/distance.py proves the bound.
INLINE int64_t farthest_read(const Call& c, const Facts& facts, int64_t b, int64_t h,
                             int64_t first, int64_t last) {
  int64_t key_head = h / (c.heads / c.key_heads);
  const float* q = c.q + b * c.q_batch + h * c.q_head;
  const float* k = c.k + b * c.k_batch + key_head * c.k_head + (c.keys - c.queries) * c.k_token;
  double largest = facts.largest[b * c.key_heads + key_head], scale = c.scale, margin = 0;
  for (int64_t i = first; i < last; ++i) {
    const float* row = q + i * c.q_token;
    double norm = std::sqrt(dot(row, row, c.dim));
    double of_query = std::fabs(scale) * norm * largest - scale * dot(row, k + i * c.k_token, c.dim);
    margin = larger(of_query, margin);
  }
  double limit = std::exp(kHalfUnit - margin * (1 + 1e-4) - 1e-3);  // with room for rounding
  if (!(limit > kLeastTail)) return c.keys - 1;
  const double* tails = facts.tails.data() + h * c.keys;
  int64_t low = 0, high = c.keys;  // between them, the first distance that may be left out
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (tails[middle] <= limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low - 1;
}

TARGET void attend_tile(const Call& c, const Facts* facts, const Buffers& to, int64_t b, int64_t h,
                        int64_t tile) {
  // tiles are counted from the last query back; what is left over at the front makes the last tile,
  // which computes the queries behind it too and drops them
  int64_t last = c.queries - tile * R, first = std::max<int64_t>(last - R, 0);
  int64_t key_head = h / (c.heads / c.key_heads), shift = c.keys - c.queries;
  int64_t farthest = c.farthest;
  if (facts) farthest = std::min(farthest, farthest_read(c, *facts, b, h, first, last));
  int64_t from = std::max<int64_t>(first + shift - farthest, 0);
  int64_t until = std::min(last + shift - c.nearest, c.keys);

  const float* q = c.q + b * c.q_batch + h * c.q_head;
  for (int64_t l = 0; l < R; ++l) {
    const float* row = q + (first + R - 1 - l) * c.q_token;
    for (int64_t d = 0; d < c.dim; ++d) to.q[d * R + l] = row[d] * c.scale;
  }
  std::fill_n(to.sums, c.value_dim * R, 0.0f);
  Floats top[V], total[V] = {};
  for (int i = 0; i < V; ++i) top[i] = all(-kInfinity);
  const float* k = c.k + b * c.k_batch + key_head * c.k_head;
  const float* v = c.v + b * c.v_batch + key_head * c.v_head;
  const float* bias = c.bias + h * c.bias_head + c.queries - first - R;
  for (int64_t key = from; key < until; key += kKeys) {
    int64_t count = std::min(kKeys, until - key), j = 0, d = 0;
    Floats highest[V], base[V], shrink[V], sum[V] = {};
    for (int i = 0; i < V; ++i) highest[i] = top[i];
    for (; j + 4 <= count; j += 4) {
      add_keys<4>(to.q, k + (key + j) * c.k_token, c.k_token, c.dim, bias + key + j,
                  to.weights + j * R, highest);
    }
    for (; j < count; ++j) {
      add_keys<1>(to.q, k + (key + j) * c.k_token, c.k_token, c.dim, bias + key + j,
                  to.weights + j * R, highest);
    }
    for (int i = 0; i < V; ++i) {
      base[i] = (highest[i] == -kInfinity) ? Floats{} : highest[i];  // nothing seen as yet
      shrink[i] = exp_below(top[i] - base[i]);
      top[i] = highest[i];
    }
    for (j = 0; j < count; ++j) {
      for (int i = 0; i < V; ++i) {
        float* at = to.weights + j * R + i * W;
        Floats weight = exp_below(load(at) - base[i]);
        store(at, weight);
        sum[i] += weight;
      }
    }
    for (int i = 0; i < V; ++i) total[i] = total[i] * shrink[i] + sum[i];
    for (; d + 4 <= c.value_dim; d += 4) {
      add_values<4>(to.weights, v + key * c.v_token + d, c.v_token, count, shrink, to.sums + d * R);
    }
    for (; d < c.value_dim; ++d) {
      add_values<1>(to.weights, v + key * c.v_token + d, c.v_token, count, shrink, to.sums + d * R);
    }
  }
  float totals[R];
  for (int i = 0; i < V; ++i) store(totals + i * W, total[i]);
  float* out = c.out + b * c.out_batch + h * c.out_head;
  for (int64_t row = first; row < last; ++row) {
    int64_t l = first + R - 1 - row;
    float weight = totals[l] == 0 ? 0 : 1 / totals[l];  // a query that sees no key gets zeros
    for (int64_t d = 0; d < c.value_dim; ++d) {
      out[row * c.out_token + d] = to.sums[d * R + l] * weight;
    }
  }
}

// Item number `item` of a job: tiles of all heads side by side, those of the last queries, which
// see the most keys, first.
TARGET void attend(const Job& job, const Buffers& buffers, int64_t item) {
  const Call& c = *job.call;
  int64_t rows = c.batch * c.heads;
  attend_tile(c, job.facts, buffers, item % rows / c.heads, item % c.heads, item / rows);
}
