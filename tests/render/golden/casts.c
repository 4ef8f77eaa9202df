typedef long long i64;
typedef unsigned char u8;
typedef u8 u8x16 __attribute__((vector_size(16)));
typedef int i32;
typedef i32 i32x16 __attribute__((vector_size(64)));
typedef unsigned short u16;
typedef u16 u16x16 __attribute__((vector_size(32)));
typedef unsigned int u32;
typedef u32 u32x16 __attribute__((vector_size(64)));
typedef float f32;
typedef f32 f32x16 __attribute__((vector_size(64)));
static inline u8x16 load_u8x16(const u8 *p) {
  typedef u8x16 any __attribute__((aligned(1), may_alias));
  return *(const any *)p;
}
static inline u16x16 load_u16x16(const u16 *p) {
  typedef u16x16 any __attribute__((aligned(2), may_alias));
  return *(const any *)p;
}
static inline f32x16 select_f32x16(i32x16 where, f32x16 x, f32x16 y) {
  return (f32x16)((where & (i32x16)x) | (~where & (i32x16)y));
}
static inline u32x16 all_u32x16(u32 x) {
  return (u32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
static inline u32x16 select_u32x16(i32x16 where, u32x16 x, u32x16 y) {
  return (u32x16)((where & (i32x16)x) | (~where & (i32x16)y));
}
static inline void store_u16x16(u16 *p, u16x16 v) {
  typedef u16x16 any __attribute__((aligned(2), may_alias));
  *(any *)p = v;
}

void casts_0(void **args, i64 task, void *scratch) {
  const u8 *data1 = args[1];
  const u16 *data0 = args[0];
  u16 *data2 = args[2];
  for (i64 i = 0; i < 4; i++) {
    i32x16 v1 = __builtin_convertvector(load_u8x16(data1 + i * 16) != (u8x16){0}, i32x16);
    f32x16 v2 = (f32x16)(__builtin_convertvector(load_u16x16(data0 + i * 16), u32x16) << 16);
    f32x16 v3 = select_f32x16(v1, v2 * 2.0f, (f32x16){0});
    u32x16 v4 = (u32x16)v3;
    u32x16 v5 = select_u32x16(v3 != v3, all_u32x16(32704u), ((v4 + ((v4 >> 16) & 1u)) + 32767u) >> 16);
    store_u16x16(data2 + i * 16, __builtin_convertvector(v5, u16x16));
  }
}
