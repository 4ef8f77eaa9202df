// Instructions of a matrix unit that kernels write as PTX, as C++: shim_device.py calls these in place of the inline
// assembly. Threads of a warp give each other what the instruction would read from their registers.
#pragma once
#include "half.h"

extern char scratch[];                 // the memory of a group whose size a launch chooses

namespace gpu {

inline unsigned shared_offset(const void *p) { return (unsigned)((const char *)p - scratch); }

struct F16 {
  static float widen(unsigned short bits) { return bits_as<Half>(bits); }
};
struct BF16 {
  static float widen(unsigned short bits) { return bits_as<float>((unsigned)bits << 16); }
};

// ldmatrix.x4: thread l names the row l % 8 of the matrix l / 8, at a multiple of 16 bytes. Of each matrix, a thread gets
// two neighbours of the row l / 4; with .trans, of the column l / 4.
template <bool across> void ldmatrix_x4(unsigned &w0, unsigned &w1, unsigned &w2, unsigned &w3, unsigned at, int line) {
  unsigned lane = thread() % WARP, *words[4] = {&w0, &w1, &w2, &w3};
  if (at % 16) fault("ldmatrix reads rows that begin at multiples of 16 bytes");
  for (unsigned i = 0; i < 4; i++) {
    if (across) {
      unsigned first = shuffle_to(at, 8 * i + lane % 4 * 2, line), second = shuffle_to(at, 8 * i + lane % 4 * 2 + 1, line);
      unsigned low = *(unsigned short *)(scratch + first + lane / 4 * 2);
      unsigned high = *(unsigned short *)(scratch + second + lane / 4 * 2);
      *words[i] = low | high << 16;
    } else {
      *words[i] = *(unsigned *)(scratch + shuffle_to(at, 8 * i + lane / 4, line) + lane % 4 * 4);
    }
  }
}

// mma.m16n8k16, rows of the left factor and columns of the right one: thread l has of the left one the rows l / 4 and
// l / 4 + 8, of the right one the column l / 4, in both k = 2 (l % 4) and its neighbour, and those 8 further on; of the
// sums, columns 2 (l % 4) and its neighbour of both rows.
template <class T> void mma_m16n8k16(float &s0, float &s1, float &s2, float &s3, unsigned l0, unsigned l1, unsigned l2,
                                     unsigned l3, unsigned r0, unsigned r1, int line) {
  struct Left { unsigned word[4]; } mine = {{l0, l1, l2, l3}};
  struct Right { unsigned word[2]; } own = {{r0, r1}};
  unsigned lane = thread() % WARP;
  float *sums[2][2] = {{&s0, &s1}, {&s2, &s3}};
  for (unsigned j = 0; j < 4; j++) {
    Left left = shuffle_to(mine, lane / 4 * 4 + j, line);
    for (unsigned column = 0; column < 2; column++) {
      Right right = shuffle_to(own, (lane % 4 * 2 + column) * 4 + j, line);
      for (unsigned row = 0; row < 2; row++)
        for (unsigned far = 0; far < 2; far++)
          for (unsigned half = 0; half < 2; half++)
            *sums[row][column] += T::widen(left.word[far * 2 + row] >> half * 16 & 0xffff) *
                                  T::widen(right.word[far] >> half * 16 & 0xffff);
    }
  }
}

}  // namespace gpu
