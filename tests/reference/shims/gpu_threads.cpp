// Threads of GPUs as fibers, and what they touch. In: a kernel and a launch. Out: its results, or what is wrong with it.
//
// Groups run one after another. A thread of a group runs until it waits; then the next one does. When all wait at one
// barrier, or all of a warp in one exchange, they go on. When that can never be, the kernel is wrong, and so it is
//
//   where two threads touch one byte, one of them writes it, and no barrier is between: found from the accesses
//   themselves, whichever order they ran in. Kernels are compiled with -fsanitize=thread, which calls a function at
//   every access; instead of the sanitizer's own library, those functions are here.
//   where a kernel touches memory that is none of its arguments, nor its group's, nor its thread's.
#include "gpu_threads.h"

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <ucontext.h>
#include <unordered_map>
#include <vector>

alignas(1024) char scratch[256 << 10];          // the memory of a group whose size a launch chooses

namespace {

using gpu::Launch;
using gpu::WARP;

enum State { READY, AT_BARRIER, IN_EXCHANGE, DONE };

struct Fiber {
  State state;
  int line;                       // where it waits
  bool fresh;                     // it has no stack yet
  bool orders_group, orders_device;
  unsigned exchanges;
  unsigned char given[2][16];     // to the last exchange, and to the one before, which others may still read
  jmp_buf here;
  ucontext_t begin;
};

const size_t STACK = 256 << 10;
const unsigned MOST_THREADS = 1024;

std::mutex one_at_a_time;
std::vector<Fiber> fibers;
char *stacks;
jmp_buf scheduler;
unsigned current;                 // the thread that runs
unsigned group_number;
const Launch *launch;
void (*kernel)(void **);
char message[400];
bool failed;

void switch_to_scheduler() {
  if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}

void fail(const char *format, ...) {
  if (!failed) {
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
  }
  failed = true;
}

void fiber_main() {
  for (;;) {
    kernel(launch->args);
    fibers[current].state = DONE;
    switch_to_scheduler();
  }
}

void run_until_it_waits(unsigned thread) {
  Fiber &fiber = fibers[thread];
  current = thread;
  if (_setjmp(scheduler)) return;
  if (!fiber.fresh) _longjmp(fiber.here, 1);
  fiber.fresh = false;
  getcontext(&fiber.begin);
  fiber.begin.uc_stack.ss_sp = stacks + thread * STACK;
  fiber.begin.uc_stack.ss_size = STACK;
  fiber.begin.uc_link = nullptr;
  makecontext(&fiber.begin, fiber_main, 0);
  setcontext(&fiber.begin);
}

// -- what threads touch --------------------------------------------------------------------------------------------
// Time is counted in intervals: a barrier ends one and begins the next, and so does the next group. An access is its
// interval and its thread, in one number. Barriers may order one kind of memory alone, so each kind has its own time.
typedef uint64_t Access;
const unsigned THREAD_BITS = 16, MANY = 0xffff;

struct Touched {
  Access writer, reader;          // the last of them; thread MANY: several threads read in that interval
  Access first_reader;            // of the launch
};

struct Clock {
  uint64_t now, group_began, launch_began;
};

const size_t PAGE = 4096, MOST_PAGES = 4096;
typedef std::unordered_map<uintptr_t, std::unique_ptr<Touched[]>> Pages;
Pages pages;
uintptr_t last_page = ~(uintptr_t)0;
Touched *last_touched;
Clock group_clock, device_clock;
uint64_t intervals;
char *group_begin, *group_end;

void begin_interval(Clock &clock) { clock.now = ++intervals; }

Touched *touched_at(uintptr_t address) {
  if (address / PAGE != last_page) {
    last_page = address / PAGE;
    std::unique_ptr<Touched[]> &found = pages[last_page];
    if (!found) found.reset(new Touched[PAGE]());
    last_touched = found.get();
  }
  return last_touched + address % PAGE;
}

const char *where_is(uintptr_t address, unsigned bytes, bool &of_group) {
  auto inside = [&](const char *begin, const char *end) {
    return address >= (uintptr_t)begin && address + bytes <= (uintptr_t)end;
  };
  of_group = inside(scratch, scratch + launch->group_bytes) || inside(group_begin, group_end);
  if (of_group) return "the group's memory";
  for (unsigned i = 0; i < launch->count; i++)
    if (inside(launch->ranges[i].begin, launch->ranges[i].end)) return "the device's memory";
  return nullptr;
}

// Whether an access was by another thread, and no barrier is between it and now.
bool is_unordered(Access access, const Clock &clock, bool of_group) {
  uint64_t interval = access >> THREAD_BITS;
  if (interval == clock.now) return (access & MANY) != current;
  return !of_group && interval >= clock.launch_began && interval < clock.group_began;       // another group's
}

void report(const char *what, Access other, const char *where, const Clock &clock) {
  uint64_t interval = other >> THREAD_BITS;
  const char *who = interval < clock.group_began ? "a thread of another group"
                    : (other & MANY) == MANY     ? "several threads"
                                                 : nullptr;
  char name[40];
  snprintf(name, sizeof name, "thread %u", (unsigned)(other & MANY));
  fail("a race in %s: thread %u of group %u %s %s, with no barrier between", where, current, group_number, what,
       who ? who : name);
}

void touch(void *pointer, unsigned bytes, bool writes) {
  uintptr_t address = (uintptr_t)pointer;
  if (!launch || address - (uintptr_t)stacks < MOST_THREADS * STACK) return;
  bool of_group;
  const char *where = where_is(address, bytes, of_group);
  if (!where) {
    fail("thread %u of group %u %s %u bytes at %p, outside of all memory that it was given", current, group_number,
         writes ? "writes" : "reads", bytes, pointer);
    _longjmp(scheduler, 1);
  }
  const Clock &clock = of_group ? group_clock : device_clock;
  Access mine = clock.now << THREAD_BITS | current;
  for (unsigned i = 0; i < bytes && !failed; i++) {
    Touched *byte = touched_at(address + i);
    if (is_unordered(byte->writer, clock, of_group)) {
      report(writes ? "writes what was written by" : "reads what is written by", byte->writer, where, clock);
    } else if (writes) {
      if (is_unordered(byte->reader, clock, of_group))
        report("writes what is read by", byte->reader, where, clock);
      else if (byte->first_reader >> THREAD_BITS < clock.group_began && is_unordered(byte->first_reader, clock, of_group))
        report("writes what is read by", byte->first_reader, where, clock);
      byte->writer = mine;
    } else {
      if (byte->first_reader >> THREAD_BITS < clock.launch_began) byte->first_reader = mine;
      bool same_time = byte->reader >> THREAD_BITS == clock.now;
      byte->reader = same_time && byte->reader != mine ? mine | MANY : mine;
    }
  }
  if (failed) _longjmp(scheduler, 1);
}

// -- groups --------------------------------------------------------------------------------------------------------
std::vector<unsigned> sequence;       // the threads of a group in the order in which they run

void choose_order() {
  sequence.resize(launch->threads);
  std::iota(sequence.begin(), sequence.end(), 0);
  if (launch->order == 1) std::reverse(sequence.begin(), sequence.end());
  if (launch->order == 2) std::shuffle(sequence.begin(), sequence.end(), std::mt19937(launch->threads));
}

bool all_wait(unsigned begin, unsigned end, State state) {
  for (unsigned t = begin; t < end; t++)
    if (fibers[t].state != state || fibers[t].line != fibers[begin].line) return false;
  return true;
}

void go_on(unsigned begin, unsigned end) {
  for (unsigned t = begin; t < end; t++) fibers[t].state = READY;
}

void describe(char *text, size_t size, unsigned thread) {
  const Fiber &fiber = fibers[thread];
  if (fiber.state == DONE)
    snprintf(text, size, "thread %u has ended", thread);
  else
    snprintf(text, size, "thread %u waits %s in line %d", thread,
             fiber.state == AT_BARRIER ? "at the barrier" : "in the exchange", fiber.line);
}

void report_deadlock() {
  unsigned waits = 0, other = 0, threads = launch->threads;
  while (fibers[waits].state == DONE) waits++;
  for (other = 0; other < threads; other++)
    if (fibers[other].state != fibers[waits].state || fibers[other].line != fibers[waits].line) break;
  char one[100], two[100];
  describe(one, sizeof one, waits);
  describe(two, sizeof two, other);
  fail("threads of group %u wait for ever: %s, %s", group_number, one, two);
}

void run_group() {
  unsigned threads = launch->threads;
  memset(scratch, 0xff, launch->group_bytes);                 // nothing is there: floats are not numbers
  memset(group_begin, 0xff, group_end - group_begin);
  for (unsigned t = 0; t < threads; t++) {
    fibers[t].state = READY;
    fibers[t].exchanges = 0;
  }
  begin_interval(group_clock), begin_interval(device_clock);
  group_clock.group_began = group_clock.now, device_clock.group_began = device_clock.now;
  for (;;) {
    for (unsigned t : sequence) {
      if (fibers[t].state == READY) run_until_it_waits(t);
      if (failed) return;
    }
    bool exchanged = false;
    for (unsigned begin = 0; begin < threads; begin += WARP) {
      unsigned end = begin + WARP < threads ? begin + WARP : threads;
      if (all_wait(begin, end, IN_EXCHANGE)) go_on(begin, end), exchanged = true;
    }
    if (exchanged) continue;
    bool all_done = true;
    for (unsigned t = 0; t < threads; t++) all_done &= fibers[t].state == DONE;
    if (all_done) return;
    if (!all_wait(0, threads, AT_BARRIER)) {
      report_deadlock();
      return;
    }
    if (fibers[0].orders_group) begin_interval(group_clock);
    if (fibers[0].orders_device) begin_interval(device_clock);
    go_on(0, threads);
  }
}

}  // namespace

