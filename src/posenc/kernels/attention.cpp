// Softmax attention under a bias that depends on distance alone, without PyTorch's headers.
//
// q is [B, H, Q, D], k [B, H', K, D] and v [B, H', K, Dv], float32 with unit channel stride, H a
// multiple of H'; queries are the last Q of the K keys. The bias of a head at query i and key j is
// entry Q - 1 - i + j of its row, which runs from distance K - 1 down to -(Q - 1); a mask is -inf
// there. Softmax is taken in one pass over the keys (Milakov and Gimelshein 2018, arXiv 1805.02867),
// tile by tile of queries (FlashAttention, arXiv 2205.14135), so memory is that of a few tiles.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "pool.h"

namespace {

struct Call {
  const float* q;
  const float* k;
  const float* v;
  float* out;  // [B, H, Q, Dv]
  const float* bias;
  int64_t batch, heads, key_heads, queries, keys, dim, value_dim;
  int64_t q_batch, q_head, q_token;  // strides, in elements
  int64_t k_batch, k_head, k_token;
  int64_t v_batch, v_head, v_token;
  int64_t out_batch, out_head, out_token;
  int64_t bias_head;
  int64_t nearest, farthest;  // distances that the mask lets through, both included
  int64_t falls;  // whether far keys may be left out: the mask is causal, the bias falls
  float scale;
};

constexpr int64_t kKeys = 64;  // at a time: their weights, their values and the sums stay in cache
constexpr float kFar = -80;    // from the largest logit; below it a weight is zero, never subnormal
constexpr double kHalfUnit = -16.635532333438686;  // ln 2^-24
constexpr double kLeastTail = 1e-290;              // sums below it are not told from zero
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What leaving out far keys asks of a call.
struct Facts {
  std::vector<float> largest;  // [B, H'], the largest norm of a key
  std::vector<double> tails;   // [H, K], at d the sum of exp(bias - bias(0)) from distance d on
};

// Memory of one thread, for a tile of R queries.
struct Buffers {
  float* q;        // [D, R], times the softmax scale
  float* weights;  // [kKeys, R], logits at first
  float* sums;     // [Dv, R]
};

// NaN where one of them is, for it must not hide what came before it.
template <typename T>
T larger(T x, T most) {
  return (x > most || x != x) ? x : most;
}

struct Job {
  const Call* call;
  Facts* facts;  // null where every key is read
  std::atomic<int64_t>* next;
  int64_t tile;  // queries of a tile
  void (*attend)(const Job&, const Buffers&, int64_t);
};

}  // namespace

#define INLINE TARGET inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__)
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
namespace avx512 {
constexpr int W = 16, V = 4;
#include "attention_tile.h"
}  // namespace avx512
#undef TARGET
#define TARGET __attribute__((target("avx2,fma")))
namespace avx2 {
constexpr int W = 8, V = 2;
#include "attention_tile.h"
}  // namespace avx2
#undef TARGET
#endif
#define TARGET
namespace plain {
constexpr int W = 4, V = 4;
#include "attention_tile.h"
}  // namespace plain

namespace {

// The tile of the widest vectors that the processor has, or of those asked for (in bits).
Job job_for(const Call& call, int64_t bits) {
  Job job{&call, nullptr, nullptr, plain::R, plain::attend};
#if defined(__x86_64__) && defined(__GNUC__)
  bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  bool has_256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_512 && bits >= 512) {
    job.tile = avx512::R;
    job.attend = avx512::attend;
  } else if (has_256 && bits >= 256) {
    job.tile = avx2::R;
    job.attend = avx2::attend;
  }
#endif
  return job;
}

void measure_keys(const Call& c, Facts& facts, int64_t row) {
  const float* k = c.k + row / c.key_heads * c.k_batch + row % c.key_heads * c.k_head;
  float most = 0;
  for (int64_t j = 0; j < c.keys; ++j) {
    float square = plain::dot(k + j * c.k_token, k + j * c.k_token, c.dim);
    most = larger(square, most);
  }
  facts.largest[row] = std::sqrt(most);
}

void sum_tails(const Call& c, Facts& facts, int64_t head) {
  const float* bias = c.bias + head * c.bias_head;
  double tail = 0, at_query = bias[c.keys - 1];
  for (int64_t d = c.keys - 1; d >= 0; --d) {
    tail += std::exp(bias[c.keys - 1 - d] - at_query);
    facts.tails[head * c.keys + d] = tail;
  }
}

void find_facts(const void* argument, int64_t, int64_t) {
  const Job& job = *static_cast<const Job*>(argument);
  const Call& c = *job.call;
  int64_t rows = c.batch * c.key_heads;
  for (int64_t item; (item = job.next->fetch_add(1)) < rows + c.heads;) {
    if (item < rows) {
      measure_keys(c, *job.facts, item);
    } else {
      sum_tails(c, *job.facts, item - rows);
    }
  }
}

void attend_all(const void* argument, int64_t, int64_t) {
  const Job& job = *static_cast<const Job*>(argument);
  const Call& c = *job.call;
  std::vector<float> memory((c.dim + kKeys + c.value_dim) * job.tile + 16);
  float* start = memory.data();
  while (reinterpret_cast<uintptr_t>(start) % 64) ++start;  // a line of the cache
  Buffers buffers{start, start + c.dim * job.tile, start + (c.dim + kKeys) * job.tile};
  int64_t items = c.batch * c.heads * ((c.queries + job.tile - 1) / job.tile);
  for (int64_t item; (item = job.next->fetch_add(1)) < items;) job.attend(job, buffers, item);
}

}  // namespace

// Of struct Call and the functions below; the Python side refuses a library of another version.
extern "C" int64_t posenc_version() { return 1; }

// Queries must be at least 64, a tile of the widest vectors. `bits` bounds the width of vectors.
extern "C" void posenc_attend(const Call* call, int64_t num_threads, int64_t bits) {
  const Call& c = *call;
  Job job = job_for(c, bits);
  Facts facts;
  if (c.falls) {
    facts.largest.resize(c.batch * c.key_heads);
    facts.tails.resize(c.heads * c.keys);
    std::atomic<int64_t> next{0};
    job.facts = &facts;
    job.next = &next;
    run(find_facts, &job, num_threads);
  }
  std::atomic<int64_t> next{0};
  job.next = &next;
  run(attend_all, &job, num_threads);
}
