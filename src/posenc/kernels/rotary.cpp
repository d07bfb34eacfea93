// Rotation of one tensor by one table, without PyTorch's headers: pointers, strides, shapes.
//
// x and out are [B, H, T, D] with unit channel stride; cos and sin are contiguous float32
// [B or 1, T, pairs]. out may be x. Arithmetic is float32; bfloat16 results are rounded once.
// The backward pass is the same call with direction -1: the transposed rotation.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE inline __attribute__((always_inline))

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
  const float* cos;
  const float* sin;
  int64_t batch, heads, tokens, head_dim, start, pairs;
  int64_t x_batch, x_head, x_token, out_batch, out_head, out_token;
  int64_t table_batch;  // 0 where one table serves every row of the batch
  int64_t adjacent;
  int64_t is_bfloat16;
  float direction;
};

constexpr int64_t kWorthAThread = 1 << 16;  // pairs; starting one costs tens of microseconds
constexpr int64_t kBlock = 32;  // tokens whose tables stay in the first cache over all heads

template <typename T>
INLINE void work(const Call& c, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(c.x);
  T* out = static_cast<T*>(c.out);
  int64_t blocks = (c.tokens + kBlock - 1) / kBlock, width = 2 * c.pairs;
  int64_t after = c.head_dim - c.start - width;
  bool copies = c.x != c.out;
  for (int64_t item = first; item < last; ++item) {
    int64_t b = item / blocks, t0 = item % blocks * kBlock;
    int64_t t1 = std::min(t0 + kBlock, c.tokens);
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t t = t0; t < t1; ++t) {
        const T* row = x + b * c.x_batch + h * c.x_head + t * c.x_token;
        T* to = out + b * c.out_batch + h * c.out_head + t * c.out_token;
        int64_t table = b * c.table_batch + t * c.pairs;
        if (copies && c.start) std::memcpy(to, row, c.start * sizeof(T));
        if (copies && after) {
          std::memcpy(to + c.start + width, row + c.start + width, after * sizeof(T));
        }
        if (c.adjacent) {
          adjacent_row(row + c.start, to + c.start, c.cos + table, c.sin + table, c.pairs,
                       c.direction);
        } else {
          half_row(row + c.start, to + c.start, c.cos + table, c.sin + table, c.pairs,
                   c.direction);
        }
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

}  // namespace

// Rotates num_calls tensors (queries and keys) one after the other.
extern "C" void posenc_rotate(const Call* calls, int64_t num_calls, int64_t num_threads) {
  for (const Call* call = calls; call < calls + num_calls; ++call) {
    auto run = call->is_bfloat16 ? work_bfloat16 : work_float32;
    int64_t items = call->batch * ((call->tokens + kBlock - 1) / kBlock);
    if (items == 0) continue;
    int64_t elements = call->batch * call->heads * call->tokens * call->pairs;
    int64_t useful = std::min({num_threads, items, elements / kWorthAThread + 1});
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < useful; ++i) {
      threads.emplace_back(run, std::cref(*call), items * i / useful, items * (i + 1) / useful);
    }
    run(*call, 0, items / useful);
    for (auto& thread : threads) thread.join();
  }
}
