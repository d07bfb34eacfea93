// Threads for the kernels: PyTorch's own, or some of the kernel's where those cannot be had.

#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace {

// PyTorch's pool, by the entry points of the OpenMP library that it has loaded. Threads beside that
// pool would wait for a core on which the pool still spins.
struct Pool {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*thread_num)();
  int (*num_threads)();
};
Pool pool{};

// One share of a job: number i of so many.
using Work = void (*)(const void* job, int64_t i, int64_t of);

struct Shared {
  Work work;
  const void* job;
};

void work_of_this_thread(void* argument) {
  const Shared& shared = *static_cast<const Shared*>(argument);
  shared.work(shared.job, pool.thread_num(), pool.num_threads());
}

void run(Work work, const void* job, int64_t num_threads) {
  if (num_threads <= 1) {
    work(job, 0, 1);
  } else if (pool.parallel) {
    Shared shared{work, job};
    pool.parallel(work_of_this_thread, &shared, static_cast<unsigned>(num_threads), 0);
  } else {
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(work, job, i, num_threads);
    work(job, 0, num_threads);
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace

// Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads; null to forget them.
extern "C" void posenc_use_pool(void* parallel, void* thread_num, void* num_threads) {
  pool.parallel = reinterpret_cast<decltype(pool.parallel)>(parallel);
  pool.thread_num = reinterpret_cast<int (*)()>(thread_num);
  pool.num_threads = reinterpret_cast<int (*)()>(num_threads);
}
