/* Runs kernels for ARM64, itself in qemu-user. In: a file that both sides map, requests on standard input. Out: a byte
   on standard output when a request is done.

   A request names a function in the mapped file, the addresses of its arguments, how many tasks it has, and scratch
   memory. Code is never written twice to one place, so what the emulator has translated stays right. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct request { uint64_t function, args, tasks, scratch; };

int main(int count, char **words) {
    void *base = (void *)strtoull(words[2], 0, 0);
    int file = count == 4 ? open(words[1], O_RDWR) : -1;
    if (file < 0) return 2;
    void *memory = mmap(base, strtoull(words[3], 0, 0), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_FIXED, file, 0);
    if (memory != base) return 3;
    struct request now;
    char done = 1;
    while (read(0, &now, sizeof now) == sizeof now) {
        void (*run)(void *, int64_t, void *) = (void (*)(void *, int64_t, void *))now.function;
        for (uint64_t task = 0; task < now.tasks; task++) run((void *)now.args, (int64_t)task, (void *)now.scratch);
        if (write(1, &done, 1) != 1) return 4;
    }
    return 0;
}
