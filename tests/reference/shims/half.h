// A float of 16 bits for compilers that have none in C++ (g++ before 13): conversions to and from float, nothing else.
#pragma once
#include "gpu_threads.h"

namespace gpu {

struct Half {
  unsigned short bits;

  Half() = default;
  explicit Half(float x) {                     // rounds to the nearest, ties to even
    unsigned of = bits_as<unsigned>(x), sign = of >> 16 & 0x8000, magnitude = of & 0x7fffffff;
    if (magnitude > 0x7f800000) bits = sign | 0x7e00;                       // NaN
    else if (magnitude >= 0x477ff000) bits = sign | 0x7c00;                 // 65520 and above: infinity
    else if (magnitude >= 0x38800000) bits = sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    else bits = sign | (bits_as<unsigned>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000);     // the sum rounds there
  }
  operator float() const {
    unsigned sign = (unsigned)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    float value = magnitude >= 0x7c00 ? bits_as<float>(0x7f800000 | (magnitude & 0x3ff) << 13)
                                      : bits_as<float>(magnitude << 13) * 0x1p112f;
    return bits_as<float>(bits_as<unsigned>(value) | sign);
  }
};

}  // namespace gpu
