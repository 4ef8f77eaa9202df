// What kernels for GPUs take for granted, on a CPU: threads in groups, waiting, exchange between the threads of a warp.
// The meaning of a language's own words is given by a header that includes this one: hip_shim.h, metal_stdlib.
// The threads of a group are fibers of one thread of the CPU, and switch where they wait (gpu_threads.cpp).
#pragma once

namespace gpu {

unsigned thread();         // the number of this thread in its group
unsigned group();
unsigned groups();

// All threads of the group arrive here before one goes on. Then they see what the others stored in the memory of the
// group, and in that of the device. `line` is of the kernel: threads that wait in different lines wait for ever.
void barrier(int line, bool group_memory = true, bool device_memory = true);

// Gives x to the warp, which has 32 threads, and gets what its thread `from` gave. All of them must arrive.
void exchange(const void *x, void *theirs, unsigned bytes, unsigned from, int line);

// Says what is wrong with the kernel and ends it.
void fault(const char *what);

const unsigned WARP = 32;

template <class T> T shuffle_to(T x, unsigned from, int line) {
  T theirs;
  exchange(&x, &theirs, sizeof(T), from, line);
  return theirs;
}

// x of the thread that is `step` further on, among neighbours of a width; without one, a thread gets its own.
template <class T> T shuffle_down(T x, unsigned step, unsigned width, int line) {
  unsigned lane = thread() % WARP;
  return shuffle_to(x, lane % width + step < width ? lane + step : lane, line);
}

template <class T> T shuffle_xor(T x, unsigned mask, int line) {
  return shuffle_to(x, (thread() % WARP ^ mask) % WARP, line);
}

template <class To, class From> To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits are read as a type of another size");
  To to;
  __builtin_memcpy(&to, &x, sizeof(To));
  return to;
}

// -- running a kernel --------------------------------------------------------------------------------------------
struct Range {
  char *begin, *end;
};

struct Launch {
  void **args;                  // of each argument, the address where its value lies
  unsigned groups, threads;
  unsigned group_bytes;          // of `scratch`, which a group shares
  int order;                    // in which threads run: 0 forward, 1 backward, 2 at random
  const Range *ranges;          // what a kernel may read and write
  unsigned count;
};

// Runs a kernel; returns what is wrong with it, or null. [begin, end) are the arrays of a group declared in the kernel.
const char *run(const Launch &launch, void (*kernel)(void **), char *begin, char *end);

#define NOT_TRACKED __attribute__((no_sanitize("thread")))

// Passes arguments on by the types of the kernel's parameters: pointers and numbers by value, others by reference. A
// language that counts threads by parameters specializes it for their type.
template <class T> struct Argument {
  NOT_TRACKED static T take(void **args, int &next, int &) { return *(T *)args[next++]; }
};
template <class T> struct Argument<T &> {
  NOT_TRACKED static T &take(void **args, int &next, int &) { return *(T *)args[next++]; }
};

template <class... P> struct Call {
  NOT_TRACKED Call(void (*kernel)(P...), P... arguments) { kernel(arguments...); }
};

template <class... P> NOT_TRACKED void call(void (*kernel)(P...), void **args) {
  int next = 0, counter = 0;
  Call<P...>{kernel, Argument<P>::take(args, next, counter)...};      // braces: from left to right
}

}  // namespace gpu

#define GROUP_MEMORY static __attribute__((section("group_memory")))
extern char __start_group_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_group_memory[] __attribute__((weak, visibility("hidden")));

#define RUN_KERNEL(name)                                                          \
  NOT_TRACKED static void call_##name(void **args) { gpu::call(name, args); }     \
  extern "C" NOT_TRACKED const char *run_##name(const gpu::Launch *launch) {      \
    return gpu::run(*launch, call_##name, __start_group_memory, __stop_group_memory); \
  }
