typedef long long i64;
typedef i64 i64x8 __attribute__((vector_size(64)));
typedef int i32;
typedef i32 i32x8 __attribute__((vector_size(32)));
typedef float f32;
typedef f32 f32x8 __attribute__((vector_size(32)));
static inline f32x8 load_f32x8_where_step(const f32 *p, i64 step, i32x8 where) {
  f32x8 r = {0};
  for (int i = 0; i < 8; i++) if (where[i]) r[i] = p[i * step];
  return r;
}
static inline void store_f32x8_where_step(f32 *p, i64 step, f32x8 v, i32x8 where) {
  for (int i = 0; i < 8; i++) if (where[i]) p[i * step] = v[i];
}

void shifted_0(void **args, i64 task, void *scratch) {
  const f32 *data0 = args[0];
  f32 *data1 = args[1];
  for (i64 i = 0; i < 6; i++) {
    i32x8 v1 = __builtin_convertvector((-(i * 8) - (i64x8){0, 1, 2, 3, 4, 5, 6, 7}) < (-2), i32x8);
    i32x8 v2 = __builtin_convertvector((i * 8 + (i64x8){0, 1, 2, 3, 4, 5, 6, 7}) < 23, i32x8);
    i32x8 v3 = __builtin_convertvector((i * 8 + (i64x8){0, 1, 2, 3, 4, 5, 6, 7}) < 45, i32x8);
    store_f32x8_where_step(data1 + i * 8, 1, load_f32x8_where_step(data0 + i * 8 - 3, 1, v1 & v2), v3);
  }
}