namespace gpu {

unsigned thread() { return current; }
unsigned group() { return group_number; }
unsigned groups() { return launch->groups; }

void barrier(int line, bool group_memory, bool device_memory) {
  Fiber &fiber = fibers[current];
  fiber.state = AT_BARRIER, fiber.line = line;
  fiber.orders_group = group_memory, fiber.orders_device = device_memory;
  switch_to_scheduler();
}

void exchange(const void *x, void *theirs, unsigned bytes, unsigned from, int line) {
  Fiber &fiber = fibers[current];
  unsigned turn = fiber.exchanges++ % 2, first = current / WARP * WARP;
  memcpy(fiber.given[turn], x, bytes);
  fiber.state = IN_EXCHANGE, fiber.line = line;
  switch_to_scheduler();
  unsigned other = first + from < launch->threads ? first + from : current;
  memcpy(theirs, fibers[other].given[turn], bytes);
}

void fault(const char *what) {
  fail("%s: thread %u of group %u", what, current, group_number);
  _longjmp(scheduler, 1);
}

const char *run(const Launch &what, void (*body)(void **), char *begin, char *end) {
  std::lock_guard<std::mutex> alone(one_at_a_time);
  if (fibers.empty()) {
    fibers.resize(MOST_THREADS);
    for (Fiber &fiber : fibers) fiber.fresh = true;
    stacks = (char *)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (what.threads > MOST_THREADS || what.group_bytes > sizeof scratch) return "the group is larger than any GPU's";
  launch = &what, kernel = body, group_begin = begin, group_end = end, failed = false;
  choose_order();
  if (pages.size() > MOST_PAGES) pages.clear();
  last_page = ~(uintptr_t)0;
  group_clock.launch_began = device_clock.launch_began = intervals + 1;
  for (group_number = 0; group_number < what.groups && !failed; group_number++) run_group();
  if (failed)
    for (Fiber &fiber : fibers) fiber.fresh = true;          // some stopped in the middle of the kernel
  launch = nullptr;
  return failed ? message : nullptr;
}

}  // namespace gpu

// -- what -fsanitize=thread calls ------------------------------------------------------------------------------------
#define ACCESS(bytes)                                                                    \
  void __tsan_read##bytes(void *p) { touch(p, bytes, false); }                           \
  void __tsan_write##bytes(void *p) { touch(p, bytes, true); }                           \
  void __tsan_unaligned_read##bytes(void *p) { touch(p, bytes, false); }                 \
  void __tsan_unaligned_write##bytes(void *p) { touch(p, bytes, true); }

extern "C" {
char *gpu_scratch() { return scratch; }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_read_range(void *p, size_t bytes) { touch(p, (unsigned)bytes, false); }
void __tsan_write_range(void *p, size_t bytes) { touch(p, (unsigned)bytes, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
}
