typedef long long i64;
typedef float f32;
typedef f32 f32x16 __attribute__((vector_size(64)));
static inline f32x16 load_f32x16(const f32 *p) {
  typedef f32x16 any __attribute__((aligned(4), may_alias));
  return *(const any *)p;
}
static inline void store_f32x16(f32 *p, f32x16 v) {
  typedef f32x16 any __attribute__((aligned(4), may_alias));
  *(any *)p = v;
}

void matmul_0(void **args, i64 task, void *scratch) {
  const f32 *data0 = args[0];
  const f32 *data1 = args[1];
  f32 *data2 = args[2];
  f32x16 acc_0_0, acc_0_1, acc_1_0, acc_1_1, acc_2_0, acc_2_1, acc_3_0, acc_3_1;
  for (i64 i = 0; i < 2; i++) {
    acc_0_0 = (f32x16){0};
    acc_0_1 = (f32x16){0};
    acc_1_0 = (f32x16){0};
    acc_1_1 = (f32x16){0};
    acc_2_0 = (f32x16){0};
    acc_2_1 = (f32x16){0};
    acc_3_0 = (f32x16){0};
    acc_3_1 = (f32x16){0};
    for (i64 k = 0; k < 100; k++) {
      f32 v1 = data0[i * 400 + k * 4];
      f32x16 v2 = load_f32x16(data1 + k * 32);
      acc_0_0 += v1 * v2;
      f32x16 v3 = load_f32x16(data1 + k * 32 + 16);
      acc_0_1 += v1 * v3;
      f32 v4 = data0[i * 400 + k * 4 + 1];
      acc_1_0 += v4 * v2;
      acc_1_1 += v4 * v3;
      f32 v5 = data0[i * 400 + k * 4 + 2];
      acc_2_0 += v5 * v2;
      acc_2_1 += v5 * v3;
      f32 v6 = data0[i * 400 + k * 4 + 3];
      acc_3_0 += v6 * v2;
      acc_3_1 += v6 * v3;
    }
    store_f32x16(data2 + i * 128, acc_0_0);
    store_f32x16(data2 + i * 128 + 16, acc_0_1);
    store_f32x16(data2 + i * 128 + 32, acc_1_0);
    store_f32x16(data2 + i * 128 + 48, acc_1_1);
    store_f32x16(data2 + i * 128 + 64, acc_2_0);
    store_f32x16(data2 + i * 128 + 80, acc_2_1);
    store_f32x16(data2 + i * 128 + 96, acc_3_0);
    store_f32x16(data2 + i * 128 + 112, acc_3_1);
  }
}
