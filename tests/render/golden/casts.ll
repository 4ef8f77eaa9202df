define void @casts_0(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %v1 = getelementptr ptr, ptr %args, i64 1
  %v2 = load ptr, ptr %v1, align 8
  %v6 = getelementptr ptr, ptr %args, i64 0
  %v7 = load ptr, ptr %v6, align 8
  %v24 = getelementptr ptr, ptr %args, i64 2
  %v25 = load ptr, ptr %v24, align 8
  br label %loop1
loop1:
  %i_2.16 = phi i64 [ 0, %entry ], [ %i_2.16.next, %loop1 ]
  %v3 = getelementptr i8, ptr %v2, i64 %i_2.16
  %v4 = load <16 x i8>, ptr %v3, align 1
  %v5 = icmp ne <16 x i8> %v4, zeroinitializer
  %v8 = getelementptr i16, ptr %v7, i64 %i_2.16
  %v9 = load <16 x i16>, ptr %v8, align 2
  %v10 = zext <16 x i16> %v9 to <16 x i32>
  %v11 = shl <16 x i32> %v10, splat (i32 16)
  %v12 = bitcast <16 x i32> %v11 to <16 x float>
  %v13 = fmul <16 x float> %v12, splat (float 0x4000000000000000)
  %v14 = select <16 x i1> %v5, <16 x float> %v13, <16 x float> zeroinitializer
  %v15 = fcmp une <16 x float> %v14, %v14
  %v16 = bitcast <16 x float> %v14 to <16 x i32>
  %v17 = lshr <16 x i32> %v16, splat (i32 16)
  %v18 = and <16 x i32> %v17, splat (i32 1)
  %v19 = add <16 x i32> %v16, %v18
  %v20 = add <16 x i32> %v19, splat (i32 32767)
  %v21 = lshr <16 x i32> %v20, splat (i32 16)
  %v22 = select <16 x i1> %v15, <16 x i32> splat (i32 32704), <16 x i32> %v21
  %v23 = trunc <16 x i32> %v22 to <16 x i16>
  %v26 = getelementptr i16, ptr %v25, i64 %i_2.16
  store <16 x i16> %v23, ptr %v26, align 2
  %i_2.16.sum = add i64 %i_2.16, 16
  %i_2.16.next = freeze i64 %i_2.16.sum
  %i_2.more = icmp ult i64 %i_2.16.next, 64
  br i1 %i_2.more, label %loop1, label %after2
after2:
  ret void
}
