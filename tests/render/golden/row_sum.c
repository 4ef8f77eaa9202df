typedef long long i64;
typedef float f32;
typedef f32 f32x8 __attribute__((vector_size(32)));
static inline f32x8 load_f32x8(const f32 *p) {
  typedef f32x8 any __attribute__((aligned(4), may_alias));
  return *(const any *)p;
}
static inline f32 fold_add_f32x8(f32x8 v) {
  f32 t0 = v[0], t1 = v[1], t2 = v[2], t3 = v[3], t4 = v[4], t5 = v[5], t6 = v[6], t7 = v[7];
  t0 = t0 + t4; t1 = t1 + t5; t2 = t2 + t6; t3 = t3 + t7;
  t0 = t0 + t2; t1 = t1 + t3;
  t0 = t0 + t1;
  return t0;
}

void row_sum_0(void **args, i64 task, void *scratch) {
  const f32 *data0 = args[0];
  f32 *data1 = args[1];
  f32x8 acc_0, acc_1;
  i64 r = task;
  acc_0 = (f32x8){0};
  acc_1 = (f32x8){0};
  for (i64 k = 0; k < 4; k++) {
    acc_0 += load_f32x8(data0 + r * 64 + k * 16);
    acc_1 += load_f32x8(data0 + r * 64 + k * 16 + 8);
  }
  data1[r] = fold_add_f32x8(acc_0 + acc_1);
}
