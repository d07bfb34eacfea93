// Rotation of one tensor by one table, without PyTorch's headers: pointers, strides, shapes.
//
// x and out are [B, H, T, D] with unit channel stride; cos and sin are contiguous float32
// [B or 1, T, pairs]. out may be x. Arithmetic is float32; bfloat16 results are rounded once.
// The backward pass is the same call with direction -1: the transposed rotation.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "pool.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

struct Bfloat16 {
  uint16_t bits;
};

INLINE float load(float x) { return x; }
INLINE float load(Bfloat16 x) {
  uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}
INLINE void store(float* to, float x) { *to = x; }
INLINE void store(Bfloat16* to, float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  uint32_t quiet_nan = (wide >> 16) | 0x40;
  to->bits = static_cast<uint16_t>((wide & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

template <typename T>
INLINE void half_row(const T* x, T* out, const float* cos, const float* sin, int64_t pairs,
                     float direction) {
#pragma GCC ivdep
  for (int64_t i = 0; i < pairs; ++i) {
    float a = load(x[i]), b = load(x[i + pairs]);
    float s = direction * sin[i];
    store(out + i, a * cos[i] - b * s);
    store(out + i + pairs, b * cos[i] + a * s);
  }
}

template <typename T>
INLINE void adjacent_row(const T* x, T* out, const float* cos, const float* sin, int64_t pairs,
                         float direction) {
#pragma GCC ivdep
  for (int64_t i = 0; i < pairs; ++i) {
    float a = load(x[2 * i]), b = load(x[2 * i + 1]);
    float s = direction * sin[i];
    store(out + 2 * i, a * cos[i] - b * s);
    store(out + 2 * i + 1, b * cos[i] + a * s);
  }
}

struct Call {
  const void* x;
  void* out;
  int64_t batch, heads, tokens, head_dim;
  int64_t x_batch, x_head, x_token, x_channel;  // strides, in elements; of a channel 1
  int64_t out_batch, out_head, out_token, out_channel;
  int64_t is_bfloat16;
  const float* cos;
  const float* sin;
  int64_t pairs, start;
  int64_t table_batch;  // 0 where one table serves every row of the batch
  int64_t adjacent;
  float direction;
};

constexpr int64_t kWorthAThread = 1 << 15;  // pairs: about ten microseconds of work
constexpr int64_t kBlock = 32;  // tokens whose tables stay in the first cache over all heads
// Bytes from a row to what is fetched while it turns: rows are short, and the processor's own
// prefetching stops at each. Past the end of a tensor a prefetch does nothing.
constexpr int64_t kAhead = 4096, kLine = 64;

template <typename T>
INLINE void work(const Call& c, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(c.x);
  T* out = static_cast<T*>(c.out);
  int64_t blocks = (c.tokens + kBlock - 1) / kBlock, width = 2 * c.pairs;
  int64_t after = c.head_dim - c.start - width;
  int64_t row_bytes = c.head_dim * static_cast<int64_t>(sizeof(T));
  bool copies = c.x != c.out;
  for (int64_t item = first; item < last; ++item) {
    int64_t b = item / blocks, t0 = item % blocks * kBlock;
    int64_t t1 = std::min(t0 + kBlock, c.tokens);
    auto turn = [&](int64_t h, int64_t t) INLINE_LAMBDA {
      const T* row = x + b * c.x_batch + h * c.x_head + t * c.x_token;
      T* to = out + b * c.out_batch + h * c.out_head + t * c.out_token;
      int64_t table = b * c.table_batch + t * c.pairs;
      for (int64_t at = kAhead; at < kAhead + row_bytes; at += kLine) {
        __builtin_prefetch(reinterpret_cast<const char*>(row) + at, 0);
        __builtin_prefetch(reinterpret_cast<const char*>(to) + at, 1);
      }
      if (copies && c.start) std::memcpy(to, row, c.start * sizeof(T));
      if (copies && after) {
        std::memcpy(to + c.start + width, row + c.start + width, after * sizeof(T));
      }
      if (c.adjacent) {
        adjacent_row(row + c.start, to + c.start, c.cos + table, c.sin + table, c.pairs,
                     c.direction);
      } else {
        half_row(row + c.start, to + c.start, c.cos + table, c.sin + table, c.pairs, c.direction);
      }
    };
    if (c.x_head < c.x_token) {  // in the order of memory
      for (int64_t t = t0; t < t1; ++t) {
        for (int64_t h = 0; h < c.heads; ++h) turn(h, t);
      }
    } else {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t t = t0; t < t1; ++t) turn(h, t);
      }
    }
  }
}

CLONES void work_float32(const Call& c, int64_t first, int64_t last) {
  work<float>(c, first, last);
}
CLONES void work_bfloat16(const Call& c, int64_t first, int64_t last) {
  work<Bfloat16>(c, first, last);
}

// What one call of the library does: the tensors, and who turns which part of each.
struct Job {
  const Call* calls;
  int64_t num_calls;
};

int64_t items_of(const Call& c) { return c.batch * ((c.tokens + kBlock - 1) / kBlock); }

void share(const void* argument, int64_t i, int64_t of) {
  const Job& job = *static_cast<const Job*>(argument);
  for (const Call* c = job.calls; c < job.calls + job.num_calls; ++c) {
    int64_t items = items_of(*c);
    auto run = c->is_bfloat16 ? work_bfloat16 : work_float32;
    run(*c, items * i / of, items * (i + 1) / of);
  }
}

}  // namespace

// Of struct Call and the functions below; the Python side refuses a library of another version.
extern "C" int64_t posenc_version() { return 2; }

// Rotates num_calls tensors (queries and keys).
extern "C" void posenc_rotate(const Call* calls, int64_t num_calls, int64_t num_threads) {
  Job job{calls, num_calls};
  int64_t items = 0, elements = 0;
  for (const Call* c = calls; c < calls + num_calls; ++c) {
    items += items_of(*c);
    elements += c->batch * c->heads * c->tokens * c->pairs;
  }
  int64_t useful = std::min({num_threads, items, elements / kWorthAThread + 1});
  run(share, &job, useful);
}
